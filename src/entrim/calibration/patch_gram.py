"""Second moments of the patches that a layer reads, without ever making the patches."""

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
"""So many rows at most are multiplied at once: longer float32 sums lose digits."""
_BLOCK = 1024
"""Columns of a product: blocks below the diagonal follow from those above it."""
_FEW = 16
"""With fewer channels a group the products by shift are too small to pay."""


def patches(
    x: Tensor, geometry: Geometry, sampled: Int[Tensor, "N P"] | None = None
) -> Float[Tensor, "groups rows n"]:
    """Return what the layer multiplies with its weight, one row an image and output position.

    Columns stand like those of `weight.flatten(1)`, or of a transposed layer's weight, channel
    by channel: c * q + kernel offset. With `positions` only these flat output positions of each
    image are read. All rows take q times the memory of `x` at stride 1: hand over few images.
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
    """The sum of z z' over all rows z = (1; patch), filled batch by batch.

    Kernel offsets i and j of a stride-1 convolution meet inputs a fixed shift apart, so blocks
    (i, j) of equal shift are one and the same product of the map with itself shifted, apart from
    the border: a 3x3 layer takes 13 products of D x D and some thin ones at the border instead
    of the 81 of its patches. Inputs that meet the same pairs make one product, whatever stride,
    dilation and padding; zeros of the padding are never multiplied. Products are of the inputs'
    precision, at least float32; sums are float64 (on the CPU where the device has none). Memory
    does not grow with the number of images.
    """

    def __init__(
        self, geometry: Geometry, channels: int, device: torch.device | str = "cpu"
    ) -> None:
        if channels < 1 or channels % geometry.groups:
            raise BadRowsError(
                f"{channels} channels do not fall into {geometry.groups} groups: hand over the "
                "layer's input channels"
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
        """The sum so far, one a group, with the constant's row and column first.

        A tensor handed out does not change when more is added. Making it takes about twice its
        own memory for a kernel of 1, less for larger ones.
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
        """Add a batch of layer inputs (N, D, *spatial), or (N, ..., D) of a Linear.

        With `positions` only these flat output positions of each image count.
        """
        x = x.detach()
        maps = _as_maps(x, self.geometry)
        if maps.shape[1] != self.channels:
            raise BadRowsError(
                f"inputs of {maps.shape[1]} channels for a layer of {self.channels}: hand over "
                "what the layer reads"
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
        """Return the sum to add to, a new one when the last was handed out."""
        if self._gram is None:
            groups = self.geometry.groups
            n1 = self.channels // groups * self.geometry.block + 1
            self._gram = torch.zeros(groups, n1, n1, dtype=torch.float64, device=self._device)
        elif self._lent:
            self._gram = self._gram.clone()
        self._lent = False
        return self._gram


class _Products:
    """Sums of the products of all meetings, for maps of one size."""

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

        Positions come first and images next: a part of the map is then copied in long runs, and
        torch lays the batch out so by one transposition of a matrix, which it does fast.
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
        """Return one matrix (rows, D), or one a group."""
        if self.geometry.groups == 1:
            return part.reshape(-1, self.width)
        return part.reshape(-1, self.geometry.groups, self.width).movedim(0, 1)

    def add_to(self, gram: Float[Tensor, "groups n1 n1"]) -> None:
        """Write the products to all the blocks that they stand for."""
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
    """Return `x` as images of channels, in float32 or float64."""
    rank = len(geometry.kernel)
    if x.ndim != rank + 2 if rank else x.ndim < 2:
        wanted = "(images, channels, *spatial)" if rank else "(images, ..., channels)"
        raise BadRowsError(
            f"inputs of shape {tuple(x.shape)} for a kernel {geometry.kernel}: hand over {wanted}"
        )
    maps = x if rank else x.reshape(len(x), -1, x.shape[-1]).mT
    if geometry.outputs(tuple(maps.shape[2:])) < 1:
        raise BadRowsError(
            f"a map {tuple(maps.shape[2:])} is smaller than what {geometry} reads at once: hand "
            "over larger images"
        )
    return maps if maps.dtype == torch.float64 else maps.float()


def _images_at_once(rows: int, columns: int) -> int:
    """Return how many images of `rows` x `columns` fit a chunk, at least one."""
    return max(1, min(_CHUNK_BYTES // (4 * columns), _ROWS) // max(1, rows))
