"""Whether the figures on hold-out images are right: coverage over resampled splits.

`python -m experiments bench trust` measures what is missing in its ledger and then writes the
tables; with names of networks (lenet, cifar10_resnet20, cifar10_resnet56) only those. Needs
ENTRIM_ASSETS.
"""

import warnings
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

import entrim
from entrim.calibration.data import read_images
from entrim.metrics import compare
from experiments.benchmarks.cifar import REPORT, BenchmarkModel
from experiments.benchmarks.record import Ledger, check_line, has_weights, table, write
from experiments.benchmarks.widths import load_model
from experiments.datasets import load_cifar10, load_mnist
from experiments.models import PRETRAINED
from experiments.normalization import MNIST

NETWORKS = ("lenet", "cifar10_resnet20", "cifar10_resnet56")
FACTORS = (2, 3)
HELD = (50, 200)
FITTING = 500
SPLITS = 100
TRAINING_SPLITS = 20
"""Splits with training images as calibration images."""
GOAL, CONFIDENCE = 0.9, 0.95
POOL = slice(0, 5000)
"""The test images from which calibration and hold-out images are drawn."""


def draw(images: Tensor, count: int, split: int) -> Tensor:
    """Return `count` images, drawn at random without replacement."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(split))
    return images[order[:count]]


@torch.no_grad()
def agreement_on_test(tested: BenchmarkModel, small: nn.Module) -> float:
    """Return the share of equal predicted classes on the test images of results."""
    images = tested.test_images[REPORT].split(500)
    same = [(small(x).argmax(1) == tested.model(x).argmax(1)).double() for x in images]
    return float(torch.cat(same).mean())


def measure_coverage(tested: BenchmarkModel, images: Tensor, split: int) -> dict[str, Any]:
    """Return the reported agreement with its interval, and that on the test images.

    The same pruned network is compared on both numbers of hold-out images.
    """
    drawn = draw(images, FITTING + sum(HELD), split)
    fitting, held = drawn[:FITTING], drawn[FITTING:].split(HELD)
    found: dict[str, Any] = {}
    calibration = entrim.Calibration(holdout=0)
    with entrim.Pruner(tested.model, fitting, calibration=calibration) as pruner:
        for factor in FACTORS:
            small = pruner.prune(entrim.Budget(macs=1 / factor)).model.eval()
            found[f"{factor}x test"] = agreement_on_test(tested, small)
            for count, unseen in zip(HELD, held, strict=True):
                batches = read_images(unseen, tested.model).batches(100)
                figure = compare(small, tested.model, batches, ("logits",)).agreement()
                assert figure is not None
                found[f"{factor}x {count}"] = [figure.value, figure.low, figure.high]
    return found


def measure_guarantee(tested: BenchmarkModel, split: int) -> dict[str, Any]:
    """Return the MACs that a guaranteed agreement keeps, and the agreement on test images."""
    images = draw(tested.test_images[POOL], FITTING, split)
    budget = entrim.Budget(agreement=GOAL, confidence=CONFIDENCE)
    try:
        result = entrim.sparsify(tested.model, images, budget, seed=split)
    except entrim.errors.BudgetError:
        return {"macs": 1.0, "test": 1.0}
    record = result.record
    share = record.after.macs / record.before.macs
    return {"macs": share, "test": agreement_on_test(tested, result.model.eval())}


def training_images(name: str) -> Tensor:
    """Return all training images of a network."""
    if name == "lenet":
        return load_mnist("train").normalize(MNIST)
    return load_cifar10("train").normalize(PRETRAINED[name].normalization)


def measure(ledger: Ledger, name: str) -> None:
    """Measure all splits of one network."""
    tested = load_model(name)
    tested.model.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for split in range(SPLITS):
            ledger.point(
                f"{name} coverage {split}",
                lambda s=split: measure_coverage(tested, tested.test_images[POOL], s),
            )
            ledger.point(f"{name} guarantee {split}", lambda s=split: measure_guarantee(tested, s))
        training = training_images(name)
        for split in range(TRAINING_SPLITS):
            ledger.point(
                f"{name} training {split}", lambda s=split: measure_coverage(tested, training, s)
            )


Points = Mapping[str, Mapping[str, Any]]


def points_of(points: Points, start: str) -> list[Mapping[str, Any]]:
    """Return the points whose key begins with `start`."""
    return [point for key, point in points.items() if key.startswith(f"{start} ")]


def coverage_section(points: Points) -> str:
    """Return in how many splits the interval contains the agreement on test images."""
    rows, lines = [], []
    for name in NETWORKS:
        found = points_of(points, f"{name} coverage")
        for factor in FACTORS if found else ():
            test = [point[f"{factor}x test"] for point in found]
            for count in HELD:
                figures = [point[f"{factor}x {count}"] for point in found]
                inside = sum(f[1] <= t <= f[2] for f, t in zip(figures, test, strict=True))
                reported = mean(f[0] for f in figures)
                rows.append([name, f"{factor}x", count, reported, mean(test), inside, len(found)])
                case = f"{name}, {factor}x, {count} hold-out images: {inside} of {len(found)}"
                lines.append(check_line(case, inside >= 0.9 * len(found)))
    header = ("network", "fewer MACs", "held out", "reported", "test images", "inside", "splits")
    title = "## Reported agreement against the agreement on test images 5,000-9,999"
    return "\n\n".join([title, table(header, rows), "\n".join(lines)])


def guarantee_section(points: Points) -> str:
    """Return how often a guaranteed agreement holds on test images, and what it saves."""
    rows, lines = [], []
    for name in NETWORKS:
        found = points_of(points, f"{name} guarantee")
        if found:
            held = sum(point["test"] >= GOAL for point in found)
            kept = mean(point["macs"] for point in found)
            rows.append([name, mean(point["test"] for point in found), kept, held, len(found)])
            case = f"{name}: {held} of {len(found)}, {kept:.2f} of the MACs kept"
            lines.append(check_line(case, held >= 0.93 * len(found) and kept <= 0.85))
    header = ("network", "mean agreement", "MACs kept", "holds", "splits")
    title = f"## Budget(agreement={GOAL}, confidence={CONFIDENCE}), {FITTING} images"
    return "\n\n".join([title, table(header, rows), "\n".join(lines)])


def training_section(points: Points) -> str:
    """Return how far the reported agreement is off if the images are training images."""
    rows = []
    for name in NETWORKS:
        found = points_of(points, f"{name} training")
        for factor in FACTORS if found else ():
            count = max(HELD)
            reported = mean(point[f"{factor}x {count}"][0] for point in found)
            test = mean(point[f"{factor}x test"] for point in found)
            rows.append([name, f"{factor}x", reported, test, reported - test, len(found)])
    header = ("network", "fewer MACs", "reported", "test images", "too high by", "splits")
    return "\n\n".join(["## Training images as calibration images", table(header, rows)])


def main(parts: Sequence[str]) -> None:
    """Measure the requested networks, then write the tables of all known points."""
    if not has_weights():
        return
    ledger = Ledger.open("trust")
    for name in parts or NETWORKS:
        measure(ledger, name)
    points = ledger.points()
    sections = [coverage_section(points), guarantee_section(points), training_section(points)]
    print(write("trust", "python -m experiments bench trust", sections))
