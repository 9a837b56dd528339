"""VGG-16 and ResNet-50: seconds by stage, and accuracy before any fine tuning."""

import time
import warnings
from typing import Any

import torch
from torch import nn

import entrim
from experiments.benchmarks.cifar import Subject, percent_right
from experiments.benchmarks.ledger import Ledger
from experiments.datasets import imagenet_samples, load_cifar10
from experiments.models import PRETRAINED, pretrained
from experiments.paper.published import widths

VGG, R50 = "cifar10_vgg16", "imagenet_resnet50"
RAW = {"mode": "independent", "refit": False}
ROW = "conv_all+fc"
"""Of the paper's table: everything that it cuts."""
EPS = (1e-5, 3e-6, 1e-4)
"""The first two around the paper's sparsity of 88.7 %, the last its own strength."""
STEPS, BATCH = 40, 128


def measure_vgg(ledger: Ledger) -> None:
    """Measure VGG-16 at the paper's widths and at our own."""
    subject = Subject.of(VGG)
    ledger.point(f"{VGG} intact", lambda: subject.accuracy(subject.model))
    for eps in EPS:
        options = {"eps_w": -eps, "eps_l2": eps}
        ledger.point(f"{VGG} eps {eps} default", lambda o=options: subject.sparsified(**o))
    wanted = _narrower(widths("VGG-16", ROW))
    fixed = {"widths": wanted, "selector": "magnitude"}
    ledger.point(f"{VGG} {ROW} magnitude", lambda: subject.sparsified(**fixed))
    raw = {"eps_w": -EPS[-1], "eps_l2": EPS[-1], **RAW}
    ledger.point(f"{VGG} eps {EPS[-1]} paper", lambda: subject.sparsified(**raw))
    slow = {"widths": wanted}
    ledger.point(f"{VGG} {ROW} default", lambda: subject.sparsified(**slow))


def measure_time(ledger: Ledger) -> None:
    """Measure a whole run on VGG-16 against an epoch of training, in one process."""
    subject = Subject.of(VGG)

    def both() -> dict[str, Any]:
        begin = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = entrim.sparsify(subject.model, subject.images, -EPS[-1], EPS[-1])
        seconds = time.perf_counter() - begin
        epoch = _epoch_seconds()
        return {
            "seconds": {k: round(v, 2) for k, v in result.record.seconds.items()},
            "total": seconds,
            "epoch": epoch,
            "fraction": seconds / epoch,
            "threads": torch.get_num_threads(),
        }

    ledger.point(f"{VGG} time", both)


def _epoch_seconds() -> float:
    """Return the seconds of one epoch of training, extrapolated from some steps."""
    train = load_cifar10("train")
    images = PRETRAINED[VGG].normalization(train.images[: STEPS * BATCH])
    model = pretrained(VGG).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    begin = time.perf_counter()
    for x, y in zip(images.split(BATCH), train.labels.split(BATCH), strict=False):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return (time.perf_counter() - begin) / STEPS * len(train) / BATCH


def measure_resnet50(ledger: Ledger) -> None:
    """Measure ResNet-50 on samples of ImageNet: every second one to look at, the others to test."""
    samples = imagenet_samples()
    how = PRETRAINED[R50].normalization
    images = how(samples.images[::2])
    test, labels = how(samples.images[1::2]), samples.labels[1::2]
    model = pretrained(R50)
    ledger.point(f"{R50} intact", lambda: {"report": percent_right(model, test, labels, 50)})
    for fraction in (0.7, 0.85):
        ways = {
            "default": {"selector": "greedy"},
            "magnitude, old weights": {"selector": "magnitude", **RAW},
        }
        for name, options in ways.items():
            inner = {"layers": ("*.conv1", "*.conv2"), "widths": {"*": fraction}, **options}

            def once(o: dict[str, Any] = inner) -> dict[str, Any]:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    r = entrim.sparsify(model, images, **o)
                return {
                    "macs": r.record.before.macs / r.record.after.macs,
                    "params": r.record.before.params / r.record.after.params,
                    "seconds": {k: round(v, 1) for k, v in r.record.seconds.items()},
                    "report": percent_right(r.model, test, labels, 50),
                }

            ledger.point(f"{R50} {name} {fraction}", once)


def _narrower(wanted: dict[str, int]) -> dict[str, int | float]:
    """Return the widths without the layers that stay whole."""
    model = pretrained(VGG)
    return {
        name: width
        for name, width in wanted.items()
        if width < model.get_parameter(f"{name}.weight").shape[0]
    }
