"""VGG-16 and ResNet-50: seconds by stage, and accuracy before any fine tuning."""

import time
import warnings
from typing import Any

import torch
from torch import nn

import entrim
from entrim import EntropicPenalty, Reconstruction, Widths
from experiments.benchmarks.cifar import BenchmarkModel, accuracy
from experiments.benchmarks.record import Ledger
from experiments.datasets import imagenet_samples, load_cifar10
from experiments.models import PRETRAINED, load_pretrained
from experiments.paper.published import widths

VGG, R50 = "cifar10_vgg16", "imagenet_resnet50"
ROW = "conv_all+fc"
"""The row of the paper's table that prunes all layers."""
EPS = (1e-5, 3e-6, 1e-4)
"""The first two around the paper's sparsity of 88.7 %, the last the value of the paper."""
STEPS, BATCH = 40, 128


def measure_vgg(ledger: Ledger) -> None:
    """Measure VGG-16 at the paper's widths and at our own."""
    tested = BenchmarkModel.of(VGG)
    ledger.point(f"{VGG} intact", lambda: tested.accuracy(tested.model))
    for eps in EPS:
        penalty = EntropicPenalty(eps_w=-eps, eps_l2=eps)
        ledger.point(f"{VGG} eps {eps} default", lambda p=penalty: tested.prune(budget=p))
    printed = Widths(_pruned_widths(widths("VGG-16", ROW)))
    ledger.point(
        f"{VGG} {ROW} magnitude", lambda: tested.prune(budget=printed, selector="magnitude")
    )
    raw = {
        "budget": EntropicPenalty(eps_w=-EPS[-1], eps_l2=EPS[-1]),
        "reconstruction": Reconstruction(weights="solution"),
    }
    ledger.point(f"{VGG} eps {EPS[-1]} paper", lambda: tested.prune(**raw))
    ledger.point(f"{VGG} {ROW} default", lambda: tested.prune(budget=printed))


def measure_time(ledger: Ledger) -> None:
    """Measure a whole run on VGG-16 against an epoch of training, in one process."""
    tested = BenchmarkModel.of(VGG)

    def run() -> dict[str, Any]:
        begin = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            penalty = EntropicPenalty(eps_w=-EPS[-1], eps_l2=EPS[-1])
            result = entrim.sparsify(tested.model, tested.images, penalty)
        seconds = time.perf_counter() - begin
        epoch = _epoch_seconds()
        return {
            "seconds": {k: round(v, 2) for k, v in result.record.seconds.items()},
            "total": seconds,
            "epoch": epoch,
            "fraction": seconds / epoch,
            "threads": torch.get_num_threads(),
        }

    ledger.point(f"{VGG} time", run)


def _epoch_seconds() -> float:
    """Return the seconds of one epoch of training, extrapolated from some steps."""
    train = load_cifar10("train")
    images = PRETRAINED[VGG].normalization(train.images[: STEPS * BATCH])
    model = load_pretrained(VGG).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    begin = time.perf_counter()
    for x, y in zip(images.split(BATCH), train.labels.split(BATCH), strict=False):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return (time.perf_counter() - begin) / STEPS * len(train) / BATCH


def measure_resnet50(ledger: Ledger) -> None:
    """Measure ResNet-50 on ImageNet samples: half for calibration, the others to test."""
    samples = imagenet_samples()
    normalization = PRETRAINED[R50].normalization
    images = normalization(samples.images[::2])
    test, labels = normalization(samples.images[1::2]), samples.labels[1::2]
    model = load_pretrained(R50)
    ledger.point(f"{R50} intact", lambda: {"report": accuracy(model, test, labels, 50)})
    for fraction in (0.7, 0.85):
        methods = {
            "default": {"selector": "greedy"},
            "magnitude, old weights": {"selector": "magnitude", "reconstruction": None},
        }
        for name, options in methods.items():
            inner = {"include": ("*.conv1", "*.conv2"), "budget": Widths(fraction), **options}

            def run(o: dict[str, Any] = inner) -> dict[str, Any]:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    r = entrim.sparsify(model, images, **o)
                return {
                    "macs": r.record.before.macs / r.record.after.macs,
                    "params": r.record.before.params / r.record.after.params,
                    "seconds": {k: round(v, 1) for k, v in r.record.seconds.items()},
                    "report": accuracy(r.model, test, labels, 50),
                }

            ledger.point(f"{R50} {name} {fraction}", run)


def _pruned_widths(printed: dict[str, int]) -> dict[str, int | float]:
    """Return the widths of the layers that are pruned."""
    model = load_pretrained(VGG)
    return {
        name: width
        for name, width in printed.items()
        if width < model.get_parameter(f"{name}.weight").shape[0]
    }
