"""Accuracy of pruned ImageNet networks without labels, in five folds of 1,000 samples.

`python -m experiments bench imagenet` measures the cases that are missing in its ledger and writes
the table; with names of networks or of cases only those. Defaults are chosen on fold 1, and results
are reported on folds 2-5. The samples are one image per class, so the classes of a fold do not
occur among its calibration images. Needs ENTRIM_ASSETS.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

import entrim
from experiments.benchmarks.cifar import accuracy
from experiments.benchmarks.record import Ledger, has_weights, table, write
from experiments.datasets import imagenet_samples
from experiments.models import PRETRAINED, load_pretrained

FOLDS, BATCH = 5, 50
FACTORS = {
    "imagenet_efficientnet_lite0": (1.25, 1.5, 2.0),
    "imagenet_resnet50": (1.73,),
}
"""Factors of fewer MACs of each network."""


METHODS = ("budget", "budget, recovered", "uniform widths", "magnitude")
STEPS = 7
"""Bisections of the share of channels at uniform widths."""


@dataclass(frozen=True, slots=True)
class Case:
    """One measured network in one fold."""

    network: str
    factor: float
    method: str
    fold: int

    @property
    def name(self) -> str:
        """Key in the ledger."""
        return f"{self.network} | {self.factor}x | {self.method} | fold {self.fold}"


def cases() -> list[Case]:
    """Return all cases, fold by fold."""
    return [
        Case(network, factor, method, fold)
        for fold in range(1, FOLDS + 1)
        for network, factors in FACTORS.items()
        for factor in factors
        for method in METHODS
    ]


def in_fold(fold: int) -> Tensor:
    """Return which of the 1,000 samples are tested in `fold`, 1 to 5."""
    return torch.arange(1000) % FOLDS == fold - 1


@cache
def load(network: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a network with its images and labels."""
    samples = imagenet_samples()
    return (
        load_pretrained(network),
        samples.normalize(PRETRAINED[network].normalization),
        samples.labels,
    )


def uniform_share(pruner: entrim.Pruner, factor: float) -> float:
    """Return the share of channels in every group at which the MACs are `factor` times fewer."""
    full = {group.name: group.channels for group in pruner.graph.groups}
    wanted = pruner.allocator.costs.at(full)["macs"] / factor
    low, high = 0.05, 1.0
    for _ in range(STEPS):
        share = (low + high) / 2
        widths = {name: max(1, int(share * count)) for name, count in full.items()}
        low, high = (
            (share, high) if pruner.allocator.costs.at(widths)["macs"] <= wanted else (low, share)
        )
    return low


def prune(case: Case, images: Tensor) -> entrim.SparsifyResult:
    """Return the network of a case, pruned with `images`."""
    model, _, _ = load(case.network)
    budget = entrim.Budget(macs=1 / case.factor)
    options: dict[str, Any] = {"example_inputs": images[:2]}
    if case.method == "magnitude":
        options |= {"selector": "magnitude", "reconstruction": None}
    if not case.method.startswith("budget"):
        with entrim.Pruner(model, images, **options) as pruner:
            share = uniform_share(pruner, case.factor)
            return pruner.prune(entrim.Widths(share))
    return entrim.sparsify(model, images, budget, **options)


def measure(case: Case) -> dict[str, Any]:
    """Return the accuracy and the agreement of a case on the images of its fold."""
    model, images, labels = load(case.network)
    held = in_fold(case.fold)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = prune(case, images[~held])
        if case.method.endswith("recovered"):
            result = entrim.distill(result)
    record, small = result.record, result.model.eval()
    return {
        "macs": record.before.macs / record.after.macs,
        "params": record.before.params / record.after.params,
        "seconds": {stage: round(value, 1) for stage, value in record.seconds.items()},
        "original": accuracy(model, images[held], labels[held], BATCH),
        "accuracy": accuracy(small, images[held], labels[held], BATCH),
        "agreement": accuracy(small, images[held], predict(model, images[held]), BATCH),
    }


@torch.no_grad()
def predict(model: nn.Module, images: Tensor) -> Tensor:
    """Return the predicted classes."""
    return torch.cat([model(batch).argmax(1) for batch in images.split(BATCH)])


def summary(points: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table: fold 1, and the mean over the measured folds 2 to 5."""
    rows = []
    for case in cases():
        if case.fold != 1:
            continue
        found = {
            fold: points[name]
            for fold in range(1, FOLDS + 1)
            if (name := Case(case.network, case.factor, case.method, fold).name) in points
        }
        others = [point for fold, point in found.items() if fold > 1]
        if not found:
            continue
        means = [_mean(others, key) for key in ("original", "accuracy", "agreement")]
        first = found[1]["accuracy"] if 1 in found else "not measured"
        macs = f"{next(iter(found.values()))['macs']:.2f}x"
        rows.append((case.network, macs, case.method, first, *means, len(others)))
    head = ("network", "fewer MACs", "method", "fold 1", "original", "accuracy", "agreement")
    return table((*head, "folds reported"), rows)


def _mean(points: Sequence[Mapping[str, Any]], key: str) -> float | str:
    return sum(point[key] for point in points) / len(points) if points else "not measured"


def main(parts: Sequence[str]) -> None:
    """Measure what is missing in the ledger and write the table."""
    if not has_weights():
        return
    ledger = Ledger.open("imagenet")
    for case in cases():
        if not parts or case.network in parts or case.name in parts:
            run: Callable[[], dict[str, Any]] = partial(measure, case)
            ledger.point(case.name, run)
    note = (
        "Five folds of 1,000 ImageNet samples, one per class: pruned (and recovered) with 800 "
        "without labels, tested on the other 200, whose classes do not occur among the 800. "
        "Accuracy and agreement in percent on the tested samples; `fold 1` was used for choices, "
        "the other columns are means over the measured folds 2-5. The samples may be training "
        "images of the networks, so only differences count."
    )
    sections = [note, summary(ledger.points())]
    print(write("imagenet", "python -m experiments bench imagenet", sections))
