"""The input patches of a layer: their geometry, their Gram matrices, and the patches themselves.

`PatchGram` computes the Gram matrices without extracting the patches. `Gram` contains them for one
layer, and `LayerRows` the patches of a layer with fewer rows than columns.
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import product

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from entrim.entropic.moments import Moments
from entrim.entropic.observations import Observations, principal_directions
from entrim.errors import BadRowsError, BadSettingError

_CHUNK_BYTES = 32 * 2**20
_ROWS = 2**16
"""Maximum number of rows per product: longer float32 sums lose precision."""
_BLOCK = 1024
"""Columns of a product: blocks below the diagonal follow from those above it."""
MAX_COLUMNS = 2048
"""Number of columns above which those of each channel are reduced to its principal directions, for
rankings and for second moments that are computed from rows."""
_FEW = 16
"""With fewer channels per group, products by shift are slower than those of patches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One spatial axis of a layer."""

    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0
    extra: int = 0
    """Output padding of a transposed convolution."""
    transposed: bool = False

    def outputs(self, size: int) -> int:
        """Return the number of output positions for `size` inputs."""
        reach, pad = self.dilation * (self.kernel - 1), self.before + self.after
        if self.transposed:
            return (size - 1) * self.stride + reach + 1 - pad + self.extra
        return (size + pad - reach - 1) // self.stride + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Kernel, stride, dilation and padding of a layer; all empty for a linear layer."""

    kernel: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    padding: tuple[tuple[int, int], ...] = ()
    """Zeros before and after each axis; padding="same" can be asymmetric."""
    groups: int = 1
    transposed: bool = False
    output_padding: tuple[int, ...] = ()
    """Output padding of a transposed convolution; empty for none."""

    def __post_init__(self) -> None:
        rank = len(self.kernel)
        if not rank == len(self.stride) == len(self.dilation) == len(self.padding):
            raise BadSettingError(
                f"{self} has tuples of different lengths: pass one value per axis"
            )
        if len(self.output_padding) not in (0, rank):
            raise BadSettingError(f"{self}: output_padding must have one value per axis, or none")
        if min(self.groups, *self.kernel, *self.stride, *self.dilation, 1) < 1:
            raise BadSettingError(f"{self}: kernel, stride, dilation and groups must be positive")

    @property
    def block(self) -> int:
        """The number q of columns per channel."""
        return math.prod(self.kernel)

    @property
    def may_pad(self) -> bool:
        """Whether a weight may meet a zero of the padding instead of an input."""
        return self.transposed or any(map(any, self.padding))

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The spatial axes; a linear layer has one axis with a kernel of size 1."""
        if not self.kernel:
            return (Axis(),)
        settings = zip(
            *(self.kernel, self.stride, self.dilation, self.padding),
            self.output_padding or (0,) * len(self.kernel),
            strict=True,
        )
        return tuple(
            Axis(
                kernel=kernel,
                stride=stride,
                dilation=dilation,
                before=before,
                after=after,
                extra=extra,
                transposed=self.transposed,
            )
            for kernel, stride, dilation, (before, after), extra in settings
        )

    def outputs(self, sizes: tuple[int, ...]) -> int:
        """Return the number of output positions for a feature map of these sizes."""
        along = (axis.outputs(size) for axis, size in zip(self.axes, sizes, strict=True))
        return math.prod(max(0, positions) for positions in along)


@lru_cache(maxsize=256)
def axis_sources(axis: Axis, size: int) -> Int[Tensor, "positions kernel"]:
    """Return the input coordinate of each kernel offset at each output, -1 for padding.

    With stride t and dilation e, output p of a convolution reads the input t p + e i - before. A
    transposed convolution writes its input u to t u + e i - before, so output p reads the u for
    which this is p.
    """
    p, i = torch.arange(axis.outputs(size))[:, None], torch.arange(axis.kernel)[None]
    if axis.transposed:
        reached = p + axis.before - axis.dilation * i
        source = reached.div(axis.stride, rounding_mode="floor")
        source[reached % axis.stride != 0] = -1
    else:
        source = axis.stride * p + axis.dilation * i - axis.before
    return torch.where((source >= 0) & (source < size), source, -1)


def sources(geometry: Geometry, sizes: tuple[int, ...]) -> Int[Tensor, "positions q"]:
    """Return the flat input position of each weight at each output, -1 for padding."""
    flat = torch.zeros(1, 1, dtype=torch.int64)
    for axis, size in zip(geometry.axes, sizes, strict=True):
        along = axis_sources(axis, size)[None, :, None, :]
        before = flat[:, None, :, None]
        flat = torch.where((before < 0) | (along < 0), -1, before * size + along)
        flat = flat.flatten(2).flatten(0, 1)
    return flat


Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Run:
    """Inputs u of one axis that occur together with u + shift in the same pairs of offsets."""

    shift: int
    inputs: range
    pairs: tuple[Pair, ...]


@lru_cache(maxsize=256)
def axis_runs(axis: Axis, size: int) -> tuple[Run, ...]:
    """Return all pairs of inputs that are read by a common output, as runs.

    Kernel offsets i and j read inputs a fixed shift apart. An offset reads every `stride`-th input
    of an interval, and these intervals have equal lengths, so the inputs with the same pairs of
    offsets are evenly spaced.
    """
    pairs: defaultdict[tuple[int, int], list[Pair]] = defaultdict(list)
    for row in axis_sources(axis, size).tolist():
        met = [(i, u) for i, u in enumerate(row) if u >= 0]
        for (i, u), (j, v) in product(met, met):
            pairs[v - u, u].append((i, j))
    runs: defaultdict[tuple[int, tuple[Pair, ...]], list[int]] = defaultdict(list)
    for (shift, u), met in sorted(pairs.items()):
        runs[shift, tuple(sorted(met))].append(u)
    return tuple(
        Run(shift, range(us[0], us[-1] + 1, us[1] - us[0] if len(us) > 1 else 1), met)
        for (shift, met), us in runs.items()
    )


@dataclass(frozen=True, slots=True)
class Meeting:
    """Inputs of a feature map that occur with those `shift` away in the same pairs of offsets."""

    shift: tuple[int, ...]
    inputs: tuple[range, ...]
    pairs: tuple[Pair, ...]
    """Flat kernel offsets."""

    @property
    def itself(self) -> bool:
        """Whether the shift is zero."""
        return not any(self.shift)


@lru_cache(maxsize=256)
def meetings(geometry: Geometry, sizes: tuple[int, ...]) -> tuple[Meeting, ...]:
    """Return the products that make up the Gram matrix of the patches, one per symmetric pair.

    Block (i, j) of the Gram matrix is the sum over all meetings with this pair. Missing pairs are
    the transposes of existing ones, or zero.
    """
    axes = geometry.axes
    found = []
    for runs in product(*(axis_runs(*both) for both in zip(axes, sizes, strict=True))):
        shift = tuple(run.shift for run in runs)
        if shift < (0,) * len(axes):
            continue
        pairs = [(0, 0)]
        for axis, run in zip(axes, runs, strict=True):
            pairs = [
                (a * axis.kernel + i, b * axis.kernel + j) for a, b in pairs for i, j in run.pairs
            ]
        found.append(Meeting(shift, tuple(run.inputs for run in runs), tuple(pairs)))
    return tuple(found)


def patches(
    x: Tensor, geometry: Geometry, sampled: Int[Tensor, "N P"] | None = None
) -> Float[Tensor, "groups rows n"]:
    """Return the input patches of the layer, one row per image and output position.

    Columns are in the order of `weight.flatten(1)`, or of the weight of a transposed convolution by
    channel: c * q + kernel offset. `sampled` restricts the rows to these flat output positions of
    each image. At stride 1 the result takes q times the memory of `x`, so batches should be small.
    """
    maps = _as_maps(x, geometry)
    index = sources(geometry, tuple(maps.shape[2:])).to(x.device)
    index = index.expand(len(maps), -1, -1) if sampled is None else index[sampled]
    _, P, q = index.shape
    flat, images = index.flatten(1), torch.arange(len(maps), device=x.device)[:, None]
    read = maps.flatten(2).mT[images, flat.clamp_min(0)]
    if geometry.may_pad:
        read.masked_fill_(flat[..., None] < 0, 0)
    read = read.unflatten(2, (geometry.groups, -1)).unflatten(1, (P, q))
    return read.permute(3, 0, 1, 4, 2).flatten(3).flatten(1, 2)


class PatchGram:
    """The sum of z z' over all rows z = (1; patch), accumulated batch by batch.

    Kernel offsets i and j of a stride-1 convolution multiply inputs that are a fixed shift apart.
    Except at the border, all blocks (i, j) with the same shift are therefore the same product of
    the feature map with its shifted copy: a 3x3 layer takes 13 products of D x D and a few small
    ones at the border, instead of the 81 of its patches. For any stride, dilation and padding,
    inputs that occur in the same pairs of offsets share one product; zeros of the padding are never
    multiplied. Products have the precision of the inputs, at least float32. Sums are float64, on
    the CPU if the device does not support it. Memory is independent of the number of images.
    """

    def __init__(
        self, geometry: Geometry, channels: int, device: torch.device | str = "cpu"
    ) -> None:
        if channels < 1 or channels % geometry.groups:
            raise BadRowsError(
                f"the number of channels must be a positive multiple of groups={geometry.groups}, "
                f"got {channels}: pass the number of input channels of the layer"
            )
        self.geometry, self.channels, self.count = geometry, channels, 0
        self._device = torch.device("cpu" if torch.device(device).type == "mps" else device)
        self._gram: Tensor | None = None
        self._lent = False
        self._open: _Products | None = None
        self._upper = False
        """Whether the blocks below the diagonal are outdated."""

    @property
    def gram_sum(self) -> Float[Tensor, "groups n1 n1"]:
        """The accumulated sum of each group, with the row and column of the constant first.

        The returned tensor does not change when more batches are added. Computing it takes about
        twice its own memory for a kernel of size 1, less for larger kernels.
        """
        gram = self._mine()
        if self._upper:
            for start in range(_BLOCK, gram.shape[-1], _BLOCK):
                stop = start + _BLOCK
                gram[:, start:stop, :start] = gram[:, :start, start:stop].mT
            self._upper = False
        if self._open is not None:
            self._open.add_to(gram)
            self._open = None
        self._lent = True
        return gram

    def add(self, x: Tensor, sampled: Int[Tensor, "N P"] | None = None) -> None:
        """Add a batch of layer inputs (N, D, *spatial), or (N, ..., D) of a linear layer.

        `sampled` restricts the sum to these flat output positions of each image.
        """
        x = x.detach()
        maps = _as_maps(x, self.geometry)
        if maps.shape[1] != self.channels:
            raise BadRowsError(
                f"the layer has {self.channels} input channels, got inputs with {maps.shape[1]}: "
                "pass the inputs of this layer"
            )
        if sampled is not None or self.channels < _FEW * self.geometry.groups:
            self._add_rows(x, sampled)
        else:
            self._add_maps(maps)

    def _add_rows(self, x: Tensor, sampled: Int[Tensor, "N P"] | None) -> None:
        sizes = tuple(_as_maps(x, self.geometry).shape[2:])
        rows = self.geometry.outputs(sizes) if sampled is None else sampled.shape[1]
        images = _images_at_once(rows, self.channels * self.geometry.block)
        batches = x.split(images)
        chosen = [None] * len(batches) if sampled is None else sampled.split(images)
        for batch, some in zip(batches, chosen, strict=True):
            self.add_rows(patches(batch, self.geometry, some))

    def add_rows(self, rows: Float[Tensor, "groups rows n"]) -> None:
        """Add patches, as `patches` returns them."""
        gram = self._mine()
        z = F.pad(rows, (1, 0), value=1.0)
        for part in z.split(_ROWS, 1):
            for start in range(0, gram.shape[-1], _BLOCK):
                block = part[:, :, start : start + _BLOCK].mT @ part[:, :, start:]
                gram[:, start : start + _BLOCK, start:] += block.to(self._device)
        self._upper = gram.shape[-1] > _BLOCK
        self.count += rows.shape[1]

    def _add_maps(self, maps: Float[Tensor, "N D *spatial"]) -> None:
        sizes = tuple(maps.shape[2:])
        if self._open is not None and self._open.sizes != sizes:
            self._open.add_to(self._mine())
            self._open = None
        if self._open is None:
            self._open = _Products(self.geometry, sizes, self.channels, self._device)
        for batch in maps.split(_images_at_once(math.prod(sizes), self.channels)):
            self._open.add(batch)
        self.count += len(maps) * self.geometry.outputs(sizes)

    def _mine(self) -> Tensor:
        """Return the tensor to accumulate into; a copy if the last one was returned to a caller."""
        if self._gram is None:
            groups = self.geometry.groups
            n1 = self.channels // groups * self.geometry.block + 1
            self._gram = torch.zeros(groups, n1, n1, dtype=torch.float64, device=self._device)
        elif self._lent:
            self._gram = self._gram.clone()
        self._lent = False
        return self._gram


class _Products:
    """Sums of the products of all meetings, for feature maps of one size."""

    def __init__(
        self, geometry: Geometry, sizes: tuple[int, ...], channels: int, device: torch.device
    ) -> None:
        self.geometry, self.sizes, self.count = geometry, sizes, 0
        self.meetings = meetings(geometry, sizes)
        self.width = channels // geometry.groups
        shape = (len(self.meetings), geometry.groups, self.width, self.width)
        self.squares = torch.zeros(shape, dtype=torch.float64, device=device)
        self.map_sum = torch.zeros(*sizes, channels, dtype=torch.float64, device=device)

    def add(self, maps: Float[Tensor, "N D *spatial"]) -> None:
        """Add a batch that fits into memory twice.

        The layout is positions, images, channels: parts of the map are then copied in long
        contiguous runs, and maps in channels-last format are copied to it in runs of all channels.
        """
        laid = maps.movedim((0, 1), (-2, -1)).contiguous()
        self.map_sum += laid.sum(-2).to(self.map_sum.device)
        for square, meeting in zip(self.squares, self.meetings, strict=True):
            self._multiply(square, meeting, laid)
        self.count += len(maps)

    def _multiply(
        self, square: Float[Tensor, "groups D D"], meeting: Meeting, laid: Float[Tensor, "..."]
    ) -> None:
        here = tuple(slice(r.start, r.stop, r.step) for r in meeting.inputs)
        there = tuple(
            slice(r.start + s, r.stop + s, r.step)
            for r, s in zip(meeting.inputs, meeting.shift, strict=True)
        )
        near = self._grouped(laid[here])
        far = near if meeting.itself else self._grouped(laid[there])
        for a, b in zip(near.split(_ROWS, -2), far.split(_ROWS, -2), strict=True):
            square += (a.mT @ b).to(square.device)

    def _grouped(self, part: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return one matrix (rows, D), or one per group."""
        if self.geometry.groups == 1:
            return part.reshape(-1, self.width)
        return part.reshape(-1, self.geometry.groups, self.width).movedim(0, 1)

    def add_to(self, gram: Float[Tensor, "groups n1 n1"]) -> None:
        """Add the products to all blocks of `gram` to which they belong."""
        q, width = self.geometry.block, self.width
        blocks, sums = self._blocks(), self._sums()
        gram[:, 0, 0] += self.count * self.geometry.outputs(self.sizes)
        gram[:, 0, 1:] += sums
        gram[:, 1:, 0] += sums
        inner = gram[:, 1:, 1:].unflatten(2, (width, q)).unflatten(1, (width, q))
        for i in range(q):
            inner[:, :, i] += torch.stack([self._block(blocks, i, j) for j in range(q)], -1)

    def _block(self, blocks: dict[Pair, list[int]], i: int, j: int) -> Tensor:
        if (i, j) not in blocks and (j, i) in blocks:
            return self._block(blocks, j, i).mT
        if (i, j) not in blocks:
            return self.squares.new_zeros(self.squares.shape[1:])
        return reduce(torch.add, [self.squares[k] for k in blocks[i, j]])

    def _blocks(self) -> dict[Pair, list[int]]:
        blocks: defaultdict[Pair, list[int]] = defaultdict(list)
        for k, meeting in enumerate(self.meetings):
            for pair in meeting.pairs:
                blocks[pair].append(k)
        return blocks

    def _sums(self) -> Float[Tensor, "groups n"]:
        columns = self.map_sum.new_zeros(self.map_sum.shape[-1], self.geometry.block)
        for meeting in self.meetings:
            if meeting.itself:
                met = self.map_sum[tuple(slice(r.start, r.stop, r.step) for r in meeting.inputs)]
                for i, _ in meeting.pairs:
                    columns[:, i] += met.flatten(0, -2).sum(0)
        return columns.view(self.geometry.groups, -1)


