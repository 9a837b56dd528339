"""Which channels of every group stay: one pass of the images, then group by group."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from entrim.calibration.collect import Pass, capture, consumers, gram_of, shares, size_of
from entrim.calibration.consumers import Reader, readers
from entrim.calibration.data import Calibration
from entrim.calibration.executor import programs
from entrim.calibration.tensor_store import Shelf
from entrim.choose import Ask, Chosen, choose
from entrim.entropic.moments import Moments
from entrim.errors import CalibrationWarning, NothingCutWarning
from entrim.graph.channel_graph import ChannelGraph, Group
from entrim.run import Run
from entrim.storage.checkpoint import Journal, Unit

_TRIES = 12
_FACTOR = 10.0


@dataclass(frozen=True, slots=True)
class Scene:
    """The network as it is looked at: its channels, the layers that read them, the images."""

    graph: ChannelGraph
    task: Pass
    readers: Mapping[str, Reader]

    @classmethod
    def of(
        cls, run: Run, graph: ChannelGraph, images: Calibration, seed: int | None = None
    ) -> "Scene":
        """Return the scene of one network on some images; the seed is that of the run."""
        batches = images.batches()
        tensors = {
            name: tensor.detach()
            for name, tensor in (*run.model.named_parameters(), *run.model.named_buffers())
        }
        task = Pass(
            programs=programs(run.model, batches),
            batches=batches,
            tensors=tensors,
            memory_limit=run.settings.memory_limit,
            positions=run.settings.positions,
            seed=run.seed if seed is None else seed,
        )
        return cls(graph, task, readers(task.programs[0], graph))

    @property
    def out_of_sight(self) -> set[str]:
        """The groups with a layer among their readers that cannot be looked at."""
        hidden = [site for site in self.graph.sites if site.layer not in self.readers]
        return {name for site in hidden for name in site.feeds}

    def reading(self, *groups: Group) -> list[Reader]:
        """Return the layers that read channels of any of `groups`."""
        names = {group.name for group in groups}
        return [reader for reader in self.readers.values() if names & reader.site.feeds.keys()]

    def alone(self, group: Group) -> bool:
        """Whether one layer makes the channels and one reads them: no skip path, no sharing."""
        reading = self.reading(group)
        return len(reading) == 1 and len(reading[0].places) == 1 and len(group.layers) == 1

    def moments(self, group: Group, grams: Shelf) -> list[Moments]:
        """Return the moments of `group` at every layer that reads it."""
        return [
            part
            for reader in self.reading(group)
            for part in consumers(
                reader, gram_of(grams, reader.site.layer), group, self.task.tensors
            )
        ]


def collect(
    run: Run, scene: Scene, asks: Mapping[str, Ask], grams: Shelf, *, quiet: bool = False
) -> list[Group]:
    """Put the moments of all groups that are asked for on `grams`; return those that fit."""
    groups = fitting(run, scene, asks, quiet=quiet)
    gather(run, scene, scene.reading(*groups), grams, quiet=quiet)
    return groups


def fitting(run: Run, scene: Scene, asks: Mapping[str, Ask], *, quiet: bool = False) -> list[Group]:
    """Return the groups that are asked for, but for those whose moments are too large."""
    asked = [scene.graph.group(name) for name in asks if name not in scene.out_of_sight]
    concerned = [r for r in scene.readers.values() if any(g.name in r.site.feeds for g in asked)]
    limit = run.settings.memory_limit
    large = {name for r in concerned if size_of(r) > limit for name in r.site.feeds}
    if large and not quiet:
        run.warn(
            f"left whole, because the second moments of what reads them exceed memory_limit="
            f"{limit:,} bytes: {', '.join(sorted(large))}; raise memory_limit, or pool before "
            "flattening",
            CalibrationWarning,
        )
    return [group for group in asked if group.name not in large and scene.reading(group)]


def gather(
    run: Run, scene: Scene, readers: Iterable[Reader], grams: Shelf, *, quiet: bool = False
) -> None:
    """Put the moments of these layers on `grams`, as far as they lack there."""
    missing = [reader for reader in readers if reader.site.layer not in grams.values]

    def on_batch(done: int, total: int) -> None:
        if not quiet:
            run.tell("collect", f"batch {done}", done, total)

    with run.stage("collect"):
        capture(scene.task, missing, grams, on_batch)


def decide(
    run: Run, scene: Scene, asks: Mapping[str, Ask], grams: Shelf, *, quiet: bool = False
) -> dict[str, Chosen]:
    """Return the choice in every group that is asked for."""
    groups = fitting(run, scene, asks, quiet=quiet)
    open_ = [g for g in groups if quiet or not run.journal.has(_choice(g.name))]
    gather(run, scene, scene.reading(*open_), grams, quiet=quiet)
    return choose_in(groups, run, scene, asks, grams, quiet=quiet)


def choose_in(
    groups: Sequence[Group],
    run: Run,
    scene: Scene,
    asks: Mapping[str, Ask],
    grams: Shelf,
    *,
    quiet: bool = False,
) -> dict[str, Chosen]:
    """Return the choice in every one of `groups`; moments of those not chosen yet lie on `grams`.

    A `quiet` choice is one of many: it is neither told nor kept in the journal.
    """
    chosen = {}
    journal = Journal() if quiet else run.journal
    with run.stage("choose"):
        for done, group in enumerate(groups, 1):
            work = partial(choose_one, scene, group, asks[group.name], grams)
            unit = journal.once(_choice(group.name), lambda work=work: work().unit)
            found = chosen[group.name] = Chosen.of(unit)
            if not quiet:
                kept = unit.told(f"{len(found.kept)} of {group.channels}")
                run.tell("choose", group.name, done, len(groups), kept, settled=True)
    return chosen


def choose_one(scene: Scene, group: Group, ask: Ask, grams: Shelf) -> Chosen:
    """Return the choice in one group, whose moments lie on `grams`."""
    reading = scene.reading(group)
    weights = [part for r in reading for part in shares(r, group, scene.task.tensors)]
    drawing = scene.task.drawing(f"choice of {group.name}")
    return choose(ask, scene.moments(group, grams), weights, drawing)


def stability(
    run: Run, scene: Scene, asks: Mapping[str, Ask], chosen: Mapping[str, Chosen]
) -> dict[str, float]:
    """Return the mean overlap of every kept set with those of resampled images."""
    overlaps: dict[str, list[float]] = {name: [] for name in chosen}
    for number in range(run.settings.resamples):
        work = partial(_chosen_again, run, scene, asks, number)
        for name, kept in run.journal.once(f"resample {number}", work).facts.items():
            mine, its = set(chosen[name].kept), set(kept)
            overlaps[name].append(len(mine & its) / len(mine | its))
    return {name: sum(values) / len(values) for name, values in overlaps.items() if values}


def _chosen_again(run: Run, scene: Scene, asks: Mapping[str, Ask], number: int) -> Unit:
    """Return the kept channels of every group on images drawn with replacement."""
    drawing = scene.task.drawing(f"resample {number}")
    images = run.images.resampled(drawing)
    again = Scene.of(run, scene.graph, images, drawing.initial_seed())
    with Shelf(run.settings.memory_limit) as grams:
        found = decide(run, again, asks, grams, quiet=True)
    return Unit({name: choice.kept for name, choice in found.items()})


def _choice(name: str) -> str:
    return f"choice of {name}"


def name_eps(run: Run, scene: Scene, asks: Mapping[str, Ask], grams: Shelf) -> None:
    """Warn that nothing was cut, and name the first eps on a ladder that cuts something.

    `asks` are those of the groups in which channels could be chosen.
    """
    by_eps = {name: ask for name, ask in asks.items() if ask.width is None}
    if not asks:
        run.warn(
            "nothing was cut, because no group was left to choose in: widen layers=, skip= or "
            'widths=, raise memory_limit=, or leave preset="paper" out',
            NothingCutWarning,
        )
        return
    if not by_eps:
        why = "every group keeps the width asked for"
        if run.settings.allocates:
            why = "no cut is worth its damage: hand over a budget="
            why = "the whole network keeps the budget" if run.settings.budget else why
        run.warn(f"nothing was cut: {why}", NothingCutWarning)
        return
    gather(run, scene, scene.reading(*map(scene.graph.group, by_eps)), grams)
    for power in range(1, _TRIES + 1):
        for name, ask in by_eps.items():
            group, factor = scene.graph.group(name), _FACTOR**power
            bolder = Ask(
                channels=ask.channels, eps_w=ask.eps_w * factor, eps_l2=ask.eps_l2 * factor
            )
            moments = scene.moments(group, grams)
            if moments and len(choose(bolder, moments, []).kept) < group.channels:
                run.warn(
                    "nothing was cut, because eps is too small for this network: try "
                    f"eps_w={bolder.eps_w:.0e}, eps_l2={bolder.eps_l2:.0e}, which cuts {name}",
                    NothingCutWarning,
                )
                return
    run.warn("nothing was cut, whatever eps: pass widths= instead", NothingCutWarning)
