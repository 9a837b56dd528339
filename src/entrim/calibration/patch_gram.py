"""Second moments of the input patches of a layer, computed without extracting the patches."""

import math
from collections import defaultdict
from functools import reduce

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from entrim.calibration.conv_geometry import Geometry, Meeting, Pair, meetings, sources
from entrim.errors import BadRowsError

_CHUNK_BYTES = 32 * 2**20
_ROWS = 2**16
"""Maximum number of rows per product: longer float32 sums lose precision."""
_BLOCK = 1024
"""Columns of a product: blocks below the diagonal follow from those above it."""
_FEW = 16
"""With fewer channels per group, products by shift are slower than those of patches."""


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
    flat = index.flatten(1)[:, None]
    read = maps.flatten(2).gather(2, flat.clamp_min(0).expand(-1, maps.shape[1], -1))
    if geometry.may_pad:
        read = read.masked_fill_(flat < 0, 0)
    read = read.unflatten(2, (P, q)).unflatten(1, (geometry.groups, -1))
    return read.permute(1, 0, 3, 2, 4).flatten(3).flatten(1, 2)


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
        contiguous runs, and a single fast matrix transposition produces the layout.
        """
        laid = maps.flatten(2).flatten(0, 1).t().contiguous()
        laid = laid.view(*self.sizes, len(maps), maps.shape[1])
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