def _as_maps(x: Tensor, geometry: Geometry) -> Float[Tensor, "N D *spatial"]:
    """Return `x` as feature maps, in float32 or float64."""
    rank = len(geometry.kernel)
    if x.ndim != rank + 2 if rank else x.ndim < 2:
        wanted = "(images, channels, *spatial)" if rank else "(images, ..., channels)"
        raise BadRowsError(
            f"inputs of a layer with kernel {geometry.kernel} must have the shape {wanted}, got "
            f"{tuple(x.shape)}"
        )
    maps = x if rank else x.reshape(len(x), -1, x.shape[-1]).mT
    if geometry.outputs(tuple(maps.shape[2:])) < 1:
        raise BadRowsError(
            f"the feature map {tuple(maps.shape[2:])} is smaller than the kernel of {geometry}: "
            "pass larger images"
        )
    return maps if maps.dtype == torch.float64 else maps.float()


def _images_at_once(rows: int, columns: int) -> int:
    """Return the number of images of `rows` x `columns` per chunk, at least one."""
    return max(1, min(_CHUNK_BYTES // (4 * columns), _ROWS) // max(1, rows))


class RowCollector:
    """All rows of a layer with more columns than rows, used like a `PatchGram`."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry, self.count = geometry, 0
        self._parts: list[Tensor] = []

    def add(self, x: Tensor) -> None:
        """Add a batch of layer inputs (N, D, *spatial), or (N, ..., D) of a linear layer."""
        self.add_rows(patches(x.detach(), self.geometry))

    def add_rows(self, rows: Float[Tensor, "groups rows n"]) -> None:
        """Add patches, as `patches` returns them."""
        self._parts.append(rows)
        self.count += rows.shape[1]

    def rows(self) -> Float[Tensor, "groups T n"]:
        """Return all rows."""
        return torch.cat(self._parts, 1)


def in_double(x: Tensor) -> Tensor:
    """Return `x` in double precision, on the CPU if its device does not support it.

    Single precision would be twice as fast, but rounding can make a rank-deficient Gram matrix
    (fewer rows than columns) indefinite, and systems with a small ridge could not be solved.
    """
    return x.to(sums_device(x.device), torch.float64)


def sums_device(device: torch.device) -> torch.device:
    """Return the device of sums in double precision."""
    return torch.device("cpu") if device.type == "mps" else device


@dataclass(frozen=True, slots=True, eq=False)
class Gram:
    """The sums of z z' over the rows of one layer, z = (1; x), for each group of a convolution."""

    sums: Float[Tensor, "groups n1 n1"]
    count: int

    def problem(
        self, number: int, kept: Int[Tensor, " k"], weight: Float[Tensor, "M n"]
    ) -> Moments:
        """Return the regression of the outputs of all removed columns on the kept ones."""
        sums = self.sums[number].cpu()
        lost = removed_columns(kept, len(sums) - 1)
        inner = torch.cat([torch.zeros(1, dtype=torch.int64), 1 + kept])
        return Moments(
            count=self.count,
            gram_sum=sums[inner][:, inner],
            cross_sum=sums[inner][:, 1 + lost] @ weight[:, lost].T,
            target_sum_sq=0.0,
        )

    def mean_square(self, number: int, change: Float[Tensor, "M n1"]) -> float:
        """Return the mean squared output of the weights `change`, summed over the outputs."""
        sums = self.sums[number].cpu()
        return float((change @ sums * change).sum()) / self.count

    def variance(self, number: int, weight: Float[Tensor, "M n"]) -> float:
        """Return the variance of the outputs of `weight`, summed over the outputs."""
        sums = self.sums[number].cpu()
        mean = sums[0, 1:] / self.count
        second = float((weight * (weight @ sums[1:, 1:])).sum()) / self.count
        return max(0.0, second - float((weight @ mean).square().sum()))

    def moments(
        self,
        number: int,
        table: Int[Tensor, "units block"],
        share: Float[Tensor, "M n"],
        bias: Float[Tensor, " M"],
    ) -> Moments:
        """Return the moments of the columns in `table`, with the outputs of `share` and `bias`."""
        columns = table.flatten()
        there = columns >= 0
        index = torch.cat([torch.zeros(1, dtype=torch.int64), 1 + columns.clamp_min(0)])
        sums = self.sums[number].cpu()
        if not torch.equal(index, torch.arange(len(sums))):
            sums = sums[index][:, index]
        present = torch.cat([torch.ones(1, dtype=torch.bool), there])
        if not bool(present.all()):
            sums = sums * present * present[:, None]
        target = torch.cat([bias[None], share.T])
        cross = sums @ target
        return Moments(
            count=self.count,
            gram_sum=sums,
            cross_sum=cross,
            target_sum_sq=max(0.0, float((target * cross).sum())),
            block=table.shape[1],
        )

    def reduce_weights(
        self, number: int, table: Int[Tensor, "units block"], share: Float[Tensor, "M n"]
    ) -> Float[Tensor, "M n"]:
        """Return the weights on the columns of `moments`: all of them."""
        return share


@dataclass(frozen=True, slots=True, eq=False)
class LayerRows:
    """The rows of one layer with fewer rows than columns, for each group of a convolution."""

    rows: Float[Tensor, "groups T n"]
    memory_limit: int

    @property
    def count(self) -> int:
        """The number T of rows."""
        return self.rows.shape[1]

    def problem(
        self, number: int, kept: Int[Tensor, " k"], weight: Float[Tensor, "M n"]
    ) -> Moments | Observations:
        """Return the regression of the outputs of all removed columns on the kept ones."""
        x = self.rows[number].cpu()
        lost = removed_columns(kept, x.shape[1])
        targets = x[:, lost].double() @ weight[:, lost].T
        found = Observations(inputs=x[:, kept], targets=targets)
        return found if found.columns > found.count else found.moments()

    def mean_square(self, number: int, change: Float[Tensor, "M n1"]) -> float:
        """Return the mean squared output of the weights `change`, summed over the outputs."""
        found = self.rows[number].cpu().double() @ change[:, 1:].T + change[:, 0]
        return float(found.square().sum()) / self.count

    def variance(self, number: int, weight: Float[Tensor, "M n"]) -> float:
        """Return the variance of the outputs of `weight`, summed over the outputs."""
        found = self.rows[number].cpu().double() @ weight.T
        return float(found.var(0, correction=0).sum())

    def moments(
        self,
        number: int,
        table: Int[Tensor, "units block"],
        share: Float[Tensor, "M n"],
        bias: Float[Tensor, " M"],
    ) -> Moments:
        """Return the moments of the columns in `table`, with the outputs of `share` and `bias`.

        If there are many columns, those of each channel are reduced to its principal directions.
        """
        x = self._channels(number, table)
        targets = x.flatten(1) @ share.T + bias
        directions = self._directions(x)
        if directions is not None:
            x = torch.einsum("tdq,dqk->tdk", x, directions)
        size = (x[0].numel() + 1) ** 2 * 8
        return Moments.of(x.flatten(1), targets, block=x.shape[2], memory_limit=size)

    def reduce_weights(
        self, number: int, table: Int[Tensor, "units block"], share: Float[Tensor, "M n"]
    ) -> Float[Tensor, "M k"]:
        """Return the weights on the columns of `moments`: on the principal directions."""
        directions = self._directions(self._channels(number, table))
        if directions is None:
            return share
        parts = share.unflatten(1, table.shape)
        return torch.einsum("mdq,dqk->mdk", parts, directions.to(parts)).flatten(1)

    def _channels(self, number: int, table: Int[Tensor, "units block"]) -> Float[Tensor, "T D q"]:
        """Return the columns of each channel; those that a channel does not have are zero."""
        rows = self.rows[number].cpu()[:, table.flatten().clamp_min(0)].double()
        return (rows * (table.flatten() >= 0)).unflatten(1, table.shape)

    def _directions(self, x: Float[Tensor, "T D q"]) -> Float[Tensor, "D q k"] | None:
        count = max(1, reduced_columns(self.memory_limit) // x.shape[1])
        return principal_directions(x, min(count, len(x)))


def reduced_columns(memory_limit: int) -> int:
    """Return how many columns the second moments computed from rows may have."""
    return min(MAX_COLUMNS, math.isqrt(memory_limit // 8) - 1)


def removed_columns(kept: Int[Tensor, " k"], columns: int) -> Int[Tensor, " l"]:
    """Return the columns that are not kept."""
    removed = torch.ones(columns, dtype=torch.bool)
    removed[kept] = False
    return removed.nonzero()[:, 0]
