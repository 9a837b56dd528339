"""Allocate channels to groups: given sensitivity curves and costs, the greedy path of widths.

The sensitivity of a group at a width is measured with the other groups intact, and sensitivities
are assumed to be additive. In each step, the group with the smallest increase of divergence per
saved cost becomes narrower, or a residual block is removed: with convex curves and without blocks
this is optimal for every budget on the path.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import pairwise

from entrim.allocation.costs import SECONDS, Costs
from entrim.config import SIZES, Budget, Cost
from entrim.errors import BudgetError
from entrim.metrics import AgreementBound, images_needed

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
