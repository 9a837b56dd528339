"""A budgeted run in units of forward passes: seconds by stage, memory and accuracy.

`python -m experiments bench scale` measures what is missing in its ledger and writes the tables;
with names of networks or cases only those, with "many" only the run on thousands of images, with
"layer" only the sweeps of one layer. Every run is a process
of its own with one thread, so that the peak memory is its own. Needs ENTRIM_ASSETS; MobileNetV2 and
ConvNeXt come from transformers.
"""

import json
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import entrim
from experiments.benchmarks.cifar import REPORT, BenchmarkModel, accuracy
from experiments.benchmarks.exponents import SWEEPS, exponent_table, fit_exponent, measure_sweep
from experiments.benchmarks.record import Ledger, has_weights, table, write
from experiments.datasets import imagenet_samples
from experiments.models import PRETRAINED, CifarResNet, load_pretrained, padding_shortcut

BATCH, THREADS, CLASSES = 50, 1, 1000
LARGE, FEW_IMAGES = 3 * 64 * 64, 100
"""Of images with more values, a pass is timed on this many only."""
FACTORS = (2, 3)
"""CIFAR networks are pruned to both, others to the first."""
BLOCKS = {"ResNet-20": 3, "ResNet-32": 5, "ResNet-44": 7, "ResNet-56": 9}
"""Blocks in each stage of the networks that are measured with random weights."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run: a network, its images, and whether some of them are held out."""

    network: str
    images: int = 500
    side: int = 0
    """Height and width of the images if they are not the usual ones."""
    uses_all: int = 0
    """1 if no images are held out."""

    @property
    def key(self) -> str:
        """The name of the case in the ledger."""
        side = f" of {self.side} x {self.side}" if self.side else ""
        held = ", none held out" if self.uses_all else ""
        return f"{self.network}, {self.images} images{side}{held}"

    @property
    def calibration(self) -> entrim.Calibration:
        """The options of the run."""
        return entrim.Calibration(holdout=0) if self.uses_all else entrim.Calibration()


NETWORKS = (
    *map(Case, ("cifar10_resnet20", "cifar10_resnet56", "cifar10_vgg16", "imagenet_resnet50")),
    Case("cifar10_resnet20", uses_all=1),
    Case("MobileNetV2", 200),
    Case("ConvNeXt", 100),
)
COUNTS = [Case("cifar10_resnet20", count) for count in (125, 250, 500, 1000, 2000)]
SIDES = [Case("MobileNetV2", 100, side) for side in (112, 224, 448)]
DEPTHS = [Case(name) for name in BLOCKS]
BEFORE = {"cifar10_resnet20": 72, "cifar10_resnet56": 70, "cifar10_vgg16": 60}
"""Forward passes of a run before positions were sampled and widths interpolated."""
TARGETS = {"imagenet_resnet50": 20}
USUAL_TARGET = 25
VERSION = 3
"""Version of the costs: 1 before channels-last execution, mirror images by default and fewer images
for the sensitivity; 2 before fewer rows of wide layers and one factorization for all rounds of a
layer. Points of the ledger keep the version with which they were measured."""
MANY = 5000
"""Number of images of 224 x 224 of the run whose memory is measured."""


