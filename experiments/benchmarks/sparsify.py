"""The accuracy of `sparsify` without training, its cost, and plots of both.

`python -m experiments bench sparsify` measures what is missing in its ledger and then writes the
tables and plots; with names of parts (curves, vgg, time, resnet50, images, collecting) only those.
Needs ENTRIM_ASSETS.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.benchmarks import curves, images, large
from experiments.benchmarks.cifar import interval
from experiments.benchmarks.collecting import collecting
from experiments.benchmarks.plots import PICTURES, plot_curves, plot_images
from experiments.benchmarks.record import Ledger, check_line, has_weights, table, write

NETWORKS = ("cifar10_resnet20", "cifar10_resnet56")
BARS = {"cifar10_resnet20": 81.0, "cifar10_resnet56": 86.0}
PAPER_DROP = 94.08 - 83.40
Points = Mapping[str, Mapping[str, Any]]


def measure(ledger: Ledger, parts: Sequence[str]) -> None:
    """Measure the named parts."""
    work: dict[str, Callable[[], object]] = {
        "curves": lambda: [curves.measure(name, ledger) for name in NETWORKS],
        "images": lambda: images.measure_images(ledger),
        "vgg": lambda: large.measure_vgg(ledger),
        "resnet50": lambda: large.measure_resnet50(ledger),
        "time": lambda: large.measure_time(ledger),
        "collecting": lambda: ledger.point("collecting", lambda: {"text": collecting()}),
    }
    for part in parts or work:
        work[part]()


def accuracy(point: Mapping[str, Any]) -> str:
    """Return an accuracy with its 95 % interval."""
    return f"{point['report']:.2f} ± {interval(point['report']):.2f}"


def rows_of(points: Points, start: str) -> list[list[object]]:
    """Return key, MACs, parameters, accuracies and seconds of every point with this prefix."""
    return [
        [
            key.removeprefix(start).strip(),
            f"{point.get('macs', 1.0):.2f}x",
            f"{point.get('params', 1.0):.2f}x",
            f"{point['dev']:.2f}" if "dev" in point else "",
            accuracy(point),
            f"{sum(point.get('seconds', {}).values()):.0f}" if point.get("seconds") else "",
        ]
        for key, point in points.items()
        if key.startswith(start) and "report" in point
    ]


HEADER = ("method", "MACs fewer", "parameters fewer", "for choices", "accuracy, %", "seconds")


def curve_section(points: Points, name: str) -> str:
    """Return the table of one network, and whether its check is met."""
    others = (f"{name} images", f"{name} positions")
    mine = {k: v for k, v in points.items() if k.startswith(name) and not k.startswith(others)}
    found = points.get(f"{name} + correction 0.5")
    lines = [
        f"## Accuracy against MACs, {name}, 500 unlabeled images, nothing trained",
        "The number behind a method is the fraction of channels kept inside every block, the eps, "
        "the ridge, or (stream too) the fraction kept in all groups.",
        table(HEADER, rows_of(mine, name)),
    ]
    if found:
        met = found["report"] >= BARS[name]
        bar = f"{BARS[name]:.0f} % at {found['macs']:.2f}x: {found['report']:.2f}"
        lines.append(check_line(bar, met))
    return "\n\n".join(lines)


def vgg_section(points: Points) -> str:
    """Return VGG-16's accuracy before fine tuning, and its time."""
    name = large.VGG
    lines = [
        "## VGG-16 before any fine tuning",
        "`default` and `paper` (each layer alone, no refit) at the widths that eps gives, and at "
        "those of the paper's last row, there also with channels by magnitude and the same "
        "reconstruction.",
        table(HEADER, rows_of({k: v for k, v in points.items() if "time" not in k}, name)),
    ]
    intact, whole = points.get(f"{name} intact"), points.get(f"{name} {large.ROW} default")
    if intact and whole:
        drop = intact["report"] - whole["report"]
        bar = f"less lost than the paper's {PAPER_DROP:.2f} points at its widths: {drop:.2f}"
        lines.append(check_line(bar, drop < PAPER_DROP))
    if time := points.get(f"{name} time"):
        stages = ", ".join(f"{k} {v} s" for k, v in time["seconds"].items())
        lines += [
            f"Full run, eps 1e-4, {time['threads']} threads: {stages}; {time['total']:.0f} s in "
            f"all, an epoch of training {time['epoch']:.0f} s in the same process.",
            check_line(f"at most 0.2 of an epoch: {time['fraction']:.3f}", time["fraction"] <= 0.2),
        ]
    return "\n\n".join(lines)


def resnet50_section(points: Points) -> str:
    """Return ResNet-50 on the samples."""
    note = (
        "500 samples of ImageNet for calibration and 500 others to test, one per class and perhaps "
        "training images: not the validation set. `default` selects greedily, to save time."
    )
    rows = [
        [
            key.removeprefix(large.R50).strip(),
            f"{point.get('macs', 1.0):.2f}x",
            f"{point.get('params', 1.0):.2f}x",
            f"{point['report']:.1f} ± {interval(point['report'], 500):.1f}",
            ", ".join(f"{k} {v}" for k, v in point.get("seconds", {}).items()),
        ]
        for key, point in points.items()
        if key.startswith(large.R50)
    ]
    header = ("method", "MACs fewer", "parameters fewer", "accuracy, %", "seconds by stage")
    return "\n\n".join(["## ResNet-50, 224 x 224", note, table(header, rows)])


def images_section(points: Points) -> str:
    """Return the accuracy by the number of images, and of positions in each."""
    name = images.NAME
    known = [count for count in images.COUNTS if f"{name} images {count}" in points]
    if not known:
        return "## How many images: not run"
    most = points[f"{name} images {max(known)}"]
    rows = []
    for key, point in points.items():
        if key.startswith((f"{name} images", f"{name} positions")):
            same = f"{_overlap(point['kept'], most['kept']):.2f}"
            seconds = f"{sum(point['seconds'].values()):.0f}" if point["seconds"] else ""
            rows.append([key.removeprefix(name), accuracy(point), same, seconds])
    header = ("", "accuracy, %", f"overlap with {max(known):,} images", "seconds")
    title = "## How many images: ResNet-20, half the channels inside the blocks"
    note = "Positions are drawn in each of 500 images, for the selection only."
    return "\n\n".join([title, note, table(header, rows)])


def _overlap(one: Mapping[str, list[int]], other: Mapping[str, list[int]]) -> float:
    """Return the mean overlap (Jaccard) of the kept channels."""
    shares = [len({*one[g]} & {*other[g]}) / len({*one[g]} | {*other[g]}) for g in one]
    return sum(shares) / len(shares)


def main(parts: Sequence[str]) -> None:
    """Measure the requested parts, then write tables and plots of all known points."""
    if not has_weights():
        return
    ledger = Ledger.open("sparsify")
    measure(ledger, parts)
    points = ledger.points()
    note = (
        "Points were measured on one thread next to other processes, so that their seconds are "
        "orders of magnitude only; the full run on VGG-16 and collecting were measured on an idle "
        "machine."
    )
    sections = [note, *(curve_section(points, name) for name in NETWORKS)]
    sections += [vgg_section(points), resnet50_section(points), images_section(points)]
    if "collecting" in points:
        sections.append(points["collecting"]["text"])
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in NETWORKS:
        plot_curves(points, name, PICTURES / f"{name}.png")
    plot_images(points, images.NAME, PICTURES / "images.png")
    print(write("sparsify", "python -m experiments bench sparsify", sections))
