"""Plots of the benchmarks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from experiments.benchmarks.cifar import interval
from experiments.benchmarks.curves import FRACTIONS, GLOBAL_EPS, SHARES, STEPS

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
Points = Mapping[str, Mapping[str, Any]]
BLUE, ORANGE, GREEN, PINK, GRAY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#777777"
LOOKS = {
    "paper": (GRAY, ":", "each layer alone, no refit (paper)"),
    "+ refit": (PINK, "--", "+ refit"),
    "+ sequential": (ORANGE, "-.", "+ in order"),
    "+ correction": (BLUE, "-", "+ correction (default)"),
}


def plot_curves(points: Points, name: str, file: Path) -> None:
    """Plot accuracy against MACs for each step of the method."""
    figure, axes = plt.subplots(figsize=(7, 4.5), dpi=120)
    for step in STEPS:
        color, line, label = LOOKS[step]
        some = [points.get(f"{name} {step} {fraction}") for fraction in sorted(FRACTIONS[name])]
        _line(axes, [p for p in some if p], color, line, label)
    eps = [points.get(f"{name} one eps, + correction {e}") for e in GLOBAL_EPS[name]]
    _line(axes, [p for p in eps if p], GREEN, "-", "default, one eps for all layers")
    stream = [points.get(f"{name} stream too {share}") for share in SHARES[name]]
    _line(axes, [p for p in stream if p], "black", "-", "default, residual stream pruned too")
    for fraction in FRACTIONS[name]:
        if point := points.get(f"{name} random {fraction}"):
            axes.plot(point["macs"], point["report"], "kx")
            axes.annotate(
                "random channels",
                (point["macs"], point["report"]),
                (6, -3),
                textcoords="offset points",
                fontsize=8,
            )
    if intact := points.get(f"{name} intact"):
        axes.axhline(intact["report"], color="black", linewidth=0.8)
        axes.text(
            0.995,
            intact["report"],
            "intact",
            transform=axes.get_yaxis_transform(),
            ha="right",
            va="bottom",
            fontsize=8,
        )
    axes.set(
        xlabel="MACs, times fewer",
        ylabel="test accuracy, %",
        title=f"{name}: 500 unlabeled images, nothing trained",
        xlim=(1.1, 3.3),
    )
    _finish(figure, axes, file, "lower left")


def plot_images(points: Points, name: str, file: Path) -> None:
    """Plot accuracy against the number of images."""
    some = {
        int(key.rsplit(" ", 1)[1]): point
        for key, point in points.items()
        if key.startswith(f"{name} images ")
    }
    if not some:
        return
    figure, axes = plt.subplots(figsize=(7, 4), dpi=120)
    counts = sorted(some)
    heights = [some[count]["report"] for count in counts]
    axes.errorbar(
        counts, heights, [interval(h) for h in heights], marker="o", color=BLUE, label="default"
    )
    axes.set(
        xscale="log",
        xlabel="unlabeled images",
        ylabel="test accuracy, %",
        title=f"{name}: half the channels inside the blocks, nothing trained",
    )
    _finish(figure, axes, file, "lower right")


def plot_allocation(points: Points, names: list[str], looks: Mapping[str, str], file: Path) -> None:
    """Plot accuracy against the remaining size, one row for parameters and one for MACs.

    `looks` maps the methods, in the order of the legend, to the cells that contain them. The last
    one does not determine the range of the axis, because it is far below the others.
    """
    figure, grid = plt.subplots(
        2, len(names), figsize=(3.2 * len(names), 6), dpi=120, squeeze=False
    )
    colors = (BLUE, "black", ORANGE, GREEN, PINK, GRAY)
    for column, name in enumerate(names):
        for row, (kind, sign) in enumerate(
            (("params", "of the parameters"), ("macs", "fewer MACs"))
        ):
            axes = grid[row][column]
            lowest = 100.0
            for (method, source), color in zip(looks.items(), colors, strict=True):
                distilled = method.startswith("+")
                value = "distilled" if distilled else "report"
                some = [
                    (point[kind], point[value])
                    for key, point in points.items()
                    if key.startswith(f"{name} |") and sign in key
                    if key.endswith(f"| {source}") and value in point
                ]
                axes.plot(
                    *zip(*sorted(some), strict=True) if some else ([], []),
                    "x:" if distilled else "o-",
                    ms=6 if distilled else 4,
                    color=color,
                    label=method,
                    zorder=1 if distilled else 2,
                )
                if method != list(looks)[-1]:
                    lowest = min([lowest, *(accuracy for _, accuracy in some)])
            intact = points[f"{name} | intact"]["report"]
            axes.set_ylim(lowest - 0.08 * (intact - lowest), intact + 0.08 * (intact - lowest))
            axes.axhline(intact, color="black", linewidth=0.8)
            axes.set(xlabel=f"{'parameters' if row == 0 else 'MACs'} that remain", title=name)
            axes.xaxis.set_major_formatter(lambda x, _: f"{x:.0%}")
            axes.set_xlim(0, 1)
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        grid[0][0].set_ylabel("test accuracy, %")
        grid[1][0].set_ylabel("test accuracy, %")
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, loc="lower center", ncol=len(labels))
    figure.savefig(file)
    plt.close(figure)


def _line(axes: Any, some: list[Mapping[str, Any]], color: str, line: str, label: str) -> None:
    some = sorted(some, key=lambda point: point["macs"])
    if some:
        axes.errorbar(
            [point["macs"] for point in some],
            [point["report"] for point in some],
            [interval(point["report"]) for point in some],
            color=color,
            linestyle=line,
            marker="o",
            markersize=4,
            label=label,
        )


def _finish(figure: Any, axes: Any, file: Path, corner: str) -> None:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc=corner)
    figure.tight_layout()
    figure.savefig(file)
    plt.close(figure)
