"""Readings of the paper on VGG-16: what is a data point, the ridge, the end of the alternation.

`python -m experiments bench readings [LAYER ...]` solves the regression behind every layer, or
behind the layers named, with the paper's eps read in several ways. It compares the widths with the
printed ones of conv_all+fc. Finished results are not run again. Needs ENTRIM_ASSETS.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import entrim
from entrim import Calibration, EntropicPenalty
from entrim.errors import CommandError
from experiments import models
from experiments.benchmarks.record import Ledger, has_weights, table, write
from experiments.models import TrainedModel
from experiments.paper.activations import consumers_of, live_channels
from experiments.paper.pruning import IMAGES, MIN_DECREASE, describe
from experiments.paper.rows import Row, rows_of
from experiments.work import Work, work_folder

RELATIVE = 1e-6
"""The relative tolerance of a stop, of the loss at the uniform start."""
ONE_POSITION = Calibration(holdout=0, n_positions=1)
"""T = 500: one position of each of 500 images."""
ALL_POSITIONS = Calibration(holdout=0, n_positions=None)
"""T = 500 H W."""


@dataclass(frozen=True, slots=True)
class LayerSize:
    """The size of the regression of one layer."""

    outputs: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One reading of the paper."""

    name: str
    calibration: Calibration = ALL_POSITIONS
    ridge: Callable[[float, LayerSize], float] = lambda eps, _: eps
    """The ridge of our objective, whose ridge term has a factor of 1 / M."""
    stop: str = "minimum"
    """"minimum", "absolute" or "relative"."""


READINGS = (
    Reading(name=f"stopped below {MIN_DECREASE:.0e}", stop="absolute"),
    Reading(name="stopped below 1e-6 of F", stop="relative"),
    Reading(name="to the minimum"),
    Reading(name="T = 500, to the minimum", calibration=ONE_POSITION),
    *(
        Reading(
            name=f"closed form, ridge eps_l2 / T, {rows}, {end}",
            calibration=calibration,
            ridge=lambda eps, size: eps / size.rows,
            stop=stop,
        )
        for rows, calibration in (("T = 500", ONE_POSITION), ("T = 500 H W", ALL_POSITIONS))
        for end, stop in (("to the minimum", "minimum"), ("stopped below 1e-6 of F", "relative"))
    ),
    *(
        Reading(
            name=f"loss as printed, ridge eps_l2 M, {end}",
            ridge=lambda eps, size: eps * size.outputs,
            stop=stop,
        )
        for end, stop in (
            (f"stopped below {MIN_DECREASE:.0e}", "absolute"),
            ("to the minimum", "minimum"),
        )
    ),
)


@torch.no_grad()
def size_of(trained: TrainedModel, layer: str, calibration: Calibration) -> LayerSize:
    """Return the outputs of the layer behind `layer`, and the rows of its regression."""
    name = consumers_of(trained.model, trained.images(2), [layer])[layer][0]
    shapes: list[torch.Size] = []

    def keep(_: nn.Module, __: Any, output: torch.Tensor) -> None:
        shapes.append(output.shape)

    handle = trained.model.get_submodule(name).register_forward_hook(keep)
    trained.model(trained.images(2))
    handle.remove()
    positions = 1 if calibration is ONE_POSITION else shapes[0][2:].numel()
    return LayerSize(outputs=shapes[0][1], rows=IMAGES * positions)


def penalty_of(reading: Reading, eps: float, size: LayerSize, start: float) -> EntropicPenalty:
    """Return the penalty of a reading; `start` is the loss at the uniform start."""
    ridge = reading.ridge(eps, size)
    if reading.stop == "minimum":
        return EntropicPenalty(eps_w=-eps, eps_l2=ridge)
    stop = MIN_DECREASE if reading.stop == "absolute" else RELATIVE * start
    return EntropicPenalty(eps_w=-eps, eps_l2=ridge, solver="alternating", min_decrease=stop)


def solve(trained: TrainedModel, reading: Reading, layer: str, eps: float) -> dict[str, Any]:
    """Return the number of kept channels, the loss at the start and at the end, and the solves."""
    size = size_of(trained, layer, reading.calibration)
    images = trained.images(IMAGES)
    with entrim.Pruner(
        trained.model, images, include=layer, calibration=reading.calibration, seed=trained.seed
    ) as pruner:
        # any step is smaller than an infinite decrease: the descent ends after the first
        one_step = EntropicPenalty(
            eps_w=-eps, eps_l2=reading.ridge(eps, size), min_decrease=float(2**1000)
        )
        start = pruner.select(one_step).channels[layer].trace[0]
        found = pruner.select(penalty_of(reading, eps, size, start)).channels[layer]
    return {"kept": len(found.kept), "start": start, "F": found.loss, "solves": found.ridge_solves}


def check_layers(layers: Sequence[str], row: Row) -> Sequence[str]:
    """Return the requested layers, all for none; raise an error for other names."""
    if unknown := [layer for layer in layers if layer not in row.widths]:
        raise CommandError(
            f"there is no layer {', '.join(unknown)}: name some of {', '.join(row.widths)}"
        )
    return layers or list(row.widths)


def main(parts: Sequence[str] = ()) -> None:
    """Print the widths of every reading next to the paper's."""
    if not has_weights():
        return
    row, ledger = rows_of("vgg16-full")[-1], Ledger.open("readings")
    requested, work = check_layers(parts, row), Work(work_folder())
    trained = models.vgg16(work)
    alive = ledger.point(
        "channels alive",
        lambda: live_channels(trained.model, trained.images(IMAGES), list(row.widths)),
    )
    for layer in requested:
        for reading in READINGS:
            ledger.point(
                f"{reading.name}: {layer}",
                lambda r=reading, name=layer: solve(trained, r, name, row.eps[name]),
            )
    note = (
        f"{row.name}: every layer alone, the paper's eps. Channels kept, by layer; - was not run. "
        "Stopped readings use the paper's alternation, the others the fast solver. "
        f"Baseline here {describe(work, trained)['baseline']:.2f} % ({trained.origin})."
    )
    sections = [note, widths_table(ledger.points(), row, alive)]
    print(write("readings", "python -m experiments bench readings", sections))


def widths_table(points: Mapping[str, Any], row: Row, alive: Mapping[str, int]) -> str:
    """Return the widths of every reading, layer by layer."""
    lines: list[list[object]] = [
        [
            reading.name,
            *(points.get(f"{reading.name}: {name}", {}).get("kept", "-") for name in row.widths),
        ]
        for reading in READINGS
    ]
    lines.append(["channels alive", *(alive[name] for name in row.widths)])
    lines.append(["the paper", *row.widths.values()])
    return table(["reading", *row.widths], lines)
