"""Whether the figures on hold-out images are right, and the reconstruction with few images.

`python -m experiments bench trust` measures what is missing in its ledger and then writes the
tables; with names of parts (curve, zoo, lenet, cifar10_resnet20, cifar10_resnet56) only those.
Needs ENTRIM_ASSETS.

A network is pruned with several sets of fitting images. Its agreement with the original is then
computed once on all test images. Hold-out images are drawn many times: among those of the first
half that it was not fitted on, to compare with the second half, and from a random half of all of
them, to compare with the other half. Only in the second way are they drawn like the other images.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

import entrim
from entrim.allocation.allocate import BOTH, AllocationProblem, Selection, agreement_points
from entrim.metrics import compare, lower_bound
from entrim.selection.base import ChannelSelection
from experiments.benchmarks.cifar import REPORT, BenchmarkModel, accuracy
from experiments.benchmarks.record import Ledger, check_line, has_weights, table, write
from experiments.benchmarks.widths import load_model
from experiments.datasets import load_cifar10, load_mnist
from experiments.models import PRETRAINED, ZOO
from experiments.normalization import MNIST

NETWORKS = {"lenet": 10, "cifar10_resnet20": 3, "cifar10_resnet56": 1}
"""The number of sets of fitting images for each network."""
FACTORS = (2, 3)
HELD = (50, 200)
"""Numbers of hold-out images."""
FITTING = 300
"""Of 500 images, those that remain if 200 are held out."""
SPLITS = 100
"""How often hold-out images are drawn for each pruned network."""
GOAL, CONFIDENCE = 0.9, 0.95
HOPELESS = 0.05
"""The path ends where the agreement on test images is this far below the goal."""
POOL = slice(0, 5000)
"""The test images from which calibration and hold-out images are drawn."""
TRAINING = 2000
"""Training images on which the agreement is measured."""
CURVE = (25, 50, 100, 250, 500)
CURVE_SEEDS = 3
HALF = {"budget": entrim.Widths(0.5), "exclude": "conv1"}
"""Half of the channels inside the blocks of ResNet-20: 1.98 times fewer MACs."""
ZOO_IMAGES, ZOO_SIDE = 96, 64
"""Fitting images with random weights, and the largest side of an image."""


def draw(count: int, drawn: int, seed: int) -> Tensor:
    """Return `drawn` of `count` numbers, at random without replacement."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:drawn]


@torch.no_grad()
def predictions(model: nn.Module, images: Tensor) -> Tensor:
    """Return the predicted class of every image."""
    return torch.cat([model(x).argmax(1) for x in images.split(500)])


def inside(same: Tensor, true: float, count: int) -> list[float]:
    """Return the mean reported agreement, and how often its interval contains the `true` one."""
    drawn = [same[draw(len(same), count, split)].double() for split in range(SPLITS)]
    hits = sum(contains(shares, true) for shares in drawn)
    return [mean(float(shares.mean()) for shares in drawn), hits]


def inside_of_half(same: Tensor, count: int) -> list[float]:
    """Return the same, with hold-out images of a random half and the truth of the other half."""
    reported, hits = [], 0
    for split in range(SPLITS):
        half, other = same[draw(len(same), len(same), split)].double().tensor_split(2)
        reported.append(float(half[:count].mean()))
        hits += contains(half[:count], float(other.mean()))
    return [mean(reported), hits]


def contains(shares: Tensor, true: float) -> bool:
    """Return whether the interval of the agreement of some images contains the `true` one."""
    tail = (1 - CONFIDENCE) / 2
    low, high = lower_bound(shares, 1 - tail), 1 - lower_bound(1 - shares, 1 - tail)
    return low <= true <= high


