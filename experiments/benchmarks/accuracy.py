"""Accuracy of pruned CIFAR-10 networks without labels, with and without recovery.

`python -m experiments bench accuracy` measures the rows that are missing in its ledger and writes
the table; with names of rows only those. Defaults are chosen on test images 0-4,999, and results
are reported on 5,000-9,999. Needs ENTRIM_ASSETS.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import entrim
from experiments.benchmarks.cifar import BenchmarkModel, accuracy, interval
from experiments.benchmarks.record import Ledger, check_line, has_weights, table, write

IMAGES, MOST_IMAGES = 500, 5000
"""Images for pruning, and the largest number for recovery; the former are among the latter."""
CHOICE, REPORT = slice(0, 5000), slice(5000, 10_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured network."""

    name: str
    network: str
    budget: entrim.Budget
    recovery_images: int | None = None
    """Number of unlabeled images for recovery; None trains nothing."""
    target: float | None = None
    """The accuracy in percent that the row should reach on the images of results."""
    stretch: float | None = None
    is_drop: bool = False
    """Whether `target` and `stretch` are losses of accuracy instead."""
    random_channels: bool = False
    """Whether random channels are kept, at the widths that the budget gives."""

    def goal(self, value: float | None, original: float) -> float | None:
        """Return a target as an accuracy, for the accuracy of the original network."""
        return original - value if self.is_drop and value is not None else value


def _rows(
    network: str, factor: int | float, *goals: tuple[int | None, float | None, float | None]
) -> list[Row]:
    """Return the rows of one budget: images for recovery, target and stretch target of each."""
    short = network.removeprefix("cifar10_")
    return [
        Row(
            name=f"{short} {factor}x" + ("" if count is None else f" recovered {count}"),
            network=network,
            budget=entrim.Budget(macs=1 / factor),
            recovery_images=count,
            target=target,
            stretch=stretch,
        )
        for count, target, stretch in goals
    ]


def _random(row: Row) -> Row:
    """Return the same row with random channels, without a target."""
    name = f"{row.name} random channels"
    return replace(row, name=name, target=None, stretch=None, random_channels=True)


TARGETED = (
    *_rows(
        "cifar10_resnet20", 2, (None, 87.5, 89.0), (IMAGES, 88.3, 89.0), (MOST_IMAGES, 89.5, 90.0)
    ),
    *_rows(
        "cifar10_resnet20", 3, (None, 80.5, 83.0), (IMAGES, 83.3, 84.5), (MOST_IMAGES, 85.0, 86.0)
    ),
    *_rows("cifar10_resnet56", 2.1, (None, 92.3, 92.8)),
    *_rows("cifar10_resnet56", 3, (None, 88.7, 90.0), (IMAGES, 89.5, 90.5)),
    Row(
        name="vgg16 tenth of the parameters",
        network="cifar10_vgg16",
        budget=entrim.Budget(params=0.1),
        target=0.3,
        stretch=0.1,
        is_drop=True,
    ),
)
ROWS = (*TARGETED, *(_random(row) for row in TARGETED if row.recovery_images is None))


@cache
def load(network: str) -> BenchmarkModel:
    """Return a network with its images."""
    return BenchmarkModel.of(network, MOST_IMAGES)


def prune(row: Row) -> entrim.SparsifyResult:
    """Return the network of a row, pruned with the first images, nothing trained."""
    tested = load(row.network)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with entrim.Pruner(tested.model, tested.images[:IMAGES]) as pruner:
            if not row.random_channels:
                return pruner.prune(row.budget)
            chosen = pruner.select(row.budget).channels
        widths = entrim.Widths({name: len(found.kept) for name, found in chosen.items()})
        return entrim.sparsify(tested.model, tested.images[:IMAGES], widths, selector="random")


def measure(row: Row) -> dict[str, Any]:
    """Return the accuracy of one row, its agreement on hold-out images, and its cost."""
    tested, result = load(row.network), prune(row)
    if row.recovery_images is not None:
        more = None if row.recovery_images == IMAGES else tested.images[: row.recovery_images]
        result = entrim.distill(result, more)
    record, done = result.record, result.record.distilled
    found: dict[str, Any] = {
        "macs": record.before.macs / record.after.macs,
        "params": record.before.params / record.after.params,
        "seconds": round(sum(record.seconds.values()), 1),
        "agreement": None if record.holdout is None else record.holdout.figures()["agreement"],
        "before": original_accuracies(row.network),
        "after": accuracies(tested, result.model),
    }
    if done is not None:
        loss = {"before": done.before, "after": done.after}
        found |= {"epochs": done.epochs, "trained on": done.images, "loss": loss}
    return found


@cache
def original_accuracies(network: str) -> dict[str, float]:
    """Return the accuracy of a network before pruning."""
    return accuracies(load(network), load(network).model)


def accuracies(tested: BenchmarkModel, model: Any) -> dict[str, float]:
    """Return the accuracy in percent on the images for choices and on those for results."""
    parts = {"choice": CHOICE, "report": REPORT}
    return {
        name: accuracy(model, tested.test_images[part], tested.test_labels[part])
        for name, part in parts.items()
    }


def row_table(points: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of all measured rows."""
    rows = []
    for row in ROWS:
        if (point := points.get(row.name)) is None:
            continue
        before, after = point["before"]["report"], point["after"]["report"]
        rows.append(
            (
                row.network,
                f"{point['macs']:.2f}x",
                f"{point['params']:.2f}x",
                "random" if row.random_channels else "selected",
                row.recovery_images or "nothing trained",
                f"{point['after']['choice']:.2f}",
                f"{before:.2f}",
                f"{after:.2f} ± {interval(after):.2f}",
                _shown(row.goal(row.target, before)),
                _shown(row.goal(row.stretch, before)),
                point["seconds"],
            )
        )
    head = ("network", "fewer MACs", "fewer parameters", "channels", "images for recovery")
    head += ("accuracy on 0-4,999",)
    head += ("original", "accuracy", "target", "stretch", "seconds")
    return table(head, rows)


def _shown(goal: float | None) -> str:
    return "" if goal is None else f"{goal:.2f}"


def checks(points: Mapping[str, Mapping[str, Any]]) -> str:
    """Return whether each measured row reaches its target."""
    lines = []
    for row in ROWS:
        if row.target is None or row.name not in points:
            continue
        point = points[row.name]
        after, target = point["after"]["report"], row.goal(row.target, point["before"]["report"])
        line = f"{row.name}: {after:.2f}, target {_shown(target)}"
        lines.append(check_line(line, target is not None and after >= target))
    return "\n".join(lines)


def main(parts: Sequence[str]) -> None:
    """Measure what is missing in the ledger and write the table."""
    if not has_weights():
        return
    ledger = Ledger.open("accuracy")
    for row in ROWS:
        if not parts or row.name in parts:
            ledger.point(row.name, partial(measure, row))
    points = ledger.points()
    note = (
        f"Pruned with {IMAGES} unlabeled images, of which a tenth is held out; the same images, or "
        f"{MOST_IMAGES:,}, for recovery with the defaults. Accuracy in percent on test images "
        "5,000-9,999 with its 95 % interval, unless another range is given. One run each."
    )
    sections = [note, row_table(points), checks(points)]
    print(write("accuracy", "python -m experiments bench accuracy", sections))
