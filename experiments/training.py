"""Networks taught with labels: the recipes of the paper, and the task that they are taught.

All recipes hand out the state after the last epoch: the paper names no selection on the validation
images. It states no batch size and no augmentation either; the batch is 128, and CIFAR-10 is
shifted by up to 4 pixels and flipped, as in the public training code that the paper names.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entrim.distillation.augment import Augmentation
from entrim.distillation.trainer import TrainingConfig, TrainingTask
from experiments.datasets import Dataset
from experiments.normalization import Normalization
from experiments.storage import fingerprint

STILL = Augmentation()
SHIFTED_AND_FLIPPED = Augmentation(shift=0.125, flip=True)
_BATCH = 128
_CHUNK = 500


def lenet_training(epochs: int = 20, seed: int = 0) -> TrainingConfig:
    """Return how the paper trains LeNet: Adam from 1e-3, halved every 7 of 20 epochs."""
    return _adam(epochs, 1e-3, 7, seed)


def lenet_fine_tuning(epochs: int = 10, seed: int = 0) -> TrainingConfig:
    """Return how the paper fine tunes LeNet: Adam from 1e-4, halved every 4 of 10 epochs."""
    return _adam(epochs, 1e-4, 4, seed)


def cifar_training(epochs: int = 200, seed: int = 0) -> TrainingConfig:
    """Return how the paper trains VGG-16 and ResNet18: SGD from 0.1, cosine over 200 epochs."""
    return _sgd(epochs, 0.1, "cosine", seed)


def cifar_fine_tuning(epochs: int = 50, seed: int = 0) -> TrainingConfig:
    """Return how the paper fine tunes VGG-16 and ResNet18: at 1e-3; it names no schedule."""
    return _sgd(epochs, 1e-3, "constant", seed)


def cifar_growing(seed: int = 0) -> tuple[tuple[int, TrainingConfig], ...]:
    """Return a training for those who have hours instead of days: pixels of a side, and a recipe.

    One after the other, each one cycle of the learning rate; images of half the side cost a
    quarter.
    """
    stages = ((16, 5, 0.1), (24, 2, 0.05), (32, 1, 0.02))
    return tuple((side, _sgd(epochs, rate, "one cycle", seed)) for side, epochs, rate in stages)


def _adam(epochs: int, learning_rate: float, halve_every: int, seed: int) -> TrainingConfig:
    return TrainingConfig(
        epochs=epochs,
        batch=_BATCH,
        learning_rate=learning_rate,
        schedule="constant",
        step_size=halve_every,
        return_state="last",
        seed=seed,
    )


def _sgd(epochs: int, learning_rate: float, schedule: str, seed: int) -> TrainingConfig:
    return TrainingConfig(
        epochs=epochs,
        batch=_BATCH,
        learning_rate=learning_rate,
        optimizer="momentum",
        weight_decay=5e-4,
        schedule=schedule,
        return_state="last",
        seed=seed,
    )


def classification(
    lesson: Dataset,
    watched: Dataset,
    how: Normalization,
    augment: Augmentation = STILL,
    side: int | None = None,
) -> TrainingTask:
    """Return the task of naming what the images of `lesson` show, shrunk to `side` pixels.

    What is told of `watched` after every epoch is the percentage that is named wrong, at full size.
    """

    def loss(model: nn.Module, index: Tensor, generator: torch.Generator) -> Tensor:
        images = how(lesson.images[index])
        if side is not None:
            images = F.interpolate(images, size=side, mode="area")
        return F.cross_entropy(model(augment(images, generator)), lesson.labels[index])

    return TrainingTask(
        count=len(lesson),
        loss=loss,
        holdout=lambda model: 100 - percent_right(model, watched, how),
        identity=fingerprint([lesson.images, lesson.labels, watched.images, watched.labels])
        + f" {how} {augment}"
        + ("" if side is None else f" {side} pixels"),
    )


@torch.no_grad()
def percent_right(model: nn.Module, data: Dataset, how: Normalization) -> float:
    """Return the percentage of the images that `model`, in eval mode, names right."""
    pairs = zip(data.images.split(_CHUNK), data.labels.split(_CHUNK), strict=True)
    hits = sum(int((model(how(images)).argmax(1) == labels).sum()) for images, labels in pairs)
    return 100 * hits / len(data)


def fresh(model: nn.Module, seed: int) -> nn.Module:
    """Return a copy of `model` with its weights drawn anew, as PyTorch draws those of a new one."""
    again = copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in again.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
    return again
