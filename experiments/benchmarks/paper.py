"""Plots of the paper's tables, from their records.

`python -m experiments bench paper` reads `experiments/results/reproduce` and plots the accuracy
lost before any training: printed and here, and by criteria of others at the same widths. A second
plot shows the accuracy lost after fine tuning and after training from scratch, by epochs. Tables
without a record are left out.
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
from experiments.paper.published import Cell, tables
from experiments.paper.rows import rows_of

TABLES = {
    "LeNet": ("lenet-conv", "lenet-full"),
    "VGG-16": ("vgg16-groups", "vgg16-full"),
    "ResNet18": ("resnet18",),
}
METHODS = {
    "widths": (ORANGE, "s", "its widths, fast solver, here"),
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


TRAININGS = {
    "tuned": ("-", "fine tuned"),
    "scratch": ("--", "scratch, each by itself"),
    "by_epoch": (":", "along one training from scratch"),
}


def record(name: str) -> Record:
    """Return the record of one experiment, an empty one if there is none."""
    file = RESULTS / "reproduce" / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else {"lines": [], "measured": []}


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


def draw_trainings(axes: Axes, points: Sequence[Record]) -> None:
    """Plot the drops of conv_all+fc by epochs: fine tuned and from scratch, printed and ours."""
    base = tables()["vgg16-results"].cell("baseline", "accuracy").value or 0.0
    (tuned,), (scratch,) = rows_of("vgg16-epochs"), rows_of("vgg16-scratch")
    published = ((tuned.tuned, "-", "fine tuned"), (scratch.by_epoch, ":", "scratch"))
    for cells, style, label in published:
        drops = {n: base - (cell.value or 0.0) for n, cell in cells.items()}
        axes.plot(*_sorted(drops), f"D{style}", color=GRAY, mfc="none", label=f"paper, {label}")
    for point in points:
        if point["method"] not in METHODS:
            continue
        color, marker, method = METHODS[point["method"]]
        for training, (style, label) in TRAININGS.items():
            drops = {int(n): point["baseline"] - a for n, a in point.get(training, {}).items()}
            if drops:
                name = f"{method}, {label}"
                axes.plot(*_sorted(drops), f"{marker}{style}", color=color, label=name)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=1)
    axes.set_yticks((0, 1, 10, 50), ["0", "1", "10", "50"])
    axes.set_xlabel("epochs")
    axes.set_ylabel("points lost, VGG-16 conv_all+fc")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)


def _sorted(lost: Mapping[int, float]) -> tuple[list[int], list[float]]:
    epochs = sorted(lost)
    return epochs, [lost[n] for n in epochs]


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
    points = [p for name in ("vgg16-epochs", "vgg16-scratch") for p in record(name)["measured"]]
    if points:
        figure, axes = plt.subplots(figsize=(7, 4.5), dpi=120)
        draw_trainings(axes, points)
        figure.tight_layout()
        figure.savefig(PICTURES / "training.png")
        plt.close(figure)
