"""New weights for a network with fewer channels, as the settings ask for them."""

from collections.abc import Callable, Mapping

from torch import Tensor

from entrim.choose import Chosen
from entrim.deciding import Scene
from entrim.errors import CalibrationWarning
from entrim.network.capture import gram_of
from entrim.network.rebuild import Repair, rebuild
from entrim.network.refitting import Fitted, masked_tensors, place_solution, refit_alone
from entrim.network.shelf import Shelf
from entrim.network.slices import part_of
from entrim.plan import Plan
from entrim.run import Run


def rebuilt(run: Run, scene: Scene, chosen: Mapping[str, Chosen], grams: Shelf) -> Plan:
    """Return the plan with new weights for all that changed, and tell of every layer."""
    kept = cut_in(scene, chosen)
    stays = scene.graph.stays(kept)
    tensors = rebuilt_tensors(run, scene, chosen, grams, lambda fit: _tell(run, scene, fit))
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
    on_layer: Callable[[Fitted], None] = lambda _: None,
) -> dict[str, Tensor]:
    """Return all tensors in their full size, what goes set to zero where it is read."""
    settings, graph, original = run.settings, scene.graph, scene.task.tensors
    kept = cut_in(scene, chosen)
    stays = graph.stays(kept)
    tensors = masked_tensors(graph, stays, original)
    if settings.refits:
        for reader in scene.readers.values():
            cut_here = reader.site.dim in stays.get(reader.site.weight, {})
            if cut_here and (not settings.sequential or len(reader.places) > 1):
                gram = gram_of(grams, reader.site.layer)
                on_layer(refit_alone(reader, gram, stays, original, tensors, settings.ridge))
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
        tensors = rebuild(scene.task, walked, stays, tensors, repair, on_layer)
    return tensors


def _tell(run: Run, scene: Scene, fitted: Fitted) -> None:
    run.fitted.append(fitted)
    detail = f"error {fitted.error:.1%} of the variance"
    run.tell("rebuild", fitted.layer, len(run.fitted), len(scene.readers), detail)
    if fitted.rows < fitted.columns:
        run.warn(
            f"{fitted.layer} is refitted on {fitted.rows} rows for {fitted.columns} columns: hand "
            "over more images, or keep fewer channels",
            CalibrationWarning,
        )
