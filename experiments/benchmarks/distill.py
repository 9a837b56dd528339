"""The accuracy that distillation on shifted images recovers on ResNet-20.

`python -m experiments bench distill` measures what is missing in its ledger, then writes the
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
from entrim.distillation.augment import Augmentation
from entrim.distillation.loss import distillation_task
from entrim.distillation.trainer import TrainingConfig, TrainingTask, train
from experiments.benchmarks.cifar import DEV, BenchmarkModel, accuracy, interval
from experiments.benchmarks.curves import INNER
from experiments.benchmarks.record import Ledger, has_weights, table, write

NAME = "cifar10_resnet20"
CALIBRATION = 500
FRACTIONS = (0.33, 0.5)
"""Channels kept inside the blocks: 3 and 2 times fewer MACs."""
RUNS = ((500, 10), (5000, 4), (500, 30))
"""Training images and epochs."""
DEFAULT = TrainingConfig(epochs=4, batch=64, learning_rate=1e-3, mode="eval")
AUGMENTATION = {"shift": 1 / 16, "flip": False}
SHIFTED = entrim.Distillation(
    batch_size=64, shift=1 / 16, flip=False, mix=False, warmup=0, patience=5
)
"""Distillation without mixing, judged after every epoch."""
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
def benchmark_model() -> BenchmarkModel:
    """Return ResNet-20 with 5,000 images, the first 500 for pruning."""
    return BenchmarkModel.of(NAME, 5000)


@cache
def prune(fraction: float) -> entrim.SparsifyResult:
    """Return the network with this fraction of the channels inside its blocks, not trained."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return entrim.sparsify(
            benchmark_model().model,
            benchmark_model().images[:CALIBRATION],
            entrim.Widths(fraction),
            include=INNER,
            selector="greedy",
        )


def evaluate_pruned(fraction: float) -> dict[str, Any]:
    """Return the accuracy of the pruned network."""
    result = prune(fraction)
    macs = result.record.before.macs / result.record.after.macs
    return {"macs": macs, **benchmark_model().accuracy(result.model)}


def evaluate_distilled(fraction: float, count: int, epochs: int) -> dict[str, Any]:
    """Return the accuracy after distillation on shifted images."""
    images = benchmark_model().images[:count]
    better = entrim.distill(prune(fraction), images, replace(SHIFTED, epochs=epochs))
    done = better.record.distilled
    assert done is not None
    return {
        "before": done.before,
        "after": done.after,
        "epoch": done.best,
        "seconds": round(done.seconds, 1),
        **benchmark_model().accuracy(better.model),
    }


def evaluate_choice(count: int, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the accuracy for choices at 3 times fewer MACs, with some settings changed."""
    tested = benchmark_model()
    augment = Augmentation(**{key: changes.get(key, v) for key, v in AUGMENTATION.items()})
    others = (*AUGMENTATION, "temperature", "features")
    rest = {key: value for key, value in changes.items() if key not in others}
    images = entrim.Pruner(tested.model, tested.images[:count]).images
    temperature = changes.get("temperature", 4.0)
    task = distillation_task(tested.model, images, count // 10, augment, temperature, seed=0)
    if "features" in changes:
        task = with_features(task, changes["features"])
    found = train(prune(FRACTIONS[0]).model, task, replace(DEFAULT, **rest))
    return {
        "dev": accuracy(found.model, tested.test_images[DEV], tested.test_labels[DEV]),
        "before": found.before,
        "after": found.after,
        "epoch": found.best,
        "seconds": round(found.seconds, 1),
    }


def with_features(task: TrainingTask, share: float) -> TrainingTask:
    """Return the task with the relative errors of the outputs of the three stages in its loss.

    Both networks run on the same augmented images: those at the student's first layer. The residual
    stream is not pruned, so the outputs of both have the same channels.
    """
    teacher = benchmark_model().model

    def loss(model: nn.Module, index: Tensor, generator: torch.Generator) -> Tensor:
        with _capture(model, "conv1", *STAGES) as student:
            total = task.loss(model, index, generator)
        with torch.no_grad(), _capture(teacher, *STAGES) as target:
            teacher(student["conv1"][0])
        errors = [F.mse_loss(student[s][1], target[s][1]) / target[s][1].var() for s in STAGES]
        return total + share * torch.stack(errors).mean()

    return replace(task, loss=loss, identity=f"{task.identity} {share}")


@contextmanager
def _capture(model: nn.Module, *names: str) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Yield the inputs and outputs of these layers, captured until the end of the block."""
    captured: dict[str, tuple[Tensor, Tensor]] = {}

    def hook(name: str) -> RemovableHandle:
        def keep(_: nn.Module, x: tuple[Tensor, ...], y: Tensor) -> None:
            captured[name] = x[0], y

        return model.get_submodule(name).register_forward_hook(keep)

    hooks = [hook(name) for name in names]
    try:
        yield captured
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
        ledger.point(f"{fraction} pruned", lambda f=fraction: evaluate_pruned(f))
    for count, epochs in RUNS:
        for fraction in FRACTIONS:
            ledger.point(
                f"{fraction} distilled {count} {epochs}",
                lambda f=fraction, n=count, e=epochs: evaluate_distilled(f, n, e),
            )


def _measure_choices(ledger: Ledger) -> None:
    for count in (5000, 500):
        for name, changes in CHOICES.items():
            ledger.point(f"choose {count} {name}", lambda n=count, c=changes: evaluate_choice(n, c))


def report_section(points: Points) -> str:
    """Return the accuracy of every pruned network before and after."""
    rows = []
    for fraction in FRACTIONS:
        for key, point in points.items():
            if key.startswith(f"{fraction} "):
                _, state, *settings = key.split()
                shown = f"{point['report']:.2f} ± {interval(point['report']):.2f}"
                macs = points[f"{fraction} pruned"]["macs"]
                seconds = point.get("seconds", "")
                training = settings or ("", "")
                rows.append([f"{macs:.2f}x", state, *training, point["dev"], shown, seconds])
    header = (
        "MACs fewer", "network", "images", "epochs", "for choices", "accuracy, %", "seconds"
    )  # fmt: skip
    return f"## {NAME}, pruned with {CALIBRATION} images\n\n{table(header, rows)}"


def choice_section(points: Points) -> str:
    """Return the results by which the defaults were chosen."""
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
    header = ("images", "setting", "for choices", "hold-out loss before", "after", "best epoch")
    if not rows:
        return "`choose` was not run."
    return f"## One thing changed, {DEFAULT.epochs} epochs\n\n{table(header, rows)}"


def main(parts: Sequence[str]) -> None:
    """Measure what is missing and write the tables."""
    if not has_weights():
        return
    ledger = Ledger.open("distill")
    measure(ledger, parts)
    points = ledger.points()
    sections = [report_section(points), choice_section(points)]
    print(write("distill", "python -m experiments bench distill", sections))