def build_random(name: str) -> nn.Module:
    """Return a network with random weights from seed 0, in eval mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if name in BLOCKS:
            return CifarResNet((16, 32, 64), BLOCKS[name], padding_shortcut).eval()
        import transformers

        if name == "MobileNetV2":
            config = transformers.MobileNetV2Config()
            config.num_labels = CLASSES
            return transformers.MobileNetV2ForImageClassification(config).eval()
        config = transformers.ConvNextConfig()
        config.num_labels = CLASSES
        return transformers.ConvNextForImageClassification(config).eval()


Score = Callable[[nn.Module], float | None]


def load(case: Case) -> tuple[nn.Module, Tensor, Score]:
    """Return the network, its calibration images, and its accuracy on others."""
    name, count = case.network, case.images
    if name == "imagenet_resnet50":
        samples, normalize = imagenet_samples(), PRETRAINED[name].normalization
        images, test = normalize(samples.images[::2]), normalize(samples.images[1::2])
        labels = samples.labels[1::2]
        return load_pretrained(name), images[:count], lambda m: accuracy(m, test, labels, BATCH)
    if name in PRETRAINED:
        known = BenchmarkModel.of(name, count)
        test, labels = known.test_images[REPORT], known.test_labels[REPORT]
        return known.model.eval(), known.images, lambda m: accuracy(m, test, labels)
    side = case.side or (32 if name in BLOCKS else 224)
    generator = torch.Generator().manual_seed(1)
    return (
        build_random(name),
        torch.randn(count, 3, side, side, generator=generator),
        lambda _: None,
    )


@dataclass(slots=True)
class PassClock:
    """Times forward passes of the calibration images; other load on the machine changes slowly."""

    model: nn.Module
    images: Tensor
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """Processor seconds, which do not count waiting for a core."""

    @torch.no_grad()
    def tick(self) -> None:
        """Time one pass; of large images it is extrapolated from the first of them."""
        some = self.images[:FEW_IMAGES] if self.images[0].numel() > LARGE else self.images
        self.model(some[:1])
        wall, cpu = time.perf_counter(), time.process_time()
        for batch in some.split(BATCH):
            self.model(batch)
        scale = len(self.images) / len(some)
        self.wall.append((time.perf_counter() - wall) * scale)
        self.cpu.append((time.process_time() - cpu) * scale)

    @property
    def unit(self) -> float:
        """The median of the seconds of a pass."""
        return statistics.median(self.wall)

    @property
    def cpu_unit(self) -> float:
        """The median of the processor seconds of a pass."""
        return statistics.median(self.cpu)


def prune_stepwise(
    pruner: entrim.Pruner, target: entrim.Budget, clock: PassClock
) -> tuple[entrim.SparsifyResult, dict[str, float]]:
    """Return the result and its seconds; passes are timed before, between and after the steps."""
    wall = cpu = 0.0
    found: list[entrim.SparsifyResult] = []
    works: list[Callable[[], object]] = []
    if "allocator" not in pruner.__dict__:
        works += [
            lambda: pruner.graph,
            lambda: pruner.statistics,
            lambda: pruner.allocator.rankings,
            lambda: pruner.allocator.curves,
        ]
    works.append(lambda: found.append(pruner.prune(target)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for work in works:
            clock.tick()
            begin, cpu_begin = time.perf_counter(), time.process_time()
            work()
            wall += time.perf_counter() - begin
            cpu += time.process_time() - cpu_begin
    clock.tick()
    return found[0], {"seconds": wall, "cpu seconds": cpu}


def measure(case: Case) -> dict[str, Any]:
    """Return the costs of one pruner that prunes to one or several sizes."""
    torch.set_num_threads(THREADS)
    model, images, score = load(case)
    clock = PassClock(model, images)
    factors = FACTORS if case.network.startswith("cifar10") else FACTORS[:1]
    with entrim.Pruner(model, images, calibration=case.calibration) as pruner:
        results = {
            factor: prune_stepwise(pruner, entrim.Budget(macs=1 / factor), clock)
            for factor in factors
        }
    found: dict[str, Any] = {
        "GiB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "pass seconds": round(clock.unit, 3),
        "pass seconds by time": [round(seconds, 3) for seconds in clock.wall],
        "pass cpu seconds": round(clock.cpu_unit, 3),
        "version": VERSION,
        "groups": len(results[factors[0]][0].record.groups),
        "original": score(model),
    }
    for factor, (result, seconds) in results.items():
        record = result.record
        found[f"{factor}x"] = {
            **{key: round(value, 1) for key, value in seconds.items()},
            "passes": round(seconds["seconds"] / clock.unit, 1),
            "cpu passes": round(seconds["cpu seconds"] / clock.cpu_unit, 1),
            "stages": {k: round(v, 2) for k, v in record.seconds.items()},
            "macs": round(record.before.macs / record.after.macs, 2),
            "accuracy": score(result.model),
        }
    return found


def measure_in_process(case: Case) -> dict[str, Any]:
    """Return what `measure` returns in a process of its own."""
    given = map(str, (case.network, case.images, case.side, case.uses_all))
    return _printed([sys.executable, "-m", __name__, *given])


def _printed(command: Sequence[str]) -> dict[str, Any]:
    """Return the JSON in the last line that a command prints."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


Points = Mapping[str, dict[str, Any]]
TIMES = (
    "Every case is a process of its own. The cases were run at different times on a machine that "
    "other programs used too: times of different cases are not comparable, and passes are ratios "
    "within one process."
)


def network_table(points: Points) -> str:
    """Return the costs and the accuracy of every measured network."""
    rows = []
    for key, case in ((key, one) for one in NETWORKS for key in keys_of(one)):
        point = points.get(key)
        if point is None:
            continue
        first, second = point["2x"], point.get("3x")
        stages = ", ".join(f"{stage} {value:.3g}" for stage, value in first["stages"].items())
        rows.append(
            (
                case.key,
                point.get("version", 1),
                point["groups"],
                BEFORE.get(case.network, "-"),
                f"{first['passes']} ({first['cpu passes']})",
                TARGETS.get(case.network, USUAL_TARGET),
                first["seconds"],
                stages,
                point["GiB"],
                _percent(point["original"]),
                _percent(first["accuracy"]),
                "-" if second is None else f"{second['passes']} ({second['cpu passes']})",
                "-" if second is None else _percent(second["accuracy"]),
            )
        )
    head = (
        *(
            "network",
            "version",
            "groups",
            "passes before",
            "passes at 2x (of processor time)",
            "target",
        ),
        *("seconds", "seconds by stage", "peak GiB", "accuracy", "2x"),
        *("3x afterwards, passes", "3x"),
    )
    return table(head, rows)


