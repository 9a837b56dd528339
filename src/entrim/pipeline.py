"""The order of the stages: trace, collect, choose, rebuild, cut."""

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version

import torch
from torch import Tensor, nn

from entrim import files
from entrim.choose import Ask, Chosen, choose
from entrim.errors import CalibrationWarning, NothingCutWarning
from entrim.graph import ChannelGraph, Group
from entrim.images import Calibration, Images, read_images
from entrim.network import Cut, cut, measure, trace
from entrim.network.capture import (
    Familiarity,
    Pass,
    capture,
    consumers,
    familiarity,
    gram_of,
    shares,
    size_of,
)
from entrim.network.follow import Example
from entrim.network.reading import Reader, readers
from entrim.network.rebuild import (
    Fitted,
    Repair,
    masked_tensors,
    place_solution,
    rebuild,
    refit_alone,
)
from entrim.network.replay import programs
from entrim.network.shelf import Shelf
from entrim.network.slices import part_of
from entrim.plan import Plan
from entrim.records import GroupRecord, LayerRecord, Record, Size, Step
from entrim.settings import Settings

STRANGE = 1.0
"""A BatchNorm that sees means further off than this, in its own deviations, sees other images."""
_EXAMPLE = 4
_TRIES = 12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sparsified:
    """A smaller network, the plan that made it, and the record of how."""

    model: nn.Module
    plan: Plan
    record: Record

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write network, plan and record into `folder`, in one step; `entrim.load` reads it."""
        files.save(self.model, self.plan, folder, record=self.record.to_json())


@dataclass(slots=True)
class _Run:
    """One run: what is known so far, and whom to tell."""

    model: nn.Module
    settings: Settings
    images: Calibration
    generator: torch.Generator | None
    on_step: Callable[[Step], None]
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    fitted: list[Fitted] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin

    def warn(self, note: str, category: type[UserWarning]) -> None:
        self.notes.append(note)
        warnings.warn(note, category, stacklevel=4)


def sparsify_with(
    model: nn.Module,
    images: Images,
    settings: Settings,
    *,
    example: Example | None = None,
    on_step: Callable[[Step], None] | None = None,
    generator: torch.Generator | None = None,
) -> Sparsified:
    """Return what `sparsify` returns, from checked settings."""
    like = next(model.parameters())
    run = _Run(
        model,
        settings,
        read_images(images, like.device, like.dtype),
        generator,
        on_step or (lambda _: None),
    )
    if example is None:
        example = run.images.batch(slice(0, _EXAMPLE))
    with run.stage("trace"):
        graph = trace(model, example)
        task = _task(run, run.images)
        known = readers(task.programs[0], graph)
    _check_images(run, task)
    asks = settings.asks(graph, lambda group: _alone(group, known))
    with Shelf(settings.memory_limit) as grams:
        chosen = _choose_all(run, task, graph, known, asks, grams)
        stability = _stability(run, graph, known, asks, chosen)
        kept = {
            name: found.kept
            for name, found in chosen.items()
            if len(found.kept) < graph.group(name).channels
        }
        with run.stage("rebuild"):
            plan = _rebuilt(run, task, graph, known, chosen, kept, grams)
        if not kept:
            _name_eps(run, graph, known, asks, grams)
    with run.stage("cut"):
        done = cut(model, plan, example, graph=graph)
    record = _recorded(run, graph, known, asks, chosen, stability, done, example)
    return Sparsified(model=done.model, plan=done.plan, record=record)


def _task(run: _Run, images: Calibration) -> Pass:
    batches = images.batches()
    tensors = {
        name: tensor.detach()
        for name, tensor in (*run.model.named_parameters(), *run.model.named_buffers())
    }
    return Pass(
        programs=programs(run.model, batches),
        batches=batches,
        tensors=tensors,
        memory_limit=run.settings.memory_limit,
        positions=run.settings.positions,
        generator=run.generator,
    )


def _alone(group: Group, known: Mapping[str, Reader]) -> bool:
    """Whether one layer reads the group, and nothing else makes it: no skip path, no sharing."""
    reading = _reading(group, known)
    return len(reading) == 1 and len(reading[0].places) == 1 and len(group.layers) == 1


def _reading(group: Group, known: Mapping[str, Reader]) -> list[Reader]:
    return [reader for reader in known.values() if group.name in reader.site.feeds]


def _check_images(run: _Run, task: Pass) -> None:
    strange = [norm for norm in familiarity(task) if norm.shift > STRANGE]
    if strange:
        worst = max(strange, key=lambda norm: norm.shift)
        run.warn(_strange(worst, len(strange)), CalibrationWarning)


def _strange(norm: Familiarity, count: int) -> str:
    return (
        f"the images are not like those of the training: the means that {norm.layer} sees are "
        f"{norm.shift:.1f} standard deviations off, variances {norm.spread:.2g} times the usual "
        f"({count} BatchNorms in all): normalise the images as in the network's training"
    )


def _choose_all(
    run: _Run,
    task: Pass,
    graph: ChannelGraph,
    known: Mapping[str, Reader],
    asks: Mapping[str, Ask],
    grams: Shelf,
    *,
    quiet: bool = False,
) -> dict[str, Chosen]:
    """Collect the moments of all groups that are asked for, then choose in each."""
    asked = [graph.group(name) for name in asks]
    small, large = [], set()
    for reader in known.values():
        if any(group.name in reader.site.feeds for group in asked):
            if size_of(reader) > run.settings.memory_limit:
                large.update(reader.site.feeds)
            else:
                small.append(reader)
    if large and not quiet:
        names = ", ".join(sorted(large))
        run.warn(
            f"left whole, because the second moments of their readers exceed memory_limit="
            f"{run.settings.memory_limit:,} bytes: {names}; raise memory_limit, or pool before "
            "flattening",
            CalibrationWarning,
        )
    with run.stage("collect"):
        capture(task, small, grams)
    chosen = {}
    with run.stage("choose"):
        for done, group in enumerate(asked, 1):
            reading = _reading(group, known)
            if group.name in large or not reading:
                continue
            moments = [
                part
                for reader in reading
                for part in consumers(reader, gram_of(grams, reader.site.layer), group, task.tensors)
            ]
            weights = [part for r in reading for part in shares(r, group, task.tensors)]
            found = choose(asks[group.name], moments, weights, run.generator)
            chosen[group.name] = found
            if not quiet:
                detail = f"{len(found.kept)} of {group.channels}"
                run.on_step(
                    Step(
                        stage="choose", name=group.name, done=done, total=len(asked), detail=detail
                    )
                )
    return chosen


def _rebuilt(
    run: _Run,
    task: Pass,
    graph: ChannelGraph,
    known: Mapping[str, Reader],
    chosen: Mapping[str, Chosen],
    kept: Mapping[str, tuple[int, ...]],
    grams: Shelf,
) -> Plan:
    """Return the plan with new weights for all that changed."""
    settings = run.settings
    stays = graph.stays(kept)
    tensors = masked_tensors(graph, stays, task.tensors)
    if not settings.refits:
        for name in kept:
            group, parts = graph.group(name), list(chosen[name].parts)
            for reader in _reading(group, known) if parts else []:
                mine = [parts.pop(0) for _ in range(reader.geometry.groups)]
                place_solution(reader, group, mine, tensors)
    else:
        for reader in known.values():
            cut_here = reader.site.dim in stays.get(reader.site.weight, {})
            if cut_here and (not settings.sequential or len(reader.places) > 1):
                gram = gram_of(grams, reader.site.layer)
                fit = refit_alone(reader, gram, stays, task.tensors, tensors, settings.ridge)
                _tell(run, fit, len(known))
    reestimate = settings.batchnorm == "reestimate"
    if kept and (settings.sequential or reestimate):
        repair = Repair(ridge=settings.ridge, correct=settings.corrects, reestimate=reestimate)
        walked = known if settings.sequential else {}
        tensors = rebuild(
            task, walked, stays, tensors, repair, lambda fit: _tell(run, fit, len(known))
        )
    changed = {name: new for name, new in tensors.items() if new is not task.tensors[name]}
    return Plan(kept, {name: part_of(new, stays.get(name, {})) for name, new in changed.items()})


def _tell(run: _Run, fitted: Fitted, total: int) -> None:
    run.fitted.append(fitted)
    run.on_step(
        Step(
            stage="rebuild",
            name=fitted.layer,
            done=len(run.fitted),
            total=total,
            detail=f"error {fitted.error:.1%} of the variance",
        )
    )
    if fitted.rows < fitted.columns:
        run.warn(
            f"{fitted.layer} is refitted on {fitted.rows} rows for {fitted.columns} columns: hand "
            "over more images, or keep fewer channels",
            CalibrationWarning,
        )


def _stability(
    run: _Run,
    graph: ChannelGraph,
    known: Mapping[str, Reader],
    asks: Mapping[str, Ask],
    chosen: Mapping[str, Chosen],
) -> dict[str, float]:
    """Return the mean overlap of every kept set with those of resampled images."""
    overlaps: dict[str, list[float]] = {name: [] for name in chosen}
    for _ in range(run.settings.resamples):
        with run.stage("resample"), Shelf(run.settings.memory_limit) as grams:
            task = _task(run, run.images.resampled(run.generator))
            again = _choose_all(run, task, graph, known, asks, grams, quiet=True)
        for name, found in again.items():
            mine, its = set(chosen[name].kept), set(found.kept)
            overlaps[name].append(len(mine & its) / len(mine | its))
    return {name: sum(values) / len(values) for name, values in overlaps.items() if values}


def _name_eps(
    run: _Run,
    graph: ChannelGraph,
    known: Mapping[str, Reader],
    asks: Mapping[str, Ask],
    grams: Shelf,
) -> None:
    """Warn that nothing was cut, and name the smallest doubling of eps that cuts something."""
    by_eps = {name: ask for name, ask in asks.items() if ask.width is None}
    if not by_eps:
        run.warn("nothing was cut: every group keeps the width asked for", NothingCutWarning)
        return
    tensors = dict(run.model.named_parameters())
    for power in range(1, _TRIES + 1):
        for name, ask in by_eps.items():
            factor = 4.0**power
            bolder = Ask(
                channels=ask.channels, eps_w=ask.eps_w * factor, eps_l2=ask.eps_l2 * factor
            )
            group = graph.group(name)
            moments = [
                part
                for reader in _reading(group, known)
                for part in consumers(reader, gram_of(grams, reader.site.layer), group, tensors)
            ]
            if moments and len(choose(bolder, moments, []).kept) < group.channels:
                run.warn(
                    f"nothing was cut: eps is too small for this network; try "
                    f"eps_w={bolder.eps_w:.0e}, eps_l2={bolder.eps_l2:.0e}, which cuts {name}",
                    NothingCutWarning,
                )
                return
    run.warn("nothing was cut, whatever eps: pass widths= instead", NothingCutWarning)


def _recorded(
    run: _Run,
    graph: ChannelGraph,
    known: Mapping[str, Reader],
    asks: Mapping[str, Ask],
    chosen: Mapping[str, Chosen],
    stability: Mapping[str, float],
    done: Cut,
    example: Example,
) -> Record:
    return Record(
        model=type(run.model).__name__,
        images=run.images.count,
        settings=asdict(run.settings),
        versions={name: version(name) for name in ("entrim", "torch")},
        groups=tuple(
            _group_record(graph.group(name), known, asks[name], found, stability.get(name))
            for name, found in chosen.items()
        ),
        layers=tuple(
            LayerRecord(layer=f.layer, rows=f.rows, columns=f.columns, error=f.error)
            for f in run.fitted
        ),
        frozen=tuple((f.layer, f.channels, f.reason) for f in graph.frozen),
        before=_size(run.model, example),
        after=_size(done.model, example),
        proof={
            "sliced": done.proof.sliced,
            "final": done.proof.final,
            "tolerance": done.proof.tolerance,
        },
        seconds=dict(run.seconds),
        notes=tuple(run.notes),
    )


def _group_record(
    group: Group,
    known: Mapping[str, Reader],
    ask: Ask,
    found: Chosen,
    stability: float | None,
) -> GroupRecord:
    return GroupRecord(
        name=group.name,
        layers=group.layers,
        readers=tuple(reader.site.layer for reader in _reading(group, known)),
        channels=group.channels,
        kept=found.kept,
        how=found.how,
        w=None if found.w is None else tuple(found.w.tolist()),
        eps_w=None if ask.width else ask.eps_w,
        eps_l2=None if ask.width else ask.eps_l2,
        loss=found.loss,
        certificate=found.certificate,
        trace=found.trace,
        ridge_solves=found.ridge_solves,
        stability=stability,
    )


def _size(model: nn.Module, example: Example) -> Size:
    cost = measure(model, example, repeats=2)
    return Size(params=cost.params, macs=cost.macs, bytes=cost.bytes)
