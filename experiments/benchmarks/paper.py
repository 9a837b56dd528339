"""Plots of the paper's tables, from their records.

`python -m experiments bench paper` reads `experiments/results/reproduce` and plots the accuracy
lost before any training: printed and here, and by criteria of others at the same widths.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from experiments.benchmarks.plots import BLUE, GRAY, GREEN, ORANGE, PICTURES
from experiments.benchmarks.record import RESULTS
from experiments.paper.published import Cell

TABLES = {
    "LeNet": ("lenet-conv", "lenet-full"),
    "VGG-16": ("vgg16-groups", "vgg16-full"),
    "ResNet18": ("resnet18",),
}
METHODS = {
    "widths": (ORANGE, "s", "its method at its widths, here"),
    "default": (BLUE, "o", "entrim, as many parameters"),
}
BASES = {
    ", rebuilt": (GREEN, "s", "the same channels, rebuilt by entrim"),
    ", old weights": (GRAY, "D", "old weights, as others use them"),
}
TICKS = (0, 0.1, 1, 10, 100)
LEAST = 0.1
"""The axis is linear below."""
Record = Mapping[str, Any]


def record(name: str) -> Record:
    """Return the record of one experiment."""
    return json.loads((RESULTS / "reproduce" / f"{name}.json").read_text())


def draw_rows(axes: Axes) -> None:
    """Plot the raw drop of every row, printed and ours."""
    names: list[str] = []
    for network, experiments in TABLES.items():
        lines = [
            line
            for experiment in experiments
            for line in record(experiment)["lines"]
            if line["quantity"] == "drop, raw"
        ]
        for line in lines:
            height = len(names)
            names.append(f"{network}  {line['row']}")
            printed = Cell(**line["paper"]).value
            if printed is not None:
                axes.plot([printed], [height], "D", color=GRAY, mfc="none", ms=7)
            for method, (color, marker, _) in METHODS.items():
                if line["ours"][method]:
                    axes.plot([mean(line["ours"][method])], [height], marker, color=color, ms=7)
    axes.plot([], [], "D", color=GRAY, mfc="none", label="the paper, as printed")
    for color, marker, label in METHODS.values():
        axes.plot([], [], marker, color=color, label=label)
    _finish(axes, names, "points lost before any training")


def draw_rivals(axes: Axes) -> None:
    """Plot the raw drops in all rows and their median: original and reconstructed weights."""
    drops: dict[str, list[float]] = {}
    for one in record("comparison")["measured"]:
        if "pruned" in one:
            lost = one["baseline"] - one["pruned"]["accuracy"]
            drops.setdefault(one["variant"], []).append(lost)
    names = list(dict.fromkeys(name.removesuffix(suffix) for name in drops for suffix in BASES))
    names = [name for name in names if not any(name.endswith(suffix) for suffix in BASES)]
    for height, name in enumerate(names):
        for suffix, (color, marker, _) in BASES.items():
            if some := drops.get(f"{name}{suffix}"):
                axes.plot(some, [height] * len(some), marker, color=color, ms=4, alpha=0.3)
                axes.plot([median(some)], [height], marker, color=color, ms=8)
        if some := drops.get(name):
            axes.plot(some, [height] * len(some), "o", color=BLUE, ms=4, alpha=0.3)
            axes.plot([median(some)], [height], "o", color=BLUE, ms=8)
    axes.plot([], [], "o", color=BLUE, label="entrim, its own widths")
    for color, marker, label in BASES.values():
        axes.plot([], [], marker, color=color, label=label)
    shown = [name.split(", within")[0].replace("torch-pruning's ", "TP: ") for name in names]
    _finish(axes, shown, "points lost before any training: every row, and the median")


def _finish(axes: Axes, names: Sequence[str], label: str) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xscale("symlog", linthresh=LEAST)
    axes.set_xlim(-0.15, 130)
    axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.set_xlabel(label)
    axes.grid(axis="x", alpha=0.3)
    axes.axvline(0, color=GRAY, lw=0.8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), frameon=False, fontsize=8)


def draw(file: Path) -> Path:
    """Write both plots side by side."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5), dpi=120)
    draw_rows(left)
    draw_rivals(right)
    figure.tight_layout()
    figure.savefig(file)
    plt.close(figure)
    return file


def main() -> None:
    """Write the plots of the documentation."""
    print(draw(PICTURES / "paper.png"))