def path_of(pruner: entrim.Pruner) -> list[tuple[float, Selection]]:
    """Return the points that an agreement target tests: the share of MACs, and the channels."""
    problem = AllocationProblem(
        costs=pruner.allocator.costs,
        curves=pruner.allocator.curves,
        full_widths={group.name: group.channels for group in pruner.graph.groups},
        min_widths={name: ranking.min_width for name, ranking in pruner.allocator.rankings.items()},
    )
    points = agreement_points(problem, problem.greedy_path({}, then=BOTH))
    found = []
    for point in points:
        channels = {
            name: ChannelSelection(kept=ranking.kept(point.widths[name]), reason="")
            for name, ranking in pruner.allocator.rankings.items()
        }
        found.append((point.costs["macs"] / problem.sizes["macs"], Selection(channels, {})))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A network with a set of fitting images, and the test images that compare it."""

    tested: BenchmarkModel
    original: Tensor
    """The predictions of the network on all test images."""
    fitting: Tensor
    held: Tensor
    """Test images of the first half that are not fitting images."""
    unseen: Tensor
    """All test images that are not fitting images."""

    @classmethod
    def of(cls, tested: BenchmarkModel, number: int) -> "Sample":
        """Return the network with one set of fitting images."""
        pool = tested.test_images[POOL]
        order = draw(len(pool), len(pool), number)
        held = order[FITTING:]
        second = torch.arange(REPORT.start, REPORT.stop)
        original = predictions(tested.model, tested.test_images)
        return cls(tested, original, pool[order[:FITTING]], held, torch.cat([held, second]))

    def pruner(self) -> entrim.Pruner:
        """Return a pruner that uses all fitting images."""
        calibration = entrim.Calibration(holdout=0)
        return entrim.Pruner(self.tested.model, self.fitting, calibration=calibration)

    def same(self, small: nn.Module) -> tuple[Tensor, float]:
        """Return where a network agrees with the original, and its agreement on `REPORT`."""
        same = predictions(small.eval(), self.tested.test_images) == self.original
        return same, float(same[REPORT].double().mean())


def measure_coverage(sample: Sample) -> dict[str, Any]:
    """Return the coverage of the reported agreement, with the truth of the second half."""
    found: dict[str, Any] = {}
    for factor, (same, test) in agreements(sample).items():
        counts = {str(count): inside(same[sample.held], test, count) for count in HELD}
        found[f"{factor}x"] = {"test": test, **counts}
    return found


def measure_halves(sample: Sample) -> dict[str, Any]:
    """Return the coverage of the reported agreement on random halves of the test images."""
    return {
        f"{factor}x": {
            "test": float(same[sample.unseen].double().mean()),
            **{str(count): inside_of_half(same[sample.unseen], count) for count in HELD},
        }
        for factor, (same, _) in agreements(sample).items()
    }


def agreements(sample: Sample) -> dict[int, tuple[Tensor, float]]:
    """Return where the network agrees with the original at every size, and how often."""
    with sample.pruner() as pruner:
        return {
            factor: sample.same(pruner.prune(entrim.Budget(macs=1 / factor)).model)
            for factor in FACTORS
        }


def measure_guarantee(sample: Sample) -> dict[str, Any]:
    """Return how often a guaranteed agreement holds over draws of hold-out images.

    The test of the points is that of the allocation.
    """
    tested: list[tuple[float, Tensor, float]] = [(1.0, torch.ones(0), 1.0)]
    with sample.pruner() as pruner:
        for macs, selection in path_of(pruner):
            every, test = sample.same(pruner.apply(selection).model)
            same = every[sample.held].double()
            tested.append((macs, same, test))
            if min(test, float(same.mean())) < GOAL - HOPELESS:
                break
    holds, kept, agreements = 0, [], []
    for split in range(SPLITS):
        at = 0
        while at + 1 < len(tested):
            same = tested[at + 1][1]
            if lower_bound(same[draw(len(same), max(HELD), split)], CONFIDENCE) < GOAL:
                break
            at += 1
        macs, _, test = tested[at]
        holds, kept, agreements = holds + (test >= GOAL), [*kept, macs], [*agreements, test]
    return {"holds": holds, "macs": mean(kept), "agreement": mean(agreements)}


def measure_training(tested: BenchmarkModel) -> dict[str, Any]:
    """Return the agreement on unseen training images and on test images."""
    images = training_images(tested.name)
    order = draw(len(images), FITTING + TRAINING, 0)
    fitting, unseen = images[order].split([FITTING, TRAINING])
    found = {}
    calibration = entrim.Calibration(holdout=0)
    with entrim.Pruner(tested.model, fitting, calibration=calibration) as pruner:
        for factor in FACTORS:
            small = pruner.prune(entrim.Budget(macs=1 / factor)).model.eval()
            found[f"{factor}x"] = [
                float((predictions(small, x) == predictions(tested.model, x)).double().mean())
                for x in (unseen, tested.test_images[REPORT])
            ]
    return found


def training_images(name: str) -> Tensor:
    """Return all training images of a network."""
    if name == "lenet":
        return load_mnist("train").normalize(MNIST)
    return load_cifar10("train").normalize(PRETRAINED[name].normalization)


def measure_network(ledger: Ledger, name: str) -> None:
    """Measure one network with all sets of fitting images."""
    tested = load_model(name)
    tested.model.eval()
    ledger.point(f"{name} training", lambda: measure_training(tested))
    parts = {
        "coverage": measure_coverage,
        "halves": measure_halves,
        "guarantee": measure_guarantee,
    }
    for part, measure in parts.items():
        for number in range(NETWORKS[name]):
            work = lambda n=number, m=measure: m(Sample.of(tested, n))  # noqa: E731
            ledger.point(f"{name} {part} {number}", work)


def measure_curve(ledger: Ledger) -> None:
    """Measure ResNet-20 at half of the widths with few images, chosen by entrim or at random."""
    tested = BenchmarkModel.of("cifar10_resnet20", max(CURVE))

    def run(count: int, seed: int, options: Mapping[str, Any]) -> dict[str, Any]:
        images = tested.images[draw(max(CURVE), count, seed)]
        result = entrim.sparsify(tested.model, images, seed=seed, **HALF, **options)
        unseen = tested.test_images[REPORT], tested.test_labels[REPORT]
        return {"accuracy": accuracy(result.model, *unseen)}

    cases: dict[str, Mapping[str, Any]] = {
        "default": {"selector": "greedy"},
        "no mirror images": {
            "selector": "greedy",
            "reconstruction": entrim.Reconstruction(mirror=False),
        },
        "random channels": {"selector": "random"},
    }
    for case, options in cases.items():
        for seed in range(CURVE_SEEDS):
            for count in CURVE:
                work = lambda c=count, s=seed, o=options: run(c, s, o)  # noqa: E731
                ledger.point(f"curve {case} {count} {seed}", work)


def measure_zoo(ledger: Ledger) -> None:
    """Measure the error on unseen images with and without reconstruction; random weights."""

    def run(name: str) -> dict[str, Any]:
        entry = ZOO[name]
        model = entry.model()
        shape = (entry.image[0], *(min(side, ZOO_SIDE) for side in entry.image[1:]))
        generator = torch.Generator().manual_seed(1)
        images, unseen = (
            torch.randn(count, *shape, generator=generator) for count in (ZOO_IMAGES, 200)
        )
        errors = []
        for reconstruction in (entrim.Reconstruction(), None):
            small = entrim.sparsify(
                model,
                images,
                entrim.Widths(0.5),
                selector="magnitude",
                reconstruction=reconstruction,
            ).model
            error = compare(small, model, unseen.split(50), ("values",)).error()
            assert error is not None
            errors.append(error.value)
        return {"refitted": errors[0], "original weights": errors[1]}

    for name in ZOO:
        ledger.point(f"zoo {name}", lambda name=name: run(name))


Points = Mapping[str, Mapping[str, Any]]


def points_of(points: Points, start: str) -> list[Mapping[str, Any]]:
    """Return the points whose key begins with `start`."""
    return [point for key, point in points.items() if key.startswith(f"{start} ")]


def coverage_rows(points: Points, part: str) -> str:
    """Return in how many splits the interval contains the agreement on other images."""
    rows, lines = [], []
    for name in NETWORKS:
        found = points_of(points, f"{name} {part}")
        for factor in FACTORS if found else ():
            test = mean(point[f"{factor}x"]["test"] for point in found)
            for count in HELD:
                figures = [point[f"{factor}x"][str(count)] for point in found]
                hits, splits = sum(hits for _, hits in figures), SPLITS * len(found)
                reported = mean(value for value, _ in figures)
                rows.append([name, f"{factor}x", count, reported, test, hits, splits, len(found)])
                case = f"{name}, {factor}x, {count} hold-out images: {hits} of {splits}"
                lines.append(check_line(case, hits >= 0.9 * splits))
    header = (
        "network",
        "fewer MACs",
        "held out",
        "reported",
        "other images",
        "inside",
        "splits",
        "pruned networks",
    )
    return "\n\n".join([table(header, rows), "\n".join(lines)])


def coverage_section(points: Points) -> str:
    """Return how often the interval contains the agreement on test images of the second half."""
    title = "## Reported agreement against the agreement on test images 5,000-9,999"
    note = (
        f"Every network is pruned with {FITTING} of the test images 0-4,999. The hold-out images "
        f"of its {SPLITS} splits are drawn among the others; the pruned network is the same for "
        "these splits. A split counts if the 95 % interval contains the agreement on test images "
        "5,000-9,999."
    )
    return "\n\n".join([title, note, coverage_rows(points, "coverage")])


def halves_section(points: Points) -> str:
    """Return the same where hold-out images and other images are drawn in the same way."""
    title = "## The same on random halves of the test images"
    note = (
        "The test images that a network was not fitted on are divided at random for every split. "
        "Hold-out images are taken from one half, and the agreement on the other one is the truth: "
        "both are drawn in the same way, as the interval assumes."
    )
    return "\n\n".join([title, note, coverage_rows(points, "halves")])


def guarantee_section(points: Points) -> str:
    """Return how often a guaranteed agreement holds on test images, and what it saves."""
    rows, lines = [], []
    for name in NETWORKS:
        found = points_of(points, f"{name} guarantee")
        if found:
            holds, splits = sum(point["holds"] for point in found), SPLITS * len(found)
            kept, agreement = (mean(p[key] for p in found) for key in ("macs", "agreement"))
            rows.append([name, agreement, kept, holds, splits, len(found)])
            case = f"{name}: {holds} of {splits}, {kept:.2f} of the MACs kept"
            lines.append(check_line(case, holds >= 0.93 * splits and kept <= 0.85))
    header = ("network", "mean agreement", "MACs kept", "holds", "splits", "sets of fitting images")
    total = FITTING + max(HELD)
    title = f"## Budget(agreement={GOAL}, confidence={CONFIDENCE}), {total} images"
    note = (
        f"{FITTING} fitting and {max(HELD)} hold-out images. The path of networks is computed once "
        "for each set of fitting images; the hold-out images that select on it are drawn anew for "
        "every split. It holds if the agreement on test images 5,000-9,999 is at least the target."
    )
    return "\n\n".join([title, note, table(header, rows), "\n".join(lines)])


def training_section(points: Points) -> str:
    """Return how far the reported agreement is off if the images are training images."""
    rows = []
    for name in NETWORKS:
        point = points.get(f"{name} training")
        for factor in FACTORS if point else ():
            assert point is not None
            reported, test = point[f"{factor}x"]
            rows.append([name, f"{factor}x", reported, test, reported - test])
    header = ("network", "fewer MACs", "unseen training images", "test images", "too high by")
    return "\n\n".join(["## Training images as calibration images", table(header, rows)])


def curve_section(points: Points) -> str:
    """Return the accuracy by number of images."""
    rows, means = [], {}
    for case in ("default", "no mirror images", "random channels"):
        found = [points_of(points, f"curve {case} {count}") for count in CURVE]
        if all(found):
            seeds = min(map(len, found))
            means[case] = [mean(point["accuracy"] for point in some[:seeds]) for some in found]
            rows.append([case, *means[case], seeds])
    lines = []
    if "default" in means:
        default = means["default"]
        at = default[CURVE.index(100)]
        lines = [
            check_line(f"at least 84 with 100 images: {at:.2f}", at >= 84),
            check_line(f"at least 86 with 100 images (stretch): {at:.2f}", at >= 86),
            check_line("rising with the number of images", default == sorted(default)),
        ]
    header = ("accuracy on test images 5,000-9,999", *map(str, CURVE), "seeds")
    title = "## ResNet-20 at half of the widths (1.98 times fewer MACs) by number of images"
    note = (
        "Training images in total; a fifth of them, at most 50, is held out. Nothing is trained. "
        "The original has 91.98."
    )
    return "\n\n".join([title, note, table(header, rows), "\n".join(lines)])


def zoo_section(points: Points) -> str:
    """Return the errors on unseen images with random weights."""
    rows = []
    for name in ZOO:
        if point := points.get(f"zoo {name}"):
            new, old = point["refitted"], point["original weights"]
            rows.append([name, new, old, new / old])
    worst = max((row[-1] for row in rows), default=0.0)
    title = f"## Random weights, {ZOO_IMAGES} images, half of the channels: error on unseen images"
    header = ("network", "refitted", "original weights", "ratio")
    lines = [check_line(f"ratio never above 1.1: {worst:.3g}", worst <= 1.1)] if rows else []
    return "\n\n".join([title, table(header, rows), *lines])


SECTIONS: Sequence[tuple[str, Callable[[Points], str]]] = (
    ("coverage", coverage_section),
    ("halves", halves_section),
    ("guarantee", guarantee_section),
    ("training", training_section),
    ("curve", curve_section),
    ("zoo", zoo_section),
)
"""The sections of the record, and the word in the keys of the points that they need."""


def main(parts: Sequence[str]) -> None:
    """Measure the requested parts, then write the tables of all known points."""
    if not has_weights():
        return
    ledger = Ledger.open("trust")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part in parts or ("curve", "zoo", *NETWORKS):
            if part == "curve":
                measure_curve(ledger)
            elif part == "zoo":
                measure_zoo(ledger)
            else:
                measure_network(ledger, part)
    points = ledger.points()
    sections = [
        section(points) for part, section in SECTIONS if any(part in key.split() for key in points)
    ]
    print(write("trust", "python -m experiments bench trust", sections))