def keys_of(case: Case) -> list[str]:
    """Return the keys of the points of all versions, the newest last."""
    return [*(f"{case.key}, version {number}" for number in range(1, VERSION)), case.key]


def growth_table(points: Points, cases: Sequence[Case], name: str, sizes: Sequence[int]) -> str:
    """Return the costs of comparable runs by one of their sizes, with exponents of the seconds.

    Stages are in passes of the same process, because the load differs between processes.
    """
    newest = [
        next((points[key] for key in reversed(keys_of(case)) if key in points), None)
        for case in cases
    ]
    known = [(size, point) for size, point in zip(sizes, newest, strict=True) if point is not None]
    columns: dict[str, list[float]] = {
        "one pass, s": [point["pass cpu seconds"] for _, point in known],
        "run, s": [point["2x"]["cpu seconds"] for _, point in known],
    }
    stages = ("trace", "collect", "select", "sensitivity", "reconstruct")
    rows: list[tuple[object, ...]] = []
    for number, (size, point) in enumerate(known):
        passes = [round(point["2x"]["stages"][s] / point["pass seconds"], 1) for s in stages]
        seconds = (values[number] for values in columns.values())
        version = point.get("version", 1)
        rows.append((size, version, *seconds, point["2x"]["cpu passes"], *passes, point["GiB"]))
    if len(known) > 1:
        sizes = [size for size, _ in known]
        fitted = [f"{fit_exponent(sizes, values):.2f}" for values in columns.values()]
        rows.append(("exponent", "-", *fitted, *["-"] * (len(stages) + 2)))
    return table((name, "version", *columns, "passes", *stages, "peak GiB"), rows)


def many_table(point: Mapping[str, Any]) -> str:
    """Return the costs of the run on thousands of images of 224 x 224."""
    head = ("images", "peak GiB", "disk GiB", "one pass, s", "run, s", "passes", "notes")
    names = ("GiB", "disk GiB", "pass cpu seconds", "cpu seconds", "cpu passes")
    return table(head, [(MANY, *(point[name] for name in names), " ".join(point["notes"]))])


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def main(parts: Sequence[str]) -> None:
    """Measure what is missing in the ledger and write the tables."""
    if not has_weights():
        return
    ledger = Ledger.open("scale")
    for case in dict.fromkeys([*NETWORKS, *COUNTS, *SIDES, *DEPTHS]):
        if not parts or {case.network, case.key} & set(parts):
            ledger.point(case.key, partial(measure_in_process, case))
    if not parts or "many" in parts:
        command = [sys.executable, "-m", "experiments.benchmarks.many_images", str(MANY)]
        ledger.point(f"{MANY} images", lambda: _printed(command))
    if not parts or "layer" in parts:
        torch.set_num_threads(THREADS)
        for size in SWEEPS:
            ledger.point(size, partial(measure_sweep, size))
    print(write("scale", "python -m experiments bench scale", sections(ledger.points()), TIMES))


def sections(points: Points) -> list[str]:
    """Return the sections of the record."""
    found = [
        "A pruner with all defaults prunes to half of the MACs, CIFAR networks then to a third. "
        "Unit: one forward pass of the calibration images through the original network in the same "
        "process, the median of passes before, between and after the stages; in parentheses the "
        "same ratio in processor time, which does not count waiting for a core. One thread. "
        "Accuracy in percent without training, on images "
        "that were not used for pruning (CIFAR-10: test images 5,000-9,999; ImageNet: 500 samples "
        "of other classes than the calibration images). MobileNetV2, ConvNeXt and the networks of "
        "the section on depth have random weights and random images.",
        network_table(points),
        "## Number of images, cifar10_resnet20",
        "One pass and run in processor seconds, the rest in passes.",
        growth_table(points, COUNTS, "images", [case.images for case in COUNTS]),
        "## Side of the images, MobileNetV2, 100 images",
        growth_table(points, SIDES, "side", [case.side for case in SIDES]),
        "## Depth, residual networks for CIFAR-10, 500 images",
        growth_table(points, DEPTHS, "layers", [6 * n + 2 for n in BLOCKS.values()]),
    ]
    if f"{MANY} images" in points:
        found += ["## Thousands of images", many_table(points[f"{MANY} images"])]
    if all(size in points for size in SWEEPS):
        found += ["## One layer", exponent_table(points)]
    return found


if __name__ == "__main__":
    given = Case(sys.argv[1], *map(int, sys.argv[2:]))
    print(json.dumps(measure(given)))
