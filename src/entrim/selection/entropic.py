"""Selection by the entropic regression: at a penalty, or at a given width."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from entrim.calibration.collect import LayerStatistics
from entrim.config import COUPLINGS, EntropicPenalty
from entrim.entropic.solution import Solution
from entrim.entropic.solve import SolverSettings, live_channels, regress, solve_k, solve_with
from entrim.errors import BadSettingError, DeadInputError
from entrim.graph.channel_graph import Group
from entrim.selection.base import (
    ChannelSelection,
    GroupStatistics,
    GroupTarget,
    group_statistics,
    list_channels,
    name_of,
)
from entrim.selection.baselines import select


@dataclass(frozen=True, slots=True)
class EntropicSelector:
    """Keeps the channels of the entropic solution at a given width, improved by swaps.

    Parameters
    ----------
    coupling : {"joint", "max"}, default "joint"
        "joint" solves for all consumers of a group together; "max" solves for each consumer
        separately, uses the largest importance, and estimates the weights of each again.
    """

    coupling: str = "joint"

    def __post_init__(self) -> None:
        if self.coupling not in COUPLINGS:
            raise BadSettingError(
                f"coupling must be one of {', '.join(map(repr, COUPLINGS))}; got {self.coupling!r}"
            )

    def select(self, statistics: GroupStatistics, k: int) -> Sequence[int]:
        """Return the indices of at most `k` channels; dead channels are not selected."""
        target = GroupTarget(
            channels=statistics.channels, selector=self, width=k, coupling=self.coupling
        )
        return _at_width(target, statistics, k).kept

    def __str__(self) -> str:
        return "entropic"


def select_channels(target: GroupTarget, statistics: GroupStatistics) -> ChannelSelection:
    """Return the selection in one group for its target."""
    try:
        found = _keep_every_slice(_select(target, statistics), statistics)
        width = target.round_up(len(found.kept))
        return found if width == len(found.kept) else _fill(target, found, statistics, width)
    except DeadInputError:
        kept = tuple(range(target.round_up(1)))
        zero = ChannelSelection(kept=kept, reason="all its channels are zero on these images")
        return _keep_every_slice(zero, statistics)


def stronger_penalty(
    statistics: LayerStatistics, groups: Sequence[Group], targets: Mapping[str, GroupTarget]
) -> str:
    """Return the explanation that a penalty prunes nothing, and one that prunes something."""
    for power in range(1, 13):
        for group in groups:
            known = targets[group.name].penalty
            assert known is not None
            eps_w, eps_l2 = known.eps_w * 10.0**power, known.eps_l2 * 10.0**power
            trial = GroupTarget(
                channels=group.channels,
                selector=EntropicSelector(),
                penalty=EntropicPenalty().solver_settings(eps_w, eps_l2),
            )
            found = select_channels(trial, group_statistics(statistics, group))
            if len(found.kept) < group.channels:
                return (
                    "nothing was pruned, because the penalty is too small for this network: "
                    f"try eps_w={eps_w:.0e}, eps_l2={eps_l2:.0e}, which prunes {group.name}"
                )
    return "nothing was pruned at any tested penalty: pass Widths instead"


def _keep_every_slice(found: ChannelSelection, statistics: GroupStatistics) -> ChannelSelection:
    """Return the selection with a channel of every slice of the group; no tensor is then empty.

    A tensor may contain only a part of the group, as after a chunk. Its channel with the largest
    weights is added.
    """
    slices = statistics.group.slices
    if all(not units.isdisjoint(found.kept) for units in slices):
        return found
    channels = statistics.channels
    energy = sum(w.unflatten(1, (channels, -1)).square().sum((0, 2)) for w in statistics.weights)
    strength = torch.as_tensor(energy).expand(channels).tolist()
    kept = set(found.kept)
    for units in slices:
        if kept.isdisjoint(units):
            kept.add(max(units, key=lambda unit: strength[unit]))
    reason = f"{found.reason}; at least one channel of every slice"
    return replace(found, kept=tuple(sorted(kept)), reason=reason)


def _select(target: GroupTarget, statistics: GroupStatistics) -> ChannelSelection:
    if target.width is None:
        return _at_penalty(target, statistics)
    width = target.round_up(target.width)
    if width == target.channels:
        return ChannelSelection(kept=tuple(range(width)), reason="all channels, as requested")
    if isinstance(target.selector, EntropicSelector):
        return _at_width(target, statistics, width)
    kept = _check_kept(target, target.selector.select(statistics, width), width)
    return ChannelSelection(kept=kept, reason=f"{name_of(target.selector)}, at this width")


def _at_penalty(target: GroupTarget, statistics: GroupStatistics) -> ChannelSelection:
    settings = target.penalty or SolverSettings()
    live = statistics.live_moments
    if target.coupling == "max" and len(live) > 1:
        return _by_maximum(target, statistics, [solve_with(m, settings) for m in live])
    found = solve_with(list(statistics.moments), settings)
    return ChannelSelection.from_solution(found, str(found.status), target.needs_solution)


def _at_width(target: GroupTarget, statistics: GroupStatistics, width: int) -> ChannelSelection:
    moments, live = list(statistics.moments), statistics.live_moments
    width = min(width, live_channels(moments))
    if target.coupling == "max" and len(live) > 1:
        parts = [solve_k(m, k=min(width, live_channels([m]))) for m in live]
        return _by_maximum(replace(target, width=width), statistics, parts)
    if target.needs_solution:
        found = solve_k(moments, k=width)
        return ChannelSelection.from_solution(found, "the largest w at this width", True)
    kept = select(moments, k=width, method="entropic", weight=list(statistics.weights))
    return ChannelSelection(kept=tuple(kept.tolist()), reason="entropic, at this width")


def _by_maximum(
    target: GroupTarget, statistics: GroupStatistics, parts: Sequence[Solution]
) -> ChannelSelection:
    """Return the channels with the largest importance for any consumer, at most the width.

    Their weights for each consumer are estimated again if they are needed, with the largest ridge
    of the parts.
    """
    w = torch.stack([part.w for part in parts]).amax(0)
    most = target.channels if target.width is None else target.width
    kept = w.topk(min(most, int((w > 0).sum()))).indices.sort().values
    largest = torch.zeros_like(w).index_copy(0, kept, w[kept])
    eps_l2 = max(part.eps_l2 for part in parts)
    return ChannelSelection(
        kept=tuple(kept.tolist()),
        reason="the largest w of any consumer",
        w=w,
        ridge_solves=sum(part.ridge_solves for part in parts),
        parts=tuple(regress(statistics.moments, largest, eps_l2)) if target.needs_solution else (),
    )


def _fill(
    target: GroupTarget, found: ChannelSelection, statistics: GroupStatistics, width: int
) -> ChannelSelection:
    """Return the selection filled up to `width`: the next channels by w, then by index."""
    moments = list(statistics.moments)
    more: Int[Tensor, " k"] = torch.tensor([], dtype=torch.int64)
    live = live_channels(moments)
    if found.parts and live > len(found.kept):
        found = _at_width(replace(target, width=width), statistics, width)
    elif isinstance(target.selector, EntropicSelector) and live > len(found.kept):
        more = solve_k(moments, k=min(width, live)).kept
    candidates = [*found.kept, *more.tolist(), *range(target.channels)]
    kept = tuple(sorted(list(dict.fromkeys(candidates))[:width]))
    return replace(found, kept=kept, reason=f"{found.reason}; rounded up to {width}")


def _check_kept(target: GroupTarget, kept: Any, width: int) -> tuple[int, ...]:
    """Return the result of a selector in ascending order; raise an error if it is invalid."""
    name, channels = name_of(target.selector), list_channels(target.selector, kept)
    found = sorted(set(channels))
    if len(found) != len(channels) or not 1 <= len(found) <= width:
        raise BadSettingError(
            f"{name} must return {width} distinct channels, got {len(channels)} channels with "
            f"{len(found)} distinct indices"
        )
    if found[0] < 0 or found[-1] >= target.channels:
        raise BadSettingError(
            f"{name} must return channels from 0 to {target.channels - 1}, got {found}"
        )
    return tuple(found)
