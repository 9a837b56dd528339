"""What a run leaves behind, written down, and what tells it from others."""

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from entrim.allocate import Stop
from entrim.allocation.sensitivity import error_of
from entrim.budget import SIZES
from entrim.budgeting import Allocation, sensed
from entrim.choose import Ask, Chosen
from entrim.deciding import Scene
from entrim.errors import BudgetWarning, LatencyWarning
from entrim.graph.eager import Example
from entrim.picking import Picked
from entrim.records import GroupRecord, LayerRecord, Record, Size, TradeOff, now
from entrim.run import Run
from entrim.storage.checkpoint import fingerprint
from entrim.surgery.measure import measure
from entrim.surgery.prune import Cut
from entrim.surgery.structure import values_of

_MOST = 99
_VERSIONS = ("entrim", "torch")


def recorded(
    run: Run,
    scene: Scene,
    asks: Mapping[str, Ask],
    chosen: Mapping[str, Chosen],
    overlaps: Mapping[str, float],
    allocation: Allocation | None,
    done: Cut,
    example: Example,
) -> Record:
    """Return the record of a finished run."""
    picked = None if allocation is None else allocation.picked
    with run.stage("measure"):
        before, after = _size(run.model, example), _size(done.model, example)
        error = error_of(done.model, run.model, scene.task.batches[: sensed(run, scene)])
    told = "outputs compared" if error is None else f"outputs {error:.2%} of their variance apart"
    run.tell("measure", type(run.model).__name__, 1, 1, told)
    _check_sizes(run, before, after)
    _check_latency(run, after, picked)
    return Record(
        model=type(run.model).__name__,
        images=run.images.count,
        settings=_decided(run),
        versions=versions(),
        groups=tuple(
            _group_record(scene, name, asks[name], found, overlaps.get(name))
            for name, found in chosen.items()
        ),
        layers=tuple(
            LayerRecord(layer=f.layer, rows=f.rows, columns=f.columns, error=f.error)
            for f in run.fitted
        ),
        frozen=tuple((f.layer, f.channels, f.reason) for f in scene.graph.frozen),
        tradeoff=() if picked is None else _tradeoff(picked),
        before=before,
        after=after,
        proof={
            "sliced": done.proof.sliced,
            "final": done.proof.final,
            "tolerance": done.proof.tolerance,
        },
        seconds=dict(run.seconds),
        notes=tuple(run.notes),
        error=error,
        original=fingerprint(values_of(run.model).values()),
        images_checksum=fingerprint(run.images.arguments.values()),
        seed=run.sown,
        threads=torch.get_num_threads(),
        date=now(),
    )


def versions(*more: str) -> dict[str, str]:
    """Return the versions of what computes, and of some further packages."""
    packages = {name: version(name) for name in (*_VERSIONS, "numpy", *more)}
    return packages | {"Python": platform.python_version()}


def _check_sizes(run: Run, before: Size, after: Size) -> None:
    """Warn where the finished network is larger than its budget.

    Sizes are foreseen by a formula that is exact unless the channels of a group take up unequal
    shares of a tensor.
    """
    if run.settings.budget is None:
        return
    limits = run.settings.budget.limits({kind: getattr(before, kind) for kind in SIZES})
    for kind, limit in limits.items():
        found = getattr(after, kind)
        if found > limit:
            run.warn(
                f"at most {limit:,} {SIZES[kind]} were asked for, and the finished network has "
                f"{found:,}, because channels of one group are not equally large here: ask for "
                f"{kind}={int(limit * limit / found):,} or less",
                BudgetWarning,
            )


def _check_latency(run: Run, after: Size, picked: Picked | None) -> None:
    """Warn where a network that was fast enough when it was chosen no longer is."""
    budget = run.settings.budget
    if budget is None or budget.latency is None or after.latency <= budget.latency:
        return
    assert picked is not None
    assert picked.seconds is not None
    limit, first, last, half = (
        f"{1e3 * seconds:.3g} ms"
        for seconds in (budget.latency, picked.seconds, after.latency, after.spread / 2)
    )
    noise = after.latency - budget.latency <= after.spread / 2
    run.warn(
        f"a latency of {limit} was asked for, and the finished network takes {last}, give or take "
        f"{half}, which is {'within' if noise else 'beyond'} the noise of that measurement; it "
        f"took {first} when it was chosen: ask for less, or run where nothing else does",
        LatencyWarning,
    )


def identity(run: Run, scene: Scene, example: Example) -> dict[str, str]:
    """Return what a run depends on, in short: equal for calls that would do the same."""
    walked = dict.fromkeys(program.module.code for program in scene.task.programs)
    tensors = scene.task.tensors
    network = (*walked, *tensors, str({tensor.device for tensor in tensors.values()}))
    shown = [run.images.arguments, dict(run.images.fixed), example]
    return {
        "network": f"{_digest(*network)} {fingerprint(tensors.values())}",
        "images": f"{_digest(*map(_shape, shown))} {fingerprint(_tensors(shown))}",
        "settings": repr(run.settings),
        "seed": str(run.seed),
        "versions": str({name: version(name) for name in _VERSIONS}),
    }


def _digest(*texts: str) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def _tensors(shown: object) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(shown) if isinstance(leaf, Tensor)]


def _shape(shown: object) -> str:
    """Return everything but the tensors."""
    return repr(pytree.tree_map_only(Tensor, lambda tensor: tuple(tensor.shape), shown))


def _decided(run: Run) -> dict[str, Any]:
    """Return the settings with what the preset decided filled in."""
    settings = run.settings
    return {
        **asdict(settings),
        "mode": "sequential" if settings.sequential else "independent",
        "refit": settings.refits,
        "correct": settings.corrects,
    }


def _group_record(
    scene: Scene, name: str, ask: Ask, found: Chosen, stability: float | None
) -> GroupRecord:
    group = scene.graph.group(name)
    return GroupRecord(
        name=name,
        layers=group.layers,
        readers=tuple(reader.site.layer for reader in scene.reading(group)),
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


def _tradeoff(picked: Picked) -> tuple[TradeOff, ...]:
    """Return at most a hundred points of the way down, and the one that was taken."""
    way = list(picked.way)
    some = [*way[:: -(-len(way) // _MOST)], way[-1]]
    points = {tuple(stop.widths.items()): stop for stop in (*some, picked.at)}
    falling = sorted(points.values(), key=lambda stop: (stop.damage, -stop.costs["params"]))
    return tuple(_point(stop, stop is picked.at) for stop in falling)


def _point(stop: Stop, taken: bool) -> TradeOff:
    return TradeOff(
        params=round(stop.costs["params"]),
        macs=round(stop.costs["macs"]),
        bytes=round(stop.costs["bytes"]),
        damage=stop.damage,
        taken=taken,
    )


def _size(model: nn.Module, example: Example) -> Size:
    cost = measure(model, example)
    latency = cost.latency
    return Size(
        params=cost.params,
        macs=cost.macs,
        bytes=cost.bytes,
        latency=latency.median,
        spread=latency.spread,
        batch=latency.batch,
    )
