"""Interfaces of selectors, and the statistics, targets and selections of groups."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import index
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from entrim.calibration.collect import LayerStatistics
from entrim.entropic.moments import Moments
from entrim.entropic.solution import JointSolution, Part
from entrim.entropic.solve import SolverSettings
from entrim.errors import BadSettingError
from entrim.graph.channel_graph import Group


@dataclass(frozen=True, kw_only=True)
class GroupStatistics:
    """The statistics that a selector may use for one group of channels.

    Attributes
    ----------
    group : Group
        The group: its name, the layers that produce its channels, their number.
    moments : tuple of Moments
        Second moments of the inputs and outputs of each layer that consumes the channels.
    weights : tuple of Tensor
        The weights of each of these layers on the channels, (outputs, channels * columns).
    generator : torch.Generator
        Source of random numbers, seeded by the run and the group.
    """

    group: Group
    moments: tuple[Moments, ...]
    weights: tuple[Tensor, ...]
    generator: torch.Generator

    @property
    def channels(self) -> int:
        """The number of channels."""
        return self.group.channels

    @cached_property
    def live_moments(self) -> list[Moments]:
        """The moments of the consumers whose inputs are not all zero."""
        return [m for m in self.moments if bool((m.gram_sum.diagonal()[1:] > 0).any())]


def group_statistics(statistics: LayerStatistics, group: Group) -> GroupStatistics:
    """Return the collected statistics of one group, as selectors use them."""
    return GroupStatistics(
        group=group,
        moments=tuple(statistics.moments(group)),
        weights=tuple(statistics.weights(group)),
        generator=statistics.forward.drawing(f"choice of {group.name}"),
    )


@runtime_checkable
class Selector(Protocol):
    """Selects the channels of a group to keep at a given width.

    A selector with nested selections may also have a method `rank(statistics)` that returns all
    channels in the order of removal; a budget then uses this ranking.
    """

    def select(self, statistics: GroupStatistics, k: int) -> Sequence[int] | Tensor:
        """Return the indices of `k` channels to keep.

        Parameters
        ----------
        statistics : GroupStatistics
            Second moments and weights of the layers that consume the group.
        k : int
            Number of channels to keep.

        Returns
        -------
        sequence of int or Tensor
            Distinct indices from 0 to `statistics.channels - 1`.
        """
        ...


@runtime_checkable
class RankingSelector(Selector, Protocol):
    """A selector with nested selections."""

    def rank(self, statistics: GroupStatistics) -> Sequence[int] | Tensor:
        """Return all channels in the order of removal."""
        ...


def name_of(selector: Selector) -> str:
    """Return the name of a selector in messages and records: its `str`, else its class."""
    own = type(selector).__str__ is not object.__str__
    return str(selector) if own else type(selector).__name__


def list_channels(selector: Selector, channels: Any) -> list[int]:
    """Return the result of a selector as integers; raise an error for other values."""
    try:
        return [index(channel) for channel in channels]
    except TypeError as error:
        raise BadSettingError(
            f"{name_of(selector)} must return channel indices as integers, got "
            f"{type(channels).__name__}"
        ) from error


def rank_channels(selector: RankingSelector, statistics: GroupStatistics) -> list[int]:
    """Return the ranking of a selector; raise an error if it does not contain every channel."""
    found = list_channels(selector, selector.rank(statistics))
    if sorted(found) != list(range(statistics.channels)):
        raise BadSettingError(
            f"{name_of(selector)} ranked {len(found)} channels of {statistics.group.name}: return "
            f"each of its {statistics.channels} channels once"
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTarget:
    """The target of one group: a width, or a penalty that determines it."""

    channels: int
    selector: Selector
    width: int | None = None
    penalty: SolverSettings | None = None
    coupling: str = "joint"
    round_to: int = 1
    needs_solution: bool = False
    """Whether the weights of the entropic solution are used."""

    def round_up(self, width: int) -> int:
        """Return `width` rounded up to a multiple of `round_to`, at most all channels."""
        return min(self.channels, -(-width // self.round_to) * self.round_to)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChannelSelection:
    """The kept channels of a group, and the reason."""

    kept: tuple[int, ...]
    reason: str
    w: Tensor | None = None
    loss: float | None = None
    optimality_residual: float | None = None
    trace: tuple[float, ...] = ()
    ridge_solves: int = 0
    parts: tuple[Part, ...] = ()
    """The weights for each consumer, if those of the entropic solution are used."""

    @classmethod
    def from_solution(
        cls, found: JointSolution, reason: str, needs_solution: bool
    ) -> "ChannelSelection":
        """Return the channels that a solve kept, with its weights if they are needed."""
        return cls(
            kept=tuple(found.kept.tolist()),
            reason=reason,
            w=found.w,
            loss=found.loss,
            optimality_residual=found.optimality_residual,
            trace=found.trace,
            ridge_solves=found.ridge_solves,
            parts=tuple(Part(p.kept, p.weight, p.bias) for p in found.parts if needs_solution),
        )


@dataclass(frozen=True, slots=True)
class ChannelRanking:
    """Nested selections in one group: the last k channels of `order` are kept at width k."""

    group: Group
    order: tuple[int, ...]
    min_width: int = 1
    """With fewer channels, a tensor would be empty."""

    @classmethod
    def of(cls, group: Group, order: Sequence[int]) -> "ChannelRanking":
        """Return the ranking that removes channels in `order`, but keeps one of each slice.

        A tensor may contain only a part of the group, as after a slice or a chunk.
        """
        last = {max(units, key=order.index) for units in group.slices}
        others = [unit for unit in order if unit not in last]
        return cls(group, (*others, *sorted(last, key=order.index)), len(last))

    def kept(self, width: int) -> tuple[int, ...]:
        """Return the channels that are kept at `width`."""
        return tuple(sorted(self.order[len(self.order) - width :]))
