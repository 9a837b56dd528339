"""Allocate channels to groups: rank them, measure sensitivities, select a point of the greedy path.

`AllocationProblem` contains sensitivity curves and costs, from which the path follows. The
`Allocator` computes them for a network. For limits of latency, error or agreement, the networks at
points of the path are reconstructed and measured.

The sensitivity of a group at a width is measured with the other groups intact, and sensitivities
are assumed to be additive. In each step, the group with the smallest increase of divergence per
saved cost becomes narrower, or a residual block is removed: with convex curves and without blocks
this is optimal for every budget on the path.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from itertools import chain, pairwise
from typing import TypeVar

from torch import Tensor, nn

from entrim.allocation.costs import SECONDS, Costs
from entrim.allocation.latency import OperationTimes, with_latency
from entrim.allocation.sensitivity import (
    OutputChange,
    SensitivityAnalyzer,
    interpolate,
    measured_widths,
)
from entrim.calibration.collect import LayerStatistics
from entrim.calibration.consumers import BoundConsumer
from entrim.calibration.data import CalibrationData
from entrim.callbacks import Progress
from entrim.config import SELECTION_HOLDOUT, SIZES, Budget, Calibration, Cost
from entrim.distributed.world import World
from entrim.errors import BadSettingError, BudgetError, CalibrationWarning, RolledBackWarning
from entrim.graph.channel_graph import ChannelGraph, Group, ResidualBlock
from entrim.graph.eager import ExampleInputs
from entrim.metrics import AgreementBound, Comparison, Kind, compare, images_needed, min_images
from entrim.planning.workload import ERROR_POINTS, LATENCY_POINTS, REPEATS, Work, Workload
from entrim.reconstruction.layer import DEFAULT_RIDGE
from entrim.selection.base import (
    ChannelRanking,
    ChannelSelection,
    GroupTarget,
    RankingSelector,
    Selector,
    group_statistics,
    name_of,
    rank_channels,
)
from entrim.selection.elimination import EliminationSelector
from entrim.selection.entropic import select_channels
from entrim.storage.checkpoint import CheckpointStore
from entrim.surgery.measure import measure
from entrim.surgery.plan import Plan
from entrim.surgery.prune import compatible_groups, prune

T = TypeVar("T")
TIMED_SHARE = 0.25
"""Share of the channels in the narrow network that is timed for the estimate of the latency."""
HALF_IMAGES = 50
"""Minimum number of hold-out images on which widths are selected for `max_error`, and of those on
which the result is measured."""
BOTH = ("params", "macs")
"""The costs that a path reduces once the budget holds."""
KNEE = 10.0
"""Trade-off weight: removing 1 % of the network may cost 0.1 % of the divergence of an
uninformative network."""
AGREEMENT_POINTS = 20
"""Maximum number of points that are tested for an agreement."""
MAX_ERROR_POINTS = 8
"""Number of further points that are evaluated if the first one exceeds `max_error`."""
STEPS = 64
"""Number of steps in which a group becomes narrower; slack is filled by single channels."""


@dataclass(frozen=True, slots=True)
class SensitivityCurve:
    """The sensitivity of the outputs to the width of one group, as a convex function."""

    widths: tuple[int, ...]
    """In ascending order; the last is the full width."""
    values: tuple[int | float, ...]

    @classmethod
    def of(cls, measured: Mapping[int, int | float]) -> "SensitivityCurve":
        """Return the lower convex hull of the measured points."""
        hull: list[tuple[int, float]] = []
        for point in sorted(measured.items()):
            while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], point):
                hull.pop()
            hull.append(point)
        widths, values = zip(*hull, strict=True)
        return cls(widths, values)

    def at(self, width: int) -> float:
        """Return the sensitivity at `width` by linear inter- and extrapolation."""
        pairs = list(zip(self.widths, self.values, strict=True))
        for left, right in pairwise(pairs):
            if width <= right[0]:
                return right[1] + _slope(left, right) * (width - right[0])
        return self.values[-1]


@dataclass(frozen=True, slots=True)
class RemovableBlock:
    """A residual block that may be removed, and the sensitivity of the outputs to it."""

    groups: tuple[str, ...]
    """The groups inside; their width is 0 without the block."""
    divergence: float


@dataclass(frozen=True, slots=True)
class AllocationPoint:
    """The widths of all groups, their costs and the predicted divergence of the outputs."""

    widths: Mapping[str, int]
    """0 for the groups inside of removed blocks."""
    costs: Mapping[str, int | float]
    divergence: int | float


@dataclass(frozen=True, kw_only=True)
class AllocationProblem:
    """Widths to allocate: a sensitivity curve for each group, and the costs of all widths."""

    costs: Costs
    curves: Mapping[str, SensitivityCurve]
    """Groups without one keep all channels."""
    full_widths: Mapping[str, int]
    min_widths: Mapping[str, int] = field(default_factory=dict)
    """The minimum width of groups that need more than one channel."""
    round_to: int = 1
    blocks: Mapping[str, RemovableBlock] = field(default_factory=dict)
    """Residual blocks that may be removed."""
    extra_costs: Mapping[str, Cost] = field(default_factory=dict)
    """User-defined costs, by name."""

    @cached_property
    def full_costs(self) -> dict[str, int | float]:
        """The costs of the original network."""
        found = self.costs_at(self.full_widths)
        return {name: round(value) if name in SIZES else value for name, value in found.items()}

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the original network."""
        return {kind: round(self.full_costs[kind]) for kind in SIZES}

    def costs_at(self, widths: Mapping[str, int]) -> dict[str, int | float]:
        """Return all costs of a network with these widths."""
        extra = {name: float(cost(widths)) for name, cost in self.extra_costs.items()}
        return {**self.costs.at(widths), **extra}

    def min_width(self, name: str) -> int:
        """Return the minimum width of a group."""
        if name not in self.curves:
            return self.full_widths[name]
        lowest = -(-self.min_widths.get(name, 1) // self.round_to) * self.round_to
        return min(lowest, self.full_widths[name])

    def narrower(self, name: str, width: int) -> int:
        """Return the next narrower width on a path."""
        step = max(1, self.full_widths[name] // STEPS)
        return max(self.min_width(name), (width - step) // self.round_to * self.round_to)

    def wider(self, name: str, width: int) -> int:
        """Return the next larger multiple of `round_to`."""
        return min(self.full_widths[name], (width // self.round_to + 1) * self.round_to)

    def check_feasible(self, limits: Mapping[str, int | float]) -> None:
        """Raise a BudgetError if even the narrowest network exceeds a limit."""
        narrow = {name: self.min_width(name) for name in self.full_widths}
        lowest = self.costs_at(reduce(self._without, self.blocks, narrow))
        for kind in exceeded(lowest, limits):
            value = round(lowest[kind]) if kind in SIZES else lowest[kind]
            raise BudgetError.size(SIZES.get(kind, kind), limits[kind], value)

    def greedy_path(
        self, limits: Mapping[str, int | float], then: Sequence[str] = ()
    ) -> list[AllocationPoint]:
        """Return the points from the original to the first that satisfies all `limits`.

        With `then`, the path continues to the narrowest network, reducing these kinds of cost.
        """
        self.check_feasible(limits)
        points = [self._point(dict(self.full_widths))]
        while kinds := (exceeded(points[-1].costs, limits) or list(then)):
            widths = self._cheapest(points[-1].widths, kinds)
            if widths is None:
                break
            points.append(self._point(widths))
        return points

    def fill_slack(
        self, point: AllocationPoint, limits: Mapping[str, int | float]
    ) -> AllocationPoint:
        """Return `point` with groups widened while all `limits` hold, the most sensitive first."""
        widths = dict(point.widths)
        open_ = {name for name in self.curves if 0 < widths[name] < self.full_widths[name]}
        while open_:
            relief = {
                n: self._divergence(n, self.wider(n, widths[n]), widths[n]) for n in sorted(open_)
            }
            best = max(relief, key=lambda n: relief[n])
            trial = {**widths, best: self.wider(best, widths[best])}
            if exceeded(self.costs_at(trial), limits):
                open_.remove(best)
            else:
                widths = trial
                open_ -= {best} if trial[best] == self.full_widths[best] else set()
        return self._point(widths)

    def _point(self, widths: dict[str, int]) -> AllocationPoint:
        divergence = self._divergence_of(self.curves, widths) + sum(
            block.divergence for block in self.blocks.values() if _is_removed(block, widths)
        )
        return AllocationPoint(widths, self.costs_at(widths), divergence)

    def _divergence(self, name: str, wide: int, narrow: int) -> float:
        return self.curves[name].at(narrow) - self.curves[name].at(wide)

    def _divergence_of(self, names: Iterable[str], widths: Mapping[str, int]) -> float:
        """Return the divergence of some groups, without those in removed blocks."""
        return sum((self.curves[name].at(widths[name]) for name in names if widths[name]), 0.0)

    def _without(self, widths: Mapping[str, int], block: str) -> dict[str, int]:
        return {**widths, **dict.fromkeys(self.blocks[block].groups, 0)}

    def _cheapest(self, widths: Mapping[str, int], kinds: Sequence[str]) -> dict[str, int] | None:
        """Return the next widths: the smallest increase of divergence per saved cost."""
        best, lowest = None, math.inf
        for name in self.curves:
            if widths[name] > self.min_width(name):
                trial = {**widths, name: self.narrower(name, widths[name])}
                added = self._divergence(name, widths[name], trial[name])
                price = self._price([name], widths, trial, added, kinds)
                if best is None or price < lowest:
                    best, lowest = trial, price
        for name, block in self.blocks.items():
            if not _is_removed(block, widths):
                trial = self._without(widths, name)
                added = block.divergence - self._divergence_of(block.groups, widths)
                price = self._price(block.groups, widths, trial, added, kinds)
                if best is None or price < lowest:
                    best, lowest = trial, price
        return best

    def _price(
        self,
        names: Sequence[str],
        widths: Mapping[str, int],
        trial: Mapping[str, int],
        added: float,
        kinds: Sequence[str],
    ) -> float:
        """Return the divergence per saved cost if the groups `names` change to `trial`."""
        now, then = self._costs_of(names, widths), self._costs_of(names, trial)
        saved = sum((now[kind] - then[kind]) / (self.full_costs[kind] or 1) for kind in kinds)
        return added / saved if saved > 0 else math.inf

    def _costs_of(self, names: Sequence[str], widths: Mapping[str, int]) -> dict[str, int | float]:
        """Return the costs that depend on some groups."""
        extra = {key: float(cost(widths)) for key, cost in self.extra_costs.items()}
        return {**self.costs.of_groups(names, widths), **extra}


def _is_removed(block: RemovableBlock, widths: Mapping[str, int]) -> bool:
    return all(widths[name] == 0 for name in block.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedPoint:
    """The selected point of a path, and the reason."""

    path: Sequence[AllocationPoint]
    """All points, from the original to the narrowest network."""
    at: AllocationPoint
    reason: str
    seconds: float | None = None
    """Measured latency, if it is limited."""
    bound: AgreementBound | None = None
    """Agreement on hold-out images, if it is limited."""
    tested: int = 0
    """Number of points that were tested for the agreement."""


def select_point(
    problem: AllocationProblem,
    budget: Budget | None,
    limits: Mapping[str, int | float],
    uninformative: float,
    *,
    latency_of: Callable[[AllocationPoint], float],
    error_of: Callable[[AllocationPoint], float],
    agreement_of: Callable[[AllocationPoint], AgreementBound],
) -> SelectedPoint:
    """Return the first point within the budget; without a budget, the knee of the path.

    Sizes and costs, as absolute `limits`, determine the first feasible point; latency and error are
    then evaluated at this and the following points, and the agreement at this point or, without
    other limits, at points of the path. `uninformative` is the divergence of outputs
    that do not depend on the image.
    """
    if budget is None:
        path = problem.greedy_path({}, then=BOTH)
        at = knee(problem, path, uninformative)
        return SelectedPoint(path=path, at=at, reason=f"at the knee: {_shares(problem, at)}")
    timed = (SECONDS,) if SECONDS in problem.full_costs else ("macs",)
    path = problem.greedy_path(limits, then=BOTH if budget.latency is None else timed)
    first = next(n for n, point in enumerate(path) if not exceeded(point.costs, limits))
    at = problem.fill_slack(path[first], limits) if limits else path[0]
    reasons = [f"at most {limit:,} {SIZES.get(kind, kind)}" for kind, limit in limits.items()]
    seconds = None
    if budget.latency is not None:
        seconds = latency_of(at)
        if seconds > budget.latency:
            first, seconds = _first_fast(path, first, budget.latency, latency_of)
            at = path[first]
            reasons.append(f"{1e3 * seconds:.3g} ms of {1e3 * budget.latency:.3g}")
    if budget.max_error is not None:
        if limits or budget.latency is not None:
            widest = at
            at, error = _first_accurate([at, *path[first + 1 :]], budget.max_error, error_of)
            if seconds is not None and at is not widest:
                seconds = latency_of(at)
        else:
            at, error = _last_accurate(path, budget.max_error, error_of)
        reasons.append(f"error {error:.3g} of {budget.max_error:.3g}")
    bound, tested = None, 0
    if budget.agreement is not None:
        steps = agreement_points(problem, path)
        if limits or budget.latency is not None:
            bound, tested = _check_agreement(problem, at, steps, budget, agreement_of), 1
        else:
            at, bound, tested = _last_agreeing(steps, budget, agreement_of)
        reasons.append(f"agreement at least {bound.low:.3g} of {budget.agreement:.3g}")
    reason = "; ".join(reasons)
    return SelectedPoint(
        path=path, at=at, reason=reason, seconds=seconds, bound=bound, tested=tested
    )


def knee(
    problem: AllocationProblem, path: Sequence[AllocationPoint], uninformative: float
) -> AllocationPoint:
    """Return the point with the best trade-off between saved cost and divergence."""
    scale = KNEE / uninformative if uninformative > 0 else KNEE

    def value(point: AllocationPoint) -> float:
        return 1 - _cost_share(problem, point) - scale * point.divergence

    return max(path, key=value)


def agreement_points(
    problem: AllocationProblem, path: Sequence[AllocationPoint]
) -> list[AllocationPoint]:
    """Return at most `AGREEMENT_POINTS` points of a path, evenly spaced in saved cost.

    They depend on the fitting images only. The original network is not among them.
    """
    shares = [1 - _cost_share(problem, point) for point in path]
    steps = [max(shares) * k / AGREEMENT_POINTS for k in range(1, AGREEMENT_POINTS + 1)]
    numbers = [next(n for n, s in enumerate(shares) if s >= step) for step in steps]
    return [path[number] for number in dict.fromkeys(numbers) if number]


def _last_agreeing(
    points: Sequence[AllocationPoint],
    budget: Budget,
    agreement_of: Callable[[AllocationPoint], AgreementBound],
) -> tuple[AllocationPoint, AgreementBound, int]:
    """Return the last point before the first whose agreement is not shown, its bound, and tests.

    Testing fixed points in a fixed order up to the first failure keeps the confidence: a wrong
    point is returned only if the first wrong one on the path passes its test.
    """
    assert budget.agreement is not None
    passed: tuple[AllocationPoint, AgreementBound] | None = None
    tested = 0
    for point in points:
        bound, tested = agreement_of(point), tested + 1
        if bound.low < budget.agreement:
            if passed is None:
                raise _not_shown(budget, bound)
            break
        passed = point, bound
    if passed is None:
        raise BudgetError("no channel can be pruned: include more groups (include=, exclude=)")
    return *passed, tested


def _check_agreement(
    problem: AllocationProblem,
    at: AllocationPoint,
    points: Sequence[AllocationPoint],
    budget: Budget,
    agreement_of: Callable[[AllocationPoint], AgreementBound],
) -> AgreementBound:
    """Return the bound of the agreement at a point; raise a BudgetError if it is too low."""
    assert budget.agreement is not None
    bound = agreement_of(at)
    if bound.low >= budget.agreement:
        return bound
    larger = [point for point in points if point.divergence < at.divergence]
    try:
        possible = _last_agreeing(larger, budget, agreement_of)[0]
    except BudgetError:
        raise _not_shown(budget, bound) from None
    shares = f"the agreement is possible with {_shares(problem, possible)}"
    raise BudgetError.disagreement(budget.agreement, bound.low, shares)


def _not_shown(budget: Budget, bound: AgreementBound) -> BudgetError:
    assert budget.agreement is not None
    needed = images_needed(bound.share, budget.agreement, budget.confidence)
    return BudgetError.agreement(
        budget.agreement, budget.confidence, bound.share, bound.images, needed
    )


def _cost_share(problem: AllocationProblem, point: AllocationPoint) -> float:
    full = problem.sizes
    return sum(point.costs[kind] / max(1, full[kind]) for kind in BOTH) / len(BOTH)


def _first_fast(
    path: Sequence[AllocationPoint],
    first: int,
    limit: float,
    latency_of: Callable[[AllocationPoint], float],
) -> tuple[int, float]:
    """Return the first point from `first` on within `limit`, by bisection, and its latency."""
    last = latency_of(path[-1])
    if last > limit:
        raise BudgetError.latency(limit, last)
    known = {len(path) - 1: last}

    def holds(number: int) -> bool:
        known[number] = latency_of(path[number])
        return known[number] <= limit

    found = _bisect(first, len(path) - 1, holds)
    return found, known[found]


def _first_accurate(
    points: Sequence[AllocationPoint], limit: float, error_of: Callable[[AllocationPoint], float]
) -> tuple[AllocationPoint, float]:
    """Return the first evaluated point whose error is within `limit`.

    The error may decrease along a path, so a few later points are evaluated, too.
    """
    rest = points[1:]
    some = [points[0], *rest[:: max(1, -(-len(rest) // MAX_ERROR_POINTS))]]
    lowest = math.inf
    for point in some:
        error = error_of(point)
        if error <= limit:
            return point, error
        lowest = min(lowest, error)
    raise BudgetError.contradiction(limit, lowest)


def _last_accurate(
    path: Sequence[AllocationPoint], limit: float, error_of: Callable[[AllocationPoint], float]
) -> tuple[AllocationPoint, float]:
    """Return the last point whose error is within `limit`, assuming that it increases."""
    known = {0: 0.0}

    def fails(number: int) -> bool:
        known[number] = error_of(path[number])
        return known[number] > limit

    found = _bisect(0, len(path), fails) - 1
    return path[found], known[found]


def _bisect(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the first number from `low` on for which `holds` is true, else `high`."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _shares(problem: AllocationProblem, point: AllocationPoint) -> str:
    parts = [f"{point.costs[k] / max(1, problem.sizes[k]):.0%} of the {SIZES[k]}" for k in BOTH]
    return ", ".join(parts)


def exceeded(costs: Mapping[str, int | float], limits: Mapping[str, int | float]) -> list[str]:
    """Return the kinds of cost that are above their limit."""
    return [
        kind
        for kind, limit in limits.items()
        if (round(costs[kind]) if kind in SIZES else costs[kind]) > limit
    ]


def _slope(left: tuple[int, float], right: tuple[int, float]) -> float:
    return (right[1] - left[1]) / (right[0] - left[0])


@dataclass(frozen=True, slots=True)
class Selection:
    """The kept channels of every targeted group, and the targets that they satisfy."""

    channels: Mapping[str, ChannelSelection]
    targets: Mapping[str, GroupTarget]
    point: SelectedPoint | None = None
    """The selected point of the allocation path, under a budget."""


@dataclass(kw_only=True, eq=False)
class Allocator:
    """Allocates the widths of one network under any number of budgets.

    Rankings, costs and sensitivities do not depend on the budget: each is computed once, when it is
    first needed. Finished units of work are kept in `checkpoints`.
    """

    model: nn.Module
    example_inputs: ExampleInputs
    statistics: LayerStatistics
    groups: Sequence[Group]
    """The groups that can be pruned."""
    selector: Selector
    calibration: Calibration
    ridge: float | None
    """The ridge of the refits that measure a sensitivity.

    `DEFAULT_RIDGE` if it is None, also for layers with few rows: unlike with guarded refits,
    divergences then rise as groups become narrower.
    """
    kinds: tuple[Kind, ...]
    """What the outputs of the network are."""
    holdout: CalibrationData
    workload: Workload
    progress: Progress
    checkpoints: CheckpointStore
    collect: Callable[[Iterable[BoundConsumer]], None]
    """Collects the Gram matrices of layers that are missing."""
    reconstruct: Callable[..., dict[str, Tensor]]
    """Returns all tensors of the network on selected channels, refitted on the images `forward`."""
    plan: Callable[[Mapping[str, ChannelSelection]], Plan]
    """Returns the plan of the network on selected channels, with checkpoints and progress."""
    world: World = field(default_factory=World)
    """The ranks of the run: each ranks and measures some of the groups."""
    first_agreement: Budget | None = None
    """The first agreement target, the only one that the hold-out images guarantee."""
    errors: dict[tuple[tuple[str, int], ...], float] = field(default_factory=dict, init=False)
    """The measured errors, by widths."""
    evaluated: dict[str, int] = field(default_factory=dict, init=False)
    """The number of networks whose latency, error or agreement was measured."""

    @property
    def graph(self) -> ChannelGraph:
        """The coupled and frozen channels of the network."""
        return self.statistics.graph

    @property
    def finished_stages(self) -> set[str]:
        """The stages that a further budget does not repeat."""
        known = {"rankings": "select", "curves": "sensitivity"}
        return {stage for name, stage in known.items() if name in self.__dict__}

    def allocate(self, budget: Budget | None, targets: Mapping[str, GroupTarget]) -> Selection:
        """Return the channels to keep within `budget`, or at the knee of the trade-off."""
        rankings = self.rankings
        problem = AllocationProblem(
            costs=self.costs if budget is None or budget.latency is None else self.timed_costs,
            curves={
                name: SensitivityCurve((ranking.group.channels,), (0.0,))
                for name, ranking in rankings.items()
            },
            full_widths={group.name: group.channels for group in self.graph.groups},
            min_widths={name: ranking.min_width for name, ranking in rankings.items()},
            round_to=1 if budget is None else budget.round_to,
            extra_costs={} if budget is None else {k: c for k, (c, _) in budget.costs.items()},
        )
        limits = {} if budget is None else budget.limits(problem.sizes)
        blocks = self.removable_blocks if budget is not None and budget.removes_blocks else {}
        problem = replace(problem, blocks=blocks)
        problem.check_feasible(limits)  # before the expensive part
        problem = replace(problem, curves=self.curves)
        if budget is not None and budget.agreement is not None and self.first_agreement is None:
            self.first_agreement = budget
        self.evaluated.clear()
        with self.progress.stage("allocate"):
            point = select_point(
                problem,
                budget,
                limits,
                self.world.from_root(self.analyzer.uninformative_divergence),
                latency_of=self._latency_at,
                error_of=partial(self._error_at, targets),
                agreement_of=partial(self._agreement_at, targets, budget),
            )
            channels = self._selection_at(point.at, targets, point.reason)
            self._report(problem, point)
        settled = {n: replace(targets[n], width=len(c.kept)) for n, c in channels.items()}
        return Selection(channels, settled, point)

    def _report(self, problem: AllocationProblem, point: SelectedPoint) -> None:
        total = len(problem.curves) + 1
        for done, (name, curve) in enumerate(problem.curves.items(), 1):
            width = point.at.widths[name]
            kept = f"{width} of {problem.full_widths[name]}, divergence {curve.at(width):.2g}"
            self.progress.step("allocate", name, done, total, kept, is_final=True)
        self.progress.step("allocate", type(self.model).__name__, total, total, point.reason)

    # Rankings and costs

    @cached_property
    def rankings(self) -> dict[str, ChannelRanking]:
        """The removal order of all groups that can be pruned."""
        groups, stored = self.groups, self.checkpoints
        orders = {group.name: stored.get(_ranked_keys(group.name)[0]) for group in groups}
        measured = {group.name: stored.has(_ranked_keys(group.name)[1]) for group in groups}
        restored = {name: order for name, order in orders.items() if order is not None}
        own = self._own(group.name for group in groups)
        self._collect(g for g in own if g.name not in restored or not measured[g.name])
        targets = {g.name: GroupTarget(channels=g.channels, selector=self.selector) for g in groups}
        report = self._steps("select", self.workload.selection(groups, targets))
        with self.progress.stage("select"):
            ranked = ((g.name, self._rank(g)) for g in own if g.name not in restored)
            for name, order in chain(restored.items(), self.world.exchange(ranked)):
                key = _ranked_keys(name)[0]
                if name not in restored:
                    stored.put(key, order)
                orders[name] = order
                report(name, "channels ranked", key)
            found = {group.name: ChannelRanking.of(group, orders[group.name]) for group in groups}
            narrow = {name: ranking.kept(ranking.min_width) for name, ranking in found.items()}
            names = compatible_groups(self.model, narrow, self.example_inputs, self.graph)
        return {name: ranking for name, ranking in found.items() if name in names}

    def _rank(self, group: Group) -> list[int]:
        selector = self.selector
        if not isinstance(selector, RankingSelector):
            selector = EliminationSelector()
        return rank_channels(selector, group_statistics(self.statistics, group))

    @cached_property
    def costs(self) -> Costs:
        """The sizes of the network as a function of its widths."""
        forward = self.statistics.forward
        macs = measure(self.model, self.example_inputs, repeats=2).macs
        images = forward.batch_sizes[0]
        return Costs.of(self.model, self.graph, forward.programs[0], macs, images)

    @cached_property
    def timed_costs(self) -> Costs:
        """The sizes of the network and its estimated latency as a function of its widths."""
        widths = {
            group.name: max(self.rankings[group.name].min_width, int(TIMED_SHARE * group.channels))
            if group.name in self.rankings
            else group.channels
            for group in self.graph.groups
        }
        kept = {name: ranking.kept(widths[name]) for name, ranking in self.rankings.items()}

        def measure_times() -> list[OperationTimes]:
            small = prune(self.model, Plan(kept), self.example_inputs, graph=self.graph).model
            return [OperationTimes.of(m, self.example_inputs) for m in (self.model, small)]

        with self.progress.stage("allocate"):
            work = partial(self.world.from_root, measure_times)
            times = self.checkpoints.get_or_compute("seconds of all operations", work)
        return with_latency(self.costs, self.graph, times[0], times[1], widths)

    # Sensitivities

    @cached_property
    def analyzer(self) -> SensitivityAnalyzer:
        """Measures how much pruned groups change the outputs, on some of the images."""
        rankings = self.rankings
        images, share = self.workload.sensitivity_images(len(rankings))
        measured = self.statistics.forward.first(images)
        return SensitivityAnalyzer(
            measured,
            self.graph,
            self.statistics.consumers_of(*(ranking.group for ranking in rankings.values())),
            self.statistics.store,
            DEFAULT_RIDGE if self.ridge is None else self.ridge,
            self.calibration.sensitivity,
            self.calibration.outputs,
            narrow_batches=math.ceil(share * len(measured.programs)),
        )

    @cached_property
    def curves(self) -> dict[str, SensitivityCurve]:
        """The sensitivity curve of every ranked group."""
        rankings, found = self.rankings, {}
        images, _ = self.workload.sensitivity_images(len(rankings))
        works = {
            name: self.workload.sensitivity(ranking.group, self._measured_widths(name), images)
            for name, ranking in rankings.items()
        }
        report = self._steps("sensitivity", works)
        with self.progress.stage("sensitivity"):
            for name, values in self._divergences():
                measured = dict(zip(self._measured_widths(name), values, strict=True))
                found[name] = SensitivityCurve.of(
                    interpolate(measured, rankings[name].group.channels)
                )
                detail = f"divergence up to {max(values, default=0.0):.2g}"
                report(name, detail, _ranked_keys(name)[1])
        return {name: found[name] for name in rankings}

    def _divergences(self) -> Iterator[tuple[str, list[float]]]:
        """Yield the divergence of each ranked group at its measured widths, restored ones first."""
        rankings = self.rankings
        found = {name: self.checkpoints.get(_ranked_keys(name)[1]) for name in rankings}
        yield from ((name, values) for name, values in found.items() if values is not None)
        own = self._own(name for name, values in found.items() if values is None)
        rest = {
            group.name: [
                rankings[group.name].kept(width) for width in self._measured_widths(group.name)
            ]
            for group in own
        }
        changes: Iterator[tuple[str, list[OutputChange]]] = iter(())
        self._collect(own)
        if own:
            changes = self.analyzer.sweep(rest, held={})
        for name, measured in self.world.exchange(changes):
            values = [change.divergence for change in measured]
            self.checkpoints.put(_ranked_keys(name)[1], values)
            yield name, values

    def _measured_widths(self, name: str) -> list[int]:
        return measured_widths(self.rankings[name], self.calibration.sensitivity_widths)

    @cached_property
    def removable_blocks(self) -> dict[str, RemovableBlock]:
        """The residual blocks whose inner groups are all ranked, and their sensitivity.

        It is measured after the reconstruction of the network without this block, because other
        layers compensate for much of it.
        """
        blocks = self.graph.blocks_within(self.rankings)
        report = self._steps("sensitivity", self.workload.removal(blocks))
        with self.progress.stage("sensitivity"):
            keys = {block.name: f"divergence without {block.name}" for block in blocks}
            known = {name: self.checkpoints.get(key) for name, key in keys.items()}
            values = {name: value for name, value in known.items() if value is not None}
            measured = (
                (block.name, self._divergence_without(block))
                for number, block in enumerate(blocks)
                if block.name not in values and self.world.owns(number)
            )
            for name, value in chain(tuple(values.items()), self.world.exchange(measured)):
                if name not in values:
                    self.checkpoints.put(keys[name], value)
                values[name] = value
                report(name, f"divergence {value:.2g} without it", keys[name])
        return {block.name: RemovableBlock(block.groups, values[block.name]) for block in blocks}

    def _divergence_without(self, block: ResidualBlock) -> float:
        """Return the divergence of the reconstructed network without `block`.

        The weights are fitted on other batches than the analyzer measures on, if there are any:
        in-sample, a removed block seems to cost almost nothing.
        """
        forward, measured = self.statistics.forward, len(self.analyzer.task.programs)
        others = slice(measured, None) if measured < len(forward.programs) else slice(None)
        nothing = ChannelSelection(kept=(), reason="removed")
        tensors = self.reconstruct(
            dict.fromkeys(block.groups, nothing), forward=forward.part(others)
        )
        return self.analyzer.change(tensors).divergence

    # Networks at points of the path

    def _selection_at(
        self, point: AllocationPoint, targets: Mapping[str, GroupTarget], reason: str
    ) -> dict[str, ChannelSelection]:
        """Return the selection in every ranked group at the widths of `point`."""
        fresh = {
            name: f"selection in {name} at {point.widths[name]}"
            for name, ranking in self.rankings.items()
            if not isinstance(self.selector, RankingSelector)
            and 0 < point.widths[name] < ranking.group.channels
        }
        known = {name: self.checkpoints.get(key) for name, key in fresh.items()}
        own = self._own(name for name, one in known.items() if one is None)
        self._collect(own)
        selected = (
            (g.name, self._select(g, replace(targets[g.name], width=point.widths[g.name])))
            for g in own
        )
        for name, one in self.world.exchange(selected):
            self.checkpoints.put(fresh[name], one)
            known[name] = one
        found = {}
        for name, ranking in self.rankings.items():
            width, why = point.widths[name], f"{name_of(self.selector)}, {reason}"
            if width == 0:
                why = f"its residual block is removed, {reason}"
            if name in fresh:
                found[name] = replace(known[name], reason=why)
            else:
                found[name] = ChannelSelection(kept=ranking.kept(width), reason=why)
        return found

    def _select(self, group: Group, target: GroupTarget) -> ChannelSelection:
        return select_channels(target, group_statistics(self.statistics, group))

    def _latency_at(self, point: AllocationPoint) -> float:
        """Return the measured latency of a network with the widths of `point`."""

        def run() -> float:
            widths = {name: point.widths[name] for name in self.rankings}
            kept = {
                name: self.rankings[name].kept(width) for name, width in widths.items() if width
            }
            plan = Plan(kept, removed_blocks=self.graph.emptied_blocks(widths))
            small = prune(self.model, plan, self.example_inputs, graph=self.graph).model
            return measure(small, self.example_inputs, repeats=REPEATS).latency.median

        key = f"latency at {sorted(point.widths.items())}"
        work = partial(self.world.from_root, run)
        return self._evaluate("latency", LATENCY_POINTS, key, work)

    def _error_at(self, targets: Mapping[str, GroupTarget], point: AllocationPoint) -> float:
        """Return the error of the outputs with the widths of `point`, after reconstruction.

        It is measured on the first half of the hold-out images, if there are any.
        """
        widths = tuple(sorted(point.widths.items()))

        def run() -> float:
            images = self.holdout.halves()[0]
            if images.count:
                error = self._compare_at(targets, point, images).error()
                return math.inf if error is None else error.value
            selection = self._selection_at(point, targets, "")
            return self.analyzer.change(self.reconstruct(selection)).error

        if widths not in self.errors:
            key = f"error at {list(widths)}"
            self.errors[widths] = self._evaluate("error", ERROR_POINTS, key, run)
        return self.errors[widths]

    def _agreement_at(
        self, targets: Mapping[str, GroupTarget], budget: Budget | None, point: AllocationPoint
    ) -> AgreementBound:
        """Return the agreement on all hold-out images with the widths of `point`."""
        assert budget is not None

        def run() -> AgreementBound:
            found = self._compare_at(targets, point, self.holdout)
            return found.agreement_bound(budget.confidence)

        key = f"agreement at {sorted(point.widths.items())} with {budget.confidence}"
        return self._evaluate("agreement", ERROR_POINTS, key, run)

    def _compare_at(
        self, targets: Mapping[str, GroupTarget], point: AllocationPoint, images: CalibrationData
    ) -> Comparison:
        """Return the comparison of the network with the widths of `point` on `images`."""
        selection = self._selection_at(point, targets, "")
        with self.progress.muted(), warnings.catch_warnings():
            for category in (CalibrationWarning, RolledBackWarning):
                warnings.simplefilter("ignore", category)
            plan = self.plan(selection)
            small = prune(self.model, plan, self.example_inputs, graph=self.graph).model
        return compare(small, self.model, images.batches(self.calibration.batch_size), self.kinds)

    def _evaluate(self, quantity: str, usual: int, key: str, run: Callable[[], T]) -> T:
        """Return the result of `run` for one network, and report how many were evaluated.

        The remaining time assumes the `usual` number of networks, and at least one more.
        """
        found = self.checkpoints.get_or_compute(key, run)
        self.evaluated[quantity] = done = self.evaluated.get(quantity, 0) + 1
        restored, total = key in self.checkpoints.restored, max(done + 1, usual)
        name = f"network {done}"
        self.progress.step(
            "allocate", name, done, total, quantity, work=(done, total), restored=restored
        )
        return found

    # Ranks and progress

    def _own(self, names: Iterable[str]) -> list[Group]:
        """Return the groups of `names` that this rank is responsible for.

        This is the same rank in every stage, so that it alone needs their statistics.
        """
        wanted = set(names)
        return [
            group
            for number, group in enumerate(self.groups)
            if group.name in wanted and self.world.owns(number)
        ]

    def _collect(self, groups: Iterable[Group]) -> None:
        self.collect(self.statistics.consumers_of(*groups))

    def _steps(self, stage: str, works: Mapping[str, Work]) -> Callable[..., None]:
        totals = {name: work.total for name, work in works.items()}
        return self.progress.steps(stage, totals, self.checkpoints.restored)


def check_holdout(
    budget: Budget, calibration: Calibration, images: int, held: int, kinds: Sequence[Kind]
) -> None:
    """Raise a BadSettingError if too few of the images are held out for `budget`."""

    def require(needed: int, target: str) -> None:
        if held < needed:
            raise BadSettingError(
                f"{target} needs at least {needed} hold-out images, but {held} of {images} images "
                f"are held out: hold out more with holdout={needed}, or pass at least "
                f"{math.ceil(needed / SELECTION_HOLDOUT)} images to sparsify"
            )

    if budget.max_error is not None and calibration.holdout != 0:
        require(2 * HALF_IMAGES, f"max_error={budget.max_error}")
    if budget.agreement is not None:
        if all(kind == "values" for kind in kinds):
            raise BadSettingError(
                "an agreement needs predicted classes, but the outputs are values: pass "
                'max_error=, or outputs="logits" if axis 1 contains classes'
            )
        needed = min_images(budget.agreement, budget.confidence)
        require(needed, f"agreement={budget.agreement} with confidence={budget.confidence}")


def _ranked_keys(name: str) -> tuple[str, str]:
    """Return the checkpoint keys of a group's removal order and of its divergences."""
    return f"ranking of {name}", f"divergence of {name}"
