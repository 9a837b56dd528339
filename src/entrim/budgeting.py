"""Widths from a budget: nested choices for every group, what each does to the outputs, one walk."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from entrim.allocate import Damage, Market, Stop
from entrim.allocation.costs import Costs
from entrim.allocation.sensitivity import Sensor
from entrim.calibration.tensor_store import Shelf
from entrim.choose import Ask, Chosen
from entrim.deciding import Scene, choose_one, fitting, gather
from entrim.errors import RolledBackWarning
from entrim.graph.channel_graph import Group
from entrim.graph.eager import Example, samples
from entrim.picking import Picked, Trials, pick
from entrim.rebuilding import rebuilt_tensors
from entrim.run import Run
from entrim.selection.elimination import order_of_loss
from entrim.storage.checkpoint import Unit
from entrim.surgery.measure import measure
from entrim.surgery.plan import Plan
from entrim.surgery.prune import cut

FRACTIONS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02)
"""The widths at which the damage of a group is measured, beside the least. Below the lowest a line
would guess: where a tenth of a wide layer is enough, that one channel is enough too."""
SENSED = 256
"""The number of images that tell the damage."""
REPEATS = 15
"""Runs whose median is the latency."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """Nested choices of one group: the last k of `order` are those for width k."""

    group: Group
    order: tuple[int, ...]
    least: int = 1
    """Fewer channels would leave nothing of some tensor."""

    @classmethod
    def of(cls, group: Group, order: Sequence[int]) -> "Ladder":
        """Return the ladder that gives channels up in `order`, but for one of each slice.

        A tensor may hold a part of the group only, as behind a slice or a chunk.
        """
        held = [{u for u, at in enumerate(m.positions) if at} for m in group.members]
        last = {max(units, key=order.index) for units in held if units}
        others = [unit for unit in order if unit not in last]
        return cls(group, (*others, *sorted(last, key=order.index)), len(last))

    @property
    def widths(self) -> list[int]:
        """The widths to look at, rising, the full one last."""
        full = self.group.channels
        some = {max(self.least, round(f * full)) for f in FRACTIONS}
        return sorted(some | {self.least, full})

    def kept(self, width: int) -> tuple[int, ...]:
        """Return the channels that stay at `width`."""
        return tuple(sorted(self.order[len(self.order) - width :]))


@dataclass(frozen=True, slots=True)
class Allocation:
    """The widths that were picked, and the way on which they lie."""

    chosen: Mapping[str, Chosen]
    asks: Mapping[str, Ask]
    """What would lead to the same widths again."""
    picked: Picked


def decide_within(
    run: Run, scene: Scene, asks: Mapping[str, Ask], grams: Shelf, example: Example
) -> Allocation:
    """Return the choice in every group that keeps the budget; without one, that of the knee."""
    ladders = climb(run, scene, asks, grams, example)
    sensor, market = sense(run, scene, ladders, grams, example)
    with run.stage("allocate"):
        trials = _Tried(run, scene, asks, ladders, grams, sensor, example)
        picked = pick(market, run.settings.budget, trials, sensor.silence())
        chosen = trials.chosen(picked.at, picked.why)
    _tell(run, market, picked.at, picked.why)
    settled = {name: replace(asks[name], width=picked.at.widths[name]) for name in chosen}
    return Allocation(chosen, settled, picked)


def _tell(run: Run, market: Market, at: Stop, why: str) -> None:
    total = len(market.damages) + 1
    for done, (name, damage) in enumerate(market.damages.items(), 1):
        kept = f"{at.widths[name]} of {market.whole[name]}"
        harm = f"damage {damage.at(at.widths[name]):.2g}"
        run.tell("allocate", name, done, total, f"{kept}, {harm}", settled=True)
    run.tell("allocate", type(run.model).__name__, total, total, why)


def climb(
    run: Run, scene: Scene, asks: Mapping[str, Ask], grams: Shelf, example: Example
) -> dict[str, Ladder]:
    """Return the ladders of all groups that can be cut.

    The moments of all groups whose order or damage is not known yet are left on `grams`.
    """
    groups = fitting(run, scene, asks)
    known = [g for g in groups if all(run.journal.has(key(g.name)) for key in (_order, _damage))]
    gather(run, scene, scene.reading(*(group for group in groups if group not in known)), grams)
    ladders = {}
    with run.stage("choose"):
        for done, group in enumerate(groups, 1):
            work = partial(_elimination, asks[group.name], scene, group, grams)
            unit = run.journal.once(_order(group.name), work)
            ladders[group.name] = Ladder.of(group, unit.facts["order"])
            detail = unit.told("channels ranked by need")
            run.tell("choose", group.name, done, len(groups), detail)
        narrow = {name: ladder.kept(ladder.least) for name, ladder in ladders.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RolledBackWarning)
            possible = cut(run.model, Plan(narrow), example, graph=scene.graph).plan.kept
    return {name: ladder for name, ladder in ladders.items() if name in possible}


def _elimination(ask: Ask, scene: Scene, group: Group, grams: Shelf) -> Unit:
    """Return the channels of a group, those to give up first."""
    if ask.scores is not None:
        return Unit({"order": sorted(range(group.channels), key=ask.scores.__getitem__)})
    return Unit({"order": order_of_loss(scene.moments(group, grams)).tolist()})


def sense(
    run: Run, scene: Scene, ladders: Mapping[str, Ladder], grams: Shelf, example: Example
) -> tuple[Sensor, Market]:
    """Return what each width of each group does to the outputs, and what it costs."""
    batches = sensed(run, scene)
    some = replace(
        scene.task, programs=scene.task.programs[:batches], batches=scene.task.batches[:batches]
    )
    concerned = [r for r in scene.readers.values() if any(n in r.site.feeds for n in ladders)]
    trials = {name: [ladder.kept(w) for w in ladder.widths] for name, ladder in ladders.items()}
    market = _unmeasured(run, scene, ladders, example)
    if run.settings.budget is not None:
        market.demand(run.settings.budget.limits(market.sizes))
    damages: dict[str, Damage] = {}
    with run.stage("sense"):
        sensor = Sensor(some, scene.graph, concerned, grams, run.settings.ridge)
        for name, unit in _sensed(run, scene, sensor, trials):
            moved = unit.facts["divergence"]
            damages[name] = Damage.of(dict(zip(ladders[name].widths, moved, strict=True)))
            detail = unit.told(f"divergence up to {moved[0]:.2g}")
            run.tell("sense", name, len(damages), len(ladders), detail)
    return sensor, replace(market, damages={name: damages[name] for name in ladders})


def sensed(run: Run, scene: Scene) -> int:
    """Return how many batches tell what a cut does to the outputs."""
    batches = len(scene.task.batches)
    return min(batches, max(1, round(batches * SENSED / run.images.count)))


def _sensed(
    run: Run, scene: Scene, sensor: Sensor, trials: Mapping[str, Sequence[Sequence[int]]]
) -> Iterator[tuple[str, Unit]]:
    """Yield what each kept set of each group does to the outputs, first what is known."""
    found = {name: run.journal.find(_damage(name)) for name in trials}
    yield from ((name, unit) for name, unit in found.items() if unit is not None)
    rest = {name: trials[name] for name, unit in found.items() if unit is None}
    if not rest:
        return
    gather(run, scene, scene.reading(*map(scene.graph.group, rest)), sensor.grams)
    for name, moved in sensor.look(rest, held={}):
        unit = Unit({"divergence": [one.divergence for one in moved]})
        run.journal.keep(_damage(name), unit)
        yield name, unit


def _order(name: str) -> str:
    return f"order of {name}"


def _damage(name: str) -> str:
    return f"damage of {name}"


def _unmeasured(run: Run, scene: Scene, ladders: Mapping[str, Ladder], example: Example) -> Market:
    """Return what widths cost, before anybody knows what they damage."""
    macs = measure(run.model, example, repeats=2).macs
    return Market(
        costs=Costs.of(
            run.model, scene.graph, scene.task.programs[0], macs, samples(scene.task.batches[0])
        ),
        damages={n: Damage((ladder.group.channels,), (0.0,)) for n, ladder in ladders.items()},
        whole={group.name: group.channels for group in scene.graph.groups},
        least={name: ladder.least for name, ladder in ladders.items()},
        round_to=run.settings.round_to,
    )


@dataclass(frozen=True, slots=True)
class _Tried(Trials):
    """Stops tried out on the network itself."""

    run: Run
    scene: Scene
    asks: Mapping[str, Ask]
    ladders: Mapping[str, Ladder]
    grams: Shelf
    sensor: Sensor
    example: Example

    def chosen(self, stop: Stop, why: str) -> dict[str, Chosen]:
        """Return the choice in every group at the widths of `stop`."""
        anew = [
            ladder.group
            for name, ladder in self.ladders.items()
            if self._chooses(name, stop) and not self.run.journal.has(self._key(name, stop))
        ]
        gather(self.run, self.scene, self.scene.reading(*anew), self.grams)
        return {name: self._choice(name, stop, why) for name in self.ladders}

    def seconds(self, stop: Stop) -> float:
        return self._once("seconds", stop, self._seconds)

    def error(self, stop: Stop) -> float:
        return self._once("error", stop, self._error)

    def _once(self, what: str, stop: Stop, tried: Callable[[Stop], float]) -> float:
        name = f"{what} at {sorted(stop.widths.items())}"
        return self.run.journal.once(name, lambda: Unit({what: tried(stop)})).facts[what]

    def _seconds(self, stop: Stop) -> float:
        kept = {name: ladder.kept(stop.widths[name]) for name, ladder in self.ladders.items()}
        small = cut(self.run.model, Plan(kept), self.example, graph=self.scene.graph).model
        return measure(small, self.example, repeats=REPEATS).latency.median

    def _error(self, stop: Stop) -> float:
        tensors = rebuilt_tensors(self.run, self.scene, self.chosen(stop, ""), self.grams)
        return self.sensor.moved(tensors).error

    def _chooses(self, name: str, stop: Stop) -> bool:
        """Whether channels are chosen anew, not taken from the ladder."""
        ask = self.asks[name]
        whole = stop.widths[name] == self.ladders[name].group.channels
        return ask.scores is None and ask.selector != "greedy" and not whole

    def _key(self, name: str, stop: Stop) -> str:
        return f"choice of {name} at {stop.widths[name]}"

    def _choice(self, name: str, stop: Stop, why: str) -> Chosen:
        ladder, width = self.ladders[name], stop.widths[name]
        how = f"{self.asks[name].by}, {why}"
        if not self._chooses(name, stop):
            return Chosen(kept=ladder.kept(width), how=how)
        ask = replace(self.asks[name], width=width)
        unit = self.run.journal.once(
            self._key(name, stop),
            lambda: choose_one(self.scene, ladder.group, ask, self.grams).unit,
        )
        return replace(Chosen.of(unit), how=how)
