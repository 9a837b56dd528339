"""What a run leaves behind, written down, and what tells it from others."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from entrim.allocate import Stop
from entrim.budgeting import Allocation
from entrim.checkpoints import fingerprint
from entrim.choose import Ask, Chosen
from entrim.deciding import Scene
from entrim.network import Cut, measure
from entrim.network.follow import Example
from entrim.network.form import values_of
from entrim.records import GroupRecord, LayerRecord, Record, Size, TradeOff
from entrim.run import Run

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
    return Record(
        model=type(run.model).__name__,
        images=run.images.count,
        settings=_decided(run),
        versions={name: version(name) for name in _VERSIONS},
        groups=tuple(
            _group_record(scene, name, asks[name], found, overlaps.get(name))
            for name, found in chosen.items()
        ),
        layers=tuple(
            LayerRecord(layer=f.layer, rows=f.rows, columns=f.columns, error=f.error)
            for f in run.fitted
        ),
        frozen=tuple((f.layer, f.channels, f.reason) for f in scene.graph.frozen),
        tradeoff=() if allocation is None else _tradeoff(allocation),
        before=_size(run.model, example),
        after=_size(done.model, example),
        proof={
            "sliced": done.proof.sliced,
            "final": done.proof.final,
            "tolerance": done.proof.tolerance,
        },
        seconds=dict(run.seconds),
        notes=tuple(run.notes),
        original=fingerprint(values_of(run.model).values()),
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


def _tradeoff(allocation: Allocation) -> tuple[TradeOff, ...]:
    """Return at most a hundred points of the way down, and the one that was taken."""
    way = list(allocation.way)
    some = [*way[:: -(-len(way) // _MOST)], way[-1]]
    points = {tuple(stop.widths.items()): stop for stop in (*some, allocation.at)}
    falling = sorted(points.values(), key=lambda stop: (stop.damage, -stop.costs["params"]))
    return tuple(_point(stop, stop is allocation.at) for stop in falling)


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
    )
