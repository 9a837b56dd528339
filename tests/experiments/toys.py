"""A small LeNet experiment on synthetic images."""

import torch

from experiments import normalization, training
from experiments.datasets import Dataset
from experiments.models import ZOO, TrainedModel
from experiments.work import Work


def pictures(count: int, seed: int) -> Dataset:
    """Return images of ten classes: a bright bar in one of ten places, with noise."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=g)
    images = torch.randint(0, 120, (count, 1, 28, 28), dtype=torch.uint8, generator=g)
    for image, label in zip(images, labels, strict=True):
        image[0, 2 * int(label) + 2 : 2 * int(label) + 6] += 120
    return Dataset(images, labels)


def toy(work: Work, seed: int = 0, *, quick: bool = False) -> TrainedModel:
    """Return an untrained LeNet with a few images."""
    return TrainedModel(
        network="LeNet",
        seed=seed,
        model=ZOO["LeNet"].model(),
        normalization=normalization.MNIST,
        train_set=pictures(520, 1),
        val_set=pictures(20, 2),
        test_set=pictures(50, 3),
        augment=training.NO_AUGMENTATION,
        training=training.lenet_training,
        fine_tuning=training.lenet_fine_tuning,
        origin="never trained",
    )
