"""Which stop on the way down to take: where sizes, time and error allow it, or at the knee."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from entrim.allocate import Market, Stop, over
from entrim.budget import SIZES, Budget
from entrim.errors import BudgetError

BOTH = ("params", "macs")
"""What the way goes on to save once the sizes of the budget hold."""
KNEE = 10.0
"""At the knee a percent less of the network costs a tenth of a percent of what its outputs tell."""


@runtime_checkable
class Trials(Protocol):
    """What can be found out about a stop by trying it."""

    def seconds(self, stop: Stop) -> float:
        """Return the measured latency."""
        ...

    def error(self, stop: Stop) -> float:
        """Return the error at the outputs once everything is rebuilt."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    """The stop to take, and what is known of it."""

    way: Sequence[Stop]
    """The whole way down."""
    at: Stop
    why: str
    seconds: float | None = None
    """The latency measured there, where one was asked for."""


def pick(market: Market, budget: Budget | None, trials: Trials, silence: float) -> Picked:
    """Return the stop to take; `silence` is the divergence of outputs that tell nothing."""
    if budget is None:
        way = market.way_down({}, then=BOTH)
        at = knee(market, way, silence)
        return Picked(way=way, at=at, why=f"at the knee: {_shares(market, at)}")
    limits = budget.limits(market.sizes)
    way = market.way_down(limits, then=BOTH if budget.latency is None else ("macs",))
    first = next(n for n, stop in enumerate(way) if not over(stop.costs, limits))
    at = market.filled(way[first], limits) if limits else way[0]
    whys = [f"at most {limit:,} {SIZES[kind]}" for kind, limit in limits.items()]
    seconds = None if budget.latency is None else trials.seconds(at)
    if budget.latency is not None and seconds is not None and seconds > budget.latency:
        at, seconds = _fast_enough(way[first:], budget.latency, trials)
        whys.append(f"{1e3 * seconds:.3g} ms of {1e3 * budget.latency:.3g}")
    if budget.max_error is not None:
        if limits or budget.latency is not None:
            found = trials.error(at)
            if found > budget.max_error:
                raise BudgetError.contradiction(budget.max_error, found)
        else:
            at, found = _good_enough(way, budget.max_error, trials)
        whys.append(f"error {found:.3g} of {budget.max_error:.3g}")
    return Picked(way=way, at=at, why="; ".join(whys), seconds=seconds)


def knee(market: Market, way: Sequence[Stop], silence: float) -> Stop:
    """Return the stop that saves most for what it takes from the outputs."""
    whole = market.sizes
    scale = KNEE / silence if silence > 0 else KNEE

    def worth(stop: Stop) -> float:
        saved = sum(1 - stop.costs[kind] / max(1, whole[kind]) for kind in BOTH) / len(BOTH)
        return saved - scale * stop.damage

    return max(way, key=worth)


def _fast_enough(way: Sequence[Stop], seconds: float, trials: Trials) -> tuple[Stop, float]:
    """Return the first stop that is fast enough, the way being taken to get faster."""
    last = trials.seconds(way[-1])
    if last > seconds:
        raise BudgetError.latency(seconds, last)
    known = {len(way) - 1: last}

    def holds(number: int) -> bool:
        known[number] = trials.seconds(way[number])
        return known[number] <= seconds

    found = _first(len(way) - 1, holds)
    return way[found], known[found]


def _good_enough(way: Sequence[Stop], most: float, trials: Trials) -> tuple[Stop, float]:
    """Return the last stop whose error is within `most`, the way being taken to get worse."""
    known = {0: 0.0}

    def fails(number: int) -> bool:
        known[number] = trials.error(way[number])
        return known[number] > most

    found = _first(len(way), fails) - 1
    return way[found], known[found]


def _first(count: int, holds: Callable[[int], bool]) -> int:
    """Return the first number below `count` for which it holds, else `count`, by halving."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _shares(market: Market, stop: Stop) -> str:
    parts = [f"{stop.costs[k] / max(1, market.sizes[k]):.0%} of the {SIZES[k]}" for k in BOTH]
    return ", ".join(parts)
