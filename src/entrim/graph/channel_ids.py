"""Identities of channels: which are one and the same, and which are frozen for what reason."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

Ids = Int[Tensor, "..."]


@dataclass(frozen=True, slots=True, eq=False)
class ChannelLayout:
    """The channel ids of one activation: `ids` along `axis`, constant along every other axis.

    Without an axis all elements carry the one id in `ids`.
    """

    shape: tuple[int, ...]
    axis: int | None
    ids: Int[Tensor, " _"]


class ChannelIds:
    """A union-find over channel ids; a frozen id freezes everything it is united with."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._reason: dict[int, str] = {}

    def new_ids(self, count: int) -> Int[Tensor, " count"]:
        """Return `count` new ids."""
        start = len(self._parent)
        self._parent.extend(range(start, start + count))
        return torch.arange(start, start + count)

    def find(self, channel: int) -> int:
        """Return the id that stands for everything united with `channel`."""
        parent = self._parent
        while parent[channel] != channel:
            parent[channel] = parent[parent[channel]]
            channel = parent[channel]
        return channel

    def roots(self, ids: Ids) -> Ids:
        """Return the standing ids, in the shape of `ids`."""
        distinct, inverse = torch.unique(ids, return_inverse=True)
        stand = torch.tensor([self.find(channel) for channel in distinct.tolist()])
        return stand.to(torch.int64)[inverse]

    def union(self, some: Ids, others: Ids) -> None:
        """Make `some` and `others`, of one shape, the same channels pair by pair."""
        for a, b in zip(some.flatten().tolist(), others.flatten().tolist(), strict=True):
            self.join(a, b)

    def unite_all(self, ids: Ids) -> None:
        """Make all of `ids` one channel."""
        distinct = torch.unique(ids)
        self.union(distinct[:-1], distinct[1:])

    def freeze(self, ids: Ids, reason: str) -> None:
        """Keep `ids` for `reason`; the first reason stands."""
        for channel in torch.unique(ids).tolist():
            self._reason.setdefault(self.find(channel), reason)

    def reason(self, channel: int) -> str | None:
        """Return why `channel` is frozen, or None."""
        return self._reason.get(self.find(channel))

    def frozen_layout(self, shape: Iterable[int], reason: str) -> ChannelLayout:
        """Return a value of `shape` that can never shrink."""
        ids = self.new_ids(1)
        self.freeze(ids, reason)
        return ChannelLayout(tuple(shape), None, ids)

    def ids_along(self, value: ChannelLayout, axis: int) -> Int[Tensor, " _"]:
        """Return one id for every position along `axis`, uniting ids that share a position."""
        axis %= max(len(value.shape), 1)
        if value.axis == axis:
            return self.roots(value.ids)
        self.unite_all(value.ids)
        return self.roots(value.ids[:1]).expand(value.shape[axis] if value.shape else 1)

    def broadcast(self, value: ChannelLayout) -> Ids:
        """Return the standing ids in the full shape of the activation, without using memory."""
        ids = self.roots(value.ids)
        if value.axis is None:
            return ids[0].expand(value.shape)
        rest = [1] * len(value.shape)
        rest[value.axis] = -1
        return ids.view(rest).expand(value.shape)

    def gather(self, full: Ids, prefer: int | None = None) -> ChannelLayout:
        """Return the value whose elements carry `full`.

        Only whole slices along one axis can go, so where ids vary along several axes one of them is
        chosen and what shares a slice is united: `prefer` where it varies; else of two the one that
        leaves more channels (a split into groups and offsets keeps the offsets), of more the first
        (a Linear's outputs seen as channels, height and width).
        """
        if not full.numel():
            return self.frozen_layout(full.shape, "it is empty")
        axes = _varying(full)
        if not axes:
            return ChannelLayout(tuple(full.shape), None, full.reshape(-1)[:1].clone())
        if prefer in axes:
            axis = prefer
        elif len(axes) == 2:
            axis = max(axes, key=lambda a: (_classes(full, a), a))
        else:
            axis = axes[0]
        slices = full.movedim(axis, 0).reshape(full.shape[axis], -1)
        if len(axes) > 1:
            for row in slices:
                self.unite_all(row)
        return ChannelLayout(tuple(full.shape), axis, slices[:, 0].clone())

    def join(self, a: int, b: int) -> None:
        """Make two ids the same channel."""
        a, b = self.find(a), self.find(b)
        if a == b:
            return
        a, b = min(a, b), max(a, b)
        self._parent[b] = a
        reason = self._reason.pop(b, None)
        if reason is not None:
            self._reason.setdefault(a, reason)


def _varying(full: Ids) -> list[int]:
    compact = full[tuple(slice(0, 1) if step == 0 else slice(None) for step in full.stride())]
    return [
        axis
        for axis, size in enumerate(compact.shape)
        if size > 1 and bool((compact != compact.narrow(axis, 0, 1)).any())
    ]


def _classes(full: Ids, axis: int) -> int:
    """Return how many channels are left when every slice along `axis` becomes one channel."""
    local = ChannelIds()
    _, dense = torch.unique(full, return_inverse=True)
    local.new_ids(int(dense.max()) + 1)
    slices = dense.movedim(axis, 0).reshape(dense.shape[axis], -1)
    for row in slices:
        local.unite_all(row)
    return len(torch.unique(local.roots(slices[:, 0])))
