"""A budgeted run in units of forward passes: seconds by stage, memory and accuracy.

`python -m experiments bench scale` measures what is missing in its ledger and writes the table;
with names of networks only those. Every run is a process of its own, so that the peak memory is its
own. Needs ENTRIM_ASSETS.
"""

import json
import math
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import entrim
from experiments.benchmarks.cifar import BenchmarkModel, accuracy
from experiments.benchmarks.record import Ledger, has_weights, table, write
from experiments.datasets import imagenet_samples
from experiments.models import PRETRAINED, load_pretrained

NETWORKS = ("cifar10_resnet20", "cifar10_resnet56", "cifar10_vgg16", "imagenet_resnet50")
IMAGES, BATCH = 500, 50
SCALED, COUNTS = "cifar10_resnet20", (125, 250, 500, 1000, 2000)
"""The network that is measured with several numbers of images."""
FACTORS = (2, 3)
BEFORE = {"cifar10_resnet20": 72, "cifar10_resnet56": 70, "cifar10_vgg16": 60}
"""Forward passes of a run before positions were sampled and widths interpolated."""
TARGETS = {
    "cifar10_resnet20": 25,
    "cifar10_resnet56": 25,
    "cifar10_vgg16": 25,
    "imagenet_resnet50": 20,
}


def load(name: str, count: int) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """Return a network, its calibration images, and labeled images for the accuracy."""
    if name == "imagenet_resnet50":
        samples, normalize = imagenet_samples(), PRETRAINED[name].normalization
        images, test = normalize(samples.images[::2]), normalize(samples.images[1::2])
        return load_pretrained(name).eval(), images[:count], test, samples.labels[1::2]
    known = BenchmarkModel.of(name, count)
    return known.model.eval(), known.images, known.test_images[5000:], known.test_labels[5000:]


@torch.no_grad()
def pass_seconds(model: nn.Module, images: Tensor) -> float:
    """Return the seconds of one forward pass of all images."""
    model(images[:BATCH])
    begin = time.perf_counter()
    for batch in images.split(BATCH):
        model(batch)
    return time.perf_counter() - begin


def measure(name: str, count: int) -> dict[str, Any]:
    """Return the costs of one pruner that prunes to several sizes."""
    model, images, test, labels = load(name, count)
    unit = pass_seconds(model, images)
    found: dict[str, Any] = {"pass seconds": round(unit, 2), "threads": torch.get_num_threads()}
    found["intact"] = accuracy(model, test, labels, BATCH)
    with entrim.Pruner(model, images) as pruner:
        for factor in FACTORS:
            begin = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = pruner.prune(entrim.Budget(macs=1 / factor))
            seconds = time.perf_counter() - begin
            found[f"{factor}x"] = {
                "seconds": round(seconds, 1),
                "passes": round(seconds / unit, 1),
                "stages": {k: round(v / unit, 1) for k, v in result.record.seconds.items()},
                "accuracy": accuracy(result.model, test, labels, BATCH),
            }
    found["GiB"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
    return found


def measure_in_process(name: str, count: int) -> dict[str, Any]:
    """Return what `measure` returns in a process of its own."""
    command = [sys.executable, "-m", __name__, name, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def budget_table(points: Mapping[str, dict[str, Any]]) -> str:
    """Return the table of all networks with the same number of images."""
    rows = []
    for name in NETWORKS:
        point = points.get(f"{name}, {IMAGES} images")
        if point is None:
            continue
        first, second = (point[f"{factor}x"] for factor in FACTORS)
        rows.append(
            (
                name,
                BEFORE.get(name, "not completed"),
                f"{first['passes']} ({first['seconds']} s)",
                TARGETS[name],
                ", ".join(f"{stage} {value}" for stage, value in first["stages"].items()),
                second["passes"],
                point["GiB"],
                *(f"{value:.2f}" for value in (point["intact"], *_accuracies(point))),
            )
        )
    head = (
        *("network", "passes before", "passes at 2x", "target", "passes by stage"),
        *("3x afterwards", "peak GiB", "original", "2x", "3x"),
    )
    return table(head, rows)


def image_table(points: Mapping[str, dict[str, Any]]) -> str:
    """Return the run time by the number of images, with the fitted exponent."""
    counts = [c for c in COUNTS if f"{SCALED}, {c} images" in points]
    found = [points[f"{SCALED}, {c} images"] for c in counts]
    rows = [
        (count, point["2x"]["seconds"], point["2x"]["passes"], *_accuracies(point))
        for count, point in zip(counts, found, strict=True)
    ]
    lines = [table(("images", "seconds at 2x", "passes", "accuracy 2x", "3x"), rows)]
    if len(counts) > 1:
        logs = [
            (math.log(count), math.log(point["2x"]["seconds"]))
            for count, point in zip(counts, found, strict=True)
        ]
        slope = statistics.linear_regression(*zip(*logs, strict=True)).slope
        lines.append(f"Seconds grow with the number of images to the power of {slope:.2f}.")
    return "\n\n".join(lines)


def _accuracies(point: Mapping[str, Any]) -> list[float]:
    return [round(point[f"{factor}x"]["accuracy"], 2) for factor in FACTORS]


def main(parts: Sequence[str]) -> None:
    """Measure what is missing in the ledger and write the tables."""
    if not has_weights():
        return
    ledger = Ledger.open("scale")
    wanted = [(name, IMAGES) for name in NETWORKS] + [(SCALED, count) for count in COUNTS]
    for name, count in wanted:
        if not parts or name in parts:
            ledger.point(f"{name}, {count} images", partial(measure_in_process, name, count))
    points = ledger.points()
    note = (
        f"A pruner with {IMAGES} images prunes to a half of the MACs, then to a third. Unit: one "
        "forward pass of these images through the original network in the same process. Accuracy "
        "in percent on images that were not used for pruning (CIFAR-10: test images 5,000-9,999; "
        "ImageNet: 500 samples of other classes than the calibration images), nothing trained."
    )
    sections = [note, budget_table(points), f"## Number of images, {SCALED}", image_table(points)]
    print(write("scale", "python -m experiments bench scale", sections))


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
