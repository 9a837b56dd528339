"""Channel ids: a union-find of coupled channels, with the reasons of frozen ones."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

Ids = Int[Tensor, "..."]


@dataclass(frozen=True, slots=True, eq=False)
class ChannelLayout:
    """The channel ids of one activation: `ids` along `axis`, constant along every other axis.

    Attributes
    ----------
    shape : tuple of int
        Shape of the activation.
    axis : int or None
        The axis of the channels; None if all elements have the same id.
    ids : Tensor
        One id per position along `axis`, or a single id.
    """

    shape: tuple[int, ...]
    axis: int | None
    ids: Int[Tensor, " _"]


class ChannelIds:
    """A union-find over channel ids; a frozen id freezes all ids united with it."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._reason: dict[int, str] = {}

    def new_ids(self, count: int) -> Int[Tensor, " count"]:
        """Return `count` new ids."""
        start = len(self._parent)
        self._parent.extend(range(start, start + count))
        return torch.arange(start, start + count)

    def find(self, channel: int) -> int:
        """Return the representative of the set of `channel`."""
        parent = self._parent
        while parent[channel] != channel:
            parent[channel] = parent[parent[channel]]
            channel = parent[channel]
        return channel

    def roots(self, ids: Ids) -> Ids:
        """Return the representatives of `ids`, in the same shape."""
        distinct, inverse = torch.unique(ids, return_inverse=True)
        roots = torch.tensor([self.find(channel) for channel in distinct.tolist()])
        return roots.to(torch.int64)[inverse]

    def union(self, first: Ids, second: Ids) -> None:
        """Merge the ids of two tensors of the same shape, element by element."""
        for a, b in zip(first.flatten().tolist(), second.flatten().tolist(), strict=True):
            self.join(a, b)

    def unite_all(self, ids: Ids) -> None:
        """Merge all of `ids`."""
        distinct = torch.unique(ids)
        self.union(distinct[:-1], distinct[1:])

    def freeze(self, ids: Ids, reason: str) -> None:
        """Freeze `ids` for `reason`; an earlier reason is kept."""
        for channel in torch.unique(ids).tolist():
            self._reason.setdefault(self.find(channel), reason)

    def reason(self, channel: int) -> str | None:
        """Return the reason why `channel` is frozen, or None."""
        return self._reason.get(self.find(channel))

    def frozen_layout(self, shape: Iterable[int], reason: str) -> ChannelLayout:
        """Return a layout of `shape` whose channels are frozen."""
        ids = self.new_ids(1)
        self.freeze(ids, reason)
        return ChannelLayout(tuple(shape), None, ids)

    def ids_along(self, value: ChannelLayout, axis: int) -> Int[Tensor, " _"]:
        """Return one id per position along `axis`; ids that share a position are united."""
        axis %= max(len(value.shape), 1)
        if value.axis == axis:
            return self.roots(value.ids)
        self.unite_all(value.ids)
        return self.roots(value.ids[:1]).expand(value.shape[axis] if value.shape else 1)

    def broadcast(self, value: ChannelLayout) -> Ids:
        """Return the representatives in the shape of the activation, as an expanded view."""
        ids = self.roots(value.ids)
        if value.axis is None:
            return ids[0].expand(value.shape)
        rest = [1] * len(value.shape)
        rest[value.axis] = -1
        return ids.view(rest).expand(value.shape)

    def gather(self, full: Ids, prefer: int | None = None) -> ChannelLayout:
        """Return the layout of an activation whose elements have the ids `full`.

        Only slices along one axis can be removed. If ids vary along several axes, one of them is
        selected, and ids in the same slice are united: `prefer`, if ids vary along it; of two axes
        the one that leaves more channels (a split into groups and offsets keeps the offsets);
        otherwise the first (outputs of a linear layer viewed as channels, height and width).
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
        """Merge two ids."""
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
    """Return the number of channels if all ids of a slice along `axis` are united."""
    local = ChannelIds()
    _, dense = torch.unique(full, return_inverse=True)
    local.new_ids(int(dense.max()) + 1)
    slices = dense.movedim(axis, 0).reshape(dense.shape[axis], -1)
    for row in slices:
        local.unite_all(row)
    return len(torch.unique(local.roots(slices[:, 0])))
