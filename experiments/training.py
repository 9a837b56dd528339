"""Training with labels: the configurations of the paper, and the classification task.

All configurations return the state after the last epoch: the paper names no selection on validation
images. It states no batch size and no augmentation either; the batch size is 128, and CIFAR-10 is
shifted by up to 4 pixels and flipped, as in the public training code that the paper names.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entrim.distillation.augment import Augmentation
from entrim.distillation.trainer import TrainingConfig, TrainingTask
from entrim.storage.checkpoint import fingerprint
from experiments.datasets import Dataset
from experiments.normalization import Normalization

NO_AUGMENTATION = Augmentation()
SHIFT_AND_FLIP = Augmentation(shift=0.125, flip=True)
_BATCH = 128
_CHUNK = 500


def has_bfloat16() -> bool:
    """Return whether this CPU has instructions for bfloat16, so that it is not emulated."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def lenet_training(epochs: int = 20, seed: int = 0) -> TrainingConfig:
    """Return the paper's training of LeNet: Adam from 1e-3, halved every 7 of 20 epochs."""
    return _adam(epochs, 1e-3, 7, seed)


def lenet_fine_tuning(epochs: int = 10, seed: int = 0) -> TrainingConfig:
    """Return the paper's fine tuning of LeNet: Adam from 1e-4, halved every 4 of 10 epochs."""
    return _adam(epochs, 1e-4, 4, seed)


def cifar_training(epochs: int = 200, seed: int = 0) -> TrainingConfig:
    """Return the paper's training of VGG-16 and ResNet18: SGD from 0.1, cosine, 200 epochs."""
    return _sgd(epochs, 0.1, "cosine", seed)


def cifar_fine_tuning(epochs: int = 50, seed: int = 0) -> TrainingConfig:
    """Return the paper's fine tuning of VGG-16 and ResNet18: at 1e-3; it names no schedule."""
    return _sgd(epochs, 1e-3, "constant", seed)


def _adam(epochs: int, learning_rate: float, step_size: int, seed: int) -> TrainingConfig:
    return TrainingConfig(
        epochs=epochs,
        batch=_BATCH,
        learning_rate=learning_rate,
        schedule="constant",
        step_size=step_size,
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


def classification_task(
    train_set: Dataset,
    val_set: Dataset,
    normalization: Normalization,
    augment: Augmentation = NO_AUGMENTATION,
    *,
    bfloat16: bool = False,
) -> TrainingTask:
    """Return the task of classifying `train_set`, its layers computed in bfloat16 if requested.

    The loss on `val_set` is the percentage of wrong classes, in float32.
    """

    def loss(model: nn.Module, index: Tensor, generator: torch.Generator) -> Tensor:
        images = normalization(train_set.images[index])
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            logits = model(augment(images, generator))
        return F.cross_entropy(logits.float(), train_set.labels[index])

    return TrainingTask(
        count=len(train_set),
        loss=loss,
        holdout=lambda model: 100 - accuracy(model, val_set, normalization),
        identity=fingerprint([train_set.images, train_set.labels, val_set.images, val_set.labels])
        + f" {normalization} {augment}"
        + " bfloat16" * bfloat16,
    )


@torch.no_grad()
def accuracy(model: nn.Module, data: Dataset, normalization: Normalization) -> float:
    """Return the percentage of images that `model`, in eval mode, classifies correctly."""
    pairs = zip(data.images.split(_CHUNK), data.labels.split(_CHUNK), strict=True)
    hits = sum(int((model(normalization(x)).argmax(1) == y).sum()) for x, y in pairs)
    return 100 * hits / len(data)


def reinitialize(model: nn.Module, seed: int) -> nn.Module:
    """Return a copy of `model` with random weights, initialized as in a new network."""
    copied = copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in copied.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
    return copied
