"""New weights for a network with fewer channels, as the settings ask for them."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from torch import Tensor

from entrim.calibration.collect import gram_of
from entrim.calibration.consumers import Reader, Stays
from entrim.calibration.tensor_store import Shelf
from entrim.choose import Chosen
from entrim.deciding import Scene, gather
from entrim.errors import CalibrationWarning
from entrim.reconstruction.layer import (
    Fitted,
    masked_tensors,
    packed,
    place_solution,
    put_back,
    refit_alone,
)
from entrim.reconstruction.sequential import Repair, rebuild
from entrim.run import Run
from entrim.storage.checkpoint import Journal, Unit
from entrim.surgery.plan import Plan
from entrim.surgery.prune import part_of


def rebuilt(run: Run, scene: Scene, chosen: Mapping[str, Chosen], grams: Shelf) -> Plan:
    """Return the plan with new weights for all that changed, and tell of every layer.

    Layers are kept in the journal under the channels that they were solved for.
    """
    kept = cut_in(scene, chosen)
    stays = scene.graph.stays(kept)
    journal = run.journal.at(f"rebuilt on {sorted(kept.items())}")
    tensors = rebuilt_tensors(run, scene, chosen, grams, partial(_tell, run, scene), journal)
    if len(run.fitted) < (total := len(scene.readers)):  # the others see and owe what they did
        done = f"{len(run.fitted)} of {total} layers solved again"
        run.tell("rebuild", type(run.model).__name__, total, total, done)
    original = scene.task.tensors
    changed = {name: new for name, new in tensors.items() if new is not original[name]}
    return Plan(kept, {name: part_of(new, stays.get(name, {})) for name, new in changed.items()})


def cut_in(scene: Scene, chosen: Mapping[str, Chosen]) -> dict[str, tuple[int, ...]]:
    """Return what stays of the groups that lose channels."""
    return {
        name: found.kept
        for name, found in chosen.items()
        if len(found.kept) < scene.graph.group(name).channels
    }


def rebuilt_tensors(
    run: Run,
    scene: Scene,
    chosen: Mapping[str, Chosen],
    grams: Shelf,
    on_layer: Callable[[Unit], None] = lambda _: None,
    journal: Journal | None = None,
) -> dict[str, Tensor]:
    """Return all tensors in their full size, what goes set to zero where it is read."""
    settings, graph = run.settings, scene.graph
    kept = cut_in(scene, chosen)
    stays = graph.stays(kept)
    tensors = masked_tensors(graph, stays, scene.task.tensors)
    journal = journal or Journal()
    if settings.refits:
        for unit in _alone(run, scene, stays, tensors, grams, journal):
            on_layer(unit)
    else:
        for name in kept:
            group, parts = graph.group(name), list(chosen[name].parts)
            for reader in scene.reading(group) if parts else []:
                mine = [parts.pop(0) for _ in range(reader.geometry.groups)]
                place_solution(reader, group, mine, tensors)
    reestimate = settings.batchnorm == "reestimate"
    if kept and (settings.sequential or reestimate):
        repair = Repair(ridge=settings.ridge, correct=settings.corrects, reestimate=reestimate)
        walked = scene.readers if settings.sequential else {}
        tensors = rebuild(scene.task, walked, stays, tensors, repair, on_layer, journal.once)
    return tensors


def _alone(
    run: Run,
    scene: Scene,
    stays: Stays,
    tensors: dict[str, Tensor],
    grams: Shelf,
    journal: Journal,
) -> Iterator[Unit]:
    """Refit the layers that are not refitted in order, in place in `tensors`."""
    readers = {
        reader.site.layer: reader
        for reader in scene.readers.values()
        if reader.site.dim in stays.get(reader.site.weight, {})
        and (not run.settings.sequential or len(reader.places) > 1)
    }
    gather(run, scene, [r for layer, r in readers.items() if not journal.has(layer)], grams)
    for layer, reader in readers.items():
        unit = journal.once(layer, partial(_refitted, run, scene, reader, stays, tensors, grams))
        put_back(unit, tensors)
        yield unit


def _refitted(
    run: Run,
    scene: Scene,
    reader: Reader,
    stays: Stays,
    tensors: dict[str, Tensor],
    grams: Shelf,
) -> Unit:
    gram, original = gram_of(grams, reader.site.layer), scene.task.tensors
    fit = refit_alone(reader, gram, stays, original, tensors, run.settings.ridge)
    return packed(fit, reader, tensors)


def _tell(run: Run, scene: Scene, unit: Unit) -> None:
    fit = Fitted(**unit.facts)
    run.fitted.append(fit)
    detail = unit.told(f"error {fit.error:.1%} of the variance")
    run.tell("rebuild", fit.layer, len(run.fitted), len(scene.readers), detail, settled=True)
    if fit.rows < fit.columns:
        run.warn(
            f"{fit.layer} is refitted on {fit.rows} rows for {fit.columns} columns: hand over more "
            "images, or keep fewer channels",
            CalibrationWarning,
        )
