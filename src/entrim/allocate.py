"""From what each width of each group does to the outputs, and what it saves, to all widths at once.

The damage of a group at a width is measured with the others held; damages are taken to add up. The
widths go down step by step, always where the least damage buys the most: with convex damages that
is the best allocation for every budget on the way.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from entrim.allocation.costs import Costs
from entrim.budget import SIZES
from entrim.errors import BudgetError

STEPS = 64
"""In so many steps a group goes down; the last bit of a budget is filled channel by channel."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A damage of one group as a convex function of its width."""

    widths: tuple[int, ...]
    """Rising, the full width last."""
    values: tuple[int | float, ...]

    @classmethod
    def of(cls, measured: Mapping[int, int | float]) -> "Damage":
        """Return the largest convex function below the measured points."""
        hull: list[tuple[int, float]] = []
        for point in sorted(measured.items()):
            while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], point):
                hull.pop()
            hull.append(point)
        widths, values = zip(*hull, strict=True)
        return cls(widths, values)

    def at(self, width: int) -> float:
        """Return the damage at `width`, linear between corners; the first line goes on below."""
        pairs = list(zip(self.widths, self.values, strict=True))
        for left, right in pairwise(pairs):
            if width <= right[0]:
                return right[1] + _slope(left, right) * (width - right[0])
        return self.values[-1]


@dataclass(frozen=True, slots=True)
class Stop:
    """One point on the way down."""

    widths: Mapping[str, int]
    costs: Mapping[str, int | float]
    damage: int | float


@dataclass(frozen=True, kw_only=True)
class Market:
    """What can be bought: widths of groups, at the price of damage."""

    costs: Costs
    damages: Mapping[str, Damage]
    """Groups without one stay whole."""
    whole: Mapping[str, int]
    """The full width of every group."""
    least: Mapping[str, int] = field(default_factory=dict)
    """The least width of groups that need more than one channel."""
    round_to: int = 1

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The sizes of the whole network."""
        return {kind: round(value) for kind, value in self.costs.at(self.whole).items()}

    def floor(self, name: str) -> int:
        """Return the least width of a group."""
        if name not in self.damages:
            return self.whole[name]
        least = -(-self.least.get(name, 1) // self.round_to) * self.round_to
        return min(least, self.whole[name])

    def narrower(self, name: str, width: int) -> int:
        """Return the next width on the way down."""
        step = max(1, self.whole[name] // STEPS)
        return max(self.floor(name), (width - step) // self.round_to * self.round_to)

    def wider(self, name: str, width: int) -> int:
        """Return the next wider width, one channel or one multiple up."""
        return min(self.whole[name], (width // self.round_to + 1) * self.round_to)

    def demand(self, limits: Mapping[str, int]) -> None:
        """Refuse limits that even the narrowest network does not keep."""
        least = self.costs.at({name: self.floor(name) for name in self.whole})
        for kind, limit in limits.items():
            if round(least[kind]) > limit:
                raise BudgetError.size(SIZES[kind], limit, round(least[kind]))

    def way_down(self, limits: Mapping[str, int], then: Sequence[str] = ()) -> list[Stop]:
        """Return the stops from the whole network to the first that keeps all `limits`.

        With `then`, the way goes on to the narrowest network, to save those kinds of cost.
        """
        self.demand(limits)
        stops = [self._stop(dict(self.whole))]
        while wanted := (over(stops[-1].costs, limits) or list(then)):
            name = self._cheapest(stops[-1].widths, wanted)
            if name is None:
                break
            widths = stops[-1].widths
            stops.append(self._stop({**widths, name: self.narrower(name, widths[name])}))
        return stops

    def filled(self, stop: Stop, limits: Mapping[str, int]) -> Stop:
        """Return `stop` with groups widened while all `limits` hold, most relief first."""
        widths = dict(stop.widths)
        open_ = {name for name in self.damages if widths[name] < self.whole[name]}
        while open_:
            relief = {n: self._harm(n, self.wider(n, widths[n]), widths[n]) for n in sorted(open_)}
            best = max(relief, key=lambda n: relief[n])
            trial = {**widths, best: self.wider(best, widths[best])}
            if over(self.costs.at(trial), limits):
                open_.remove(best)
            else:
                widths = trial
                open_ -= {best} if trial[best] == self.whole[best] else set()
        return self._stop(widths)

    def _stop(self, widths: dict[str, int]) -> Stop:
        damage = sum((part.at(widths[name]) for name, part in self.damages.items()), 0.0)
        return Stop(widths, self.costs.at(widths), damage)

    def _harm(self, name: str, wide: int, narrow: int) -> float:
        return self.damages[name].at(narrow) - self.damages[name].at(wide)

    def _cheapest(self, widths: Mapping[str, int], kinds: Sequence[str]) -> str | None:
        """Return the group whose next step does least damage for what it saves of `kinds`."""
        prices = {
            name: self._price(name, widths, kinds)
            for name in self.damages
            if widths[name] > self.floor(name)
        }
        return min(prices, key=lambda name: prices[name], default=None)

    def _price(self, name: str, widths: Mapping[str, int], kinds: Sequence[str]) -> float:
        narrow = self.narrower(name, widths[name])
        now = self.costs.of_group(name, widths)
        then = self.costs.of_group(name, {**widths, name: narrow})
        saved = sum((now[kind] - then[kind]) / max(1, self.sizes[kind]) for kind in kinds)
        return self._harm(name, widths[name], narrow) / saved if saved > 0 else math.inf


def over(costs: Mapping[str, int | float], limits: Mapping[str, int]) -> list[str]:
    """Return the kinds of cost that are above their limit."""
    return [kind for kind, limit in limits.items() if round(costs[kind]) > limit]


def _slope(left: tuple[int, float], right: tuple[int, float]) -> float:
    return (right[1] - left[1]) / (right[0] - left[0])
