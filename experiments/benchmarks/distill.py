"""What distillation brings back on ResNet-20, with 500 and with 5,000 unlabelled images.

`python -m experiments bench distill` measures everything that its ledger lacks, then writes the
tables; with names of parts (report, choose) only those. Needs ENTRIM_ASSETS.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

import entrim
from entrim.calibration.data import CalibrationData
from entrim.distillation.augment import Augmentation
from entrim.distillation.loss import distillation_task
from entrim.distillation.trainer import TrainingConfig, TrainingTask, train
from experiments.benchmarks.cifar import DEV, Subject, interval, percent_right
from experiments.benchmarks.curves import INNER
from experiments.benchmarks.ledger import Ledger, networks_at_hand
from experiments.benchmarks.record import table, write

NAME = "cifar10_resnet20"
CALIBRATION = 500
FRACTIONS = (0.33, 0.5)
"""Channels kept inside the blocks: 3 and 2 times fewer MACs."""
RUNS = ((500, 10), (5000, 4), (500, 30))
"""Images to learn from, and epochs."""
DEFAULT = TrainingConfig(epochs=4, batch=64, learning_rate=1e-3, mode="eval")
LOOKS = {"shift": 1 / 16, "flip": False}
CHOICES: dict[str, dict[str, Any]] = {
    "default": {},
    "BatchNorm as in training": {"mode": "train"},
    "temperature 1": {"temperature": 1.0},
    "learning rate 3e-3": {"learning_rate": 3e-3},
    "learning rate 3e-4": {"learning_rate": 3e-4},
    "SGD, rate 1e-2": {"optimizer": "sgd", "learning_rate": 1e-2},
    "no shifts": {"shift": 0.0},
    "flips": {"flip": True},
    "feature maps of the stages too": {"features": 1.0},
}
"""The default with one thing changed."""
STAGES = ("layer1", "layer2", "layer3")
Points = Mapping[str, Mapping[str, Any]]


@cache
def subject() -> Subject:
    """Return ResNet-20 with 5,000 images, of which the first 500 are those of the cut."""
    return Subject.of(NAME, 5000)


@cache
def cut(fraction: float) -> entrim.SparsifyResult:
    """Return the network with this part of the channels inside its blocks, nothing trained."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return entrim.sparsify(
            subject().model,
            subject().images[:CALIBRATION],
            layers=INNER,
            widths={INNER: fraction},
            selector="greedy",
        )


def start(fraction: float) -> dict[str, Any]:
    """Return what the cut alone holds."""
    size = cut(fraction).record
    return {"macs": size.before.macs / size.after.macs, **subject().accuracy(cut(fraction).model)}


def distilled(fraction: float, count: int, epochs: int) -> dict[str, Any]:
    """Return what distillation with the defaults brings back."""
    better = entrim.distill(cut(fraction), subject().images[:count], epochs=epochs)
    done = better.record.distilled
    assert done is not None
    return {
        "before": done.before,
        "after": done.after,
        "epoch": done.best,
        "seconds": round(done.seconds, 1),
        **subject().accuracy(better.model),
    }


def chosen(count: int, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the accuracy to choose by at 3 times fewer MACs, with some of the recipe changed."""
    looks = {key: changes.get(key, value) for key, value in LOOKS.items()}
    rest = {k: v for k, v in changes.items() if k not in (*LOOKS, "temperature", "features")}
    images = CalibrationData({"": subject().images[:count]})
    heat = changes.get("temperature", 4.0)
    task = distillation_task(
        subject().model, images, count // 10, Augmentation(**looks), heat, seed=0
    )
    if "features" in changes:
        task = with_features(task, changes["features"])
    found = train(cut(FRACTIONS[0]).model, task, replace(DEFAULT, **rest))
    right = percent_right(found.model, subject().tests[DEV], subject().labels[DEV])
    return {
        "dev": right,
        "before": found.before,
        "after": found.after,
        "epoch": found.best,
        "seconds": round(found.seconds, 1),
    }


def with_features(task: TrainingTask, share: float) -> TrainingTask:
    """Return the task with the relative errors of the outputs of the three stages in its loss.

    Both networks are asked on the same views of the images: the student's first layer tells which.
    The residual stream is not cut, so the outputs of both have the same channels.
    """
    teacher = subject().model

    def loss(model: nn.Module, index: Tensor, generator: torch.Generator) -> Tensor:
        with _watching(model, "conv1", *STAGES) as own:
            total = task.loss(model, index, generator)
        with torch.no_grad(), _watching(teacher, *STAGES) as aim:
            teacher(own["conv1"][0])
        apart = [F.mse_loss(own[s][1], aim[s][1]) / aim[s][1].var() for s in STAGES]
        return total + share * torch.stack(apart).mean()

    return replace(task, loss=loss, identity=f"{task.identity} {share}")


@contextmanager
def _watching(model: nn.Module, *names: str) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Yield what these layers read and put out, until the end of the block."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def hook(name: str) -> RemovableHandle:
        def keep(_: nn.Module, x: tuple[Tensor, ...], y: Tensor) -> None:
            seen[name] = x[0], y

        return model.get_submodule(name).register_forward_hook(keep)

    hooks = [hook(name) for name in names]
    try:
        yield seen
    finally:
        for one in hooks:
            one.remove()


def measure(ledger: Ledger, parts: Sequence[str]) -> None:
    """Measure the named parts."""
    work: dict[str, Callable[[], None]] = {
        "report": lambda: _measure_report(ledger),
        "choose": lambda: _measure_choices(ledger),
    }
    for part in parts or work:
        work[part]()


def _measure_report(ledger: Ledger) -> None:
    for fraction in FRACTIONS:
        ledger.point(f"{fraction} cut", lambda f=fraction: start(f))
    for count, epochs in RUNS:
        for fraction in FRACTIONS:
            ledger.point(
                f"{fraction} distilled {count} {epochs}",
                lambda f=fraction, n=count, e=epochs: distilled(f, n, e),
            )


def _measure_choices(ledger: Ledger) -> None:
    for count in (5000, 500):
        for name, changes in CHOICES.items():
            ledger.point(f"choose {count} {name}", lambda n=count, c=changes: chosen(n, c))


def report_section(points: Points) -> str:
    """Return the accuracy of every cut before and after."""
    rows = []
    for fraction in FRACTIONS:
        for key, point in points.items():
            if key.startswith(f"{fraction} "):
                _, way, *how = key.split()
                right = f"{point['report']:.2f} ± {interval(point['report']):.2f}"
                macs = points[f"{fraction} cut"]["macs"]
                seconds = point.get("seconds", "")
                rows.append([f"{macs:.2f}x", way, *(how or ("", "")), point["dev"], right, seconds])
    header = (
        "MACs fewer", "way", "images", "epochs", "to choose by", "accuracy, %", "seconds"
    )  # fmt: skip
    return f"## {NAME}, cut with {CALIBRATION} images\n\n{table(header, rows)}"


def choice_section(points: Points) -> str:
    """Return what the defaults were chosen by."""
    rows = [
        [
            *key.split(maxsplit=2)[1:],
            p["dev"],
            f"{p['before']:.3f}",
            f"{p['after']:.3f}",
            p["epoch"],
        ]
        for key, p in points.items()
        if key.startswith("choose ")
    ]
    header = ("images", "recipe", "to choose by", "held out, before", "after", "best epoch")
    if not rows:
        return "`choose` was not run."
    return f"## One thing changed, {DEFAULT.epochs} epochs\n\n{table(header, rows)}"


def main(parts: Sequence[str]) -> None:
    """Measure what is missing and write the tables."""
    if not networks_at_hand():
        return
    ledger = Ledger.called("distill")
    measure(ledger, parts)
    points = ledger.points()
    sections = [report_section(points), choice_section(points)]
    print(write("distill", "python -m experiments bench distill", sections))
