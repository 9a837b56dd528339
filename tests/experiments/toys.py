"""A LeNet among pictures that anybody could tell apart."""

import torch

from experiments import normalization, training
from experiments.datasets import Dataset
from experiments.models import ZOO, Subject
from experiments.work import Work


def pictures(count: int, seed: int) -> Dataset:
    """Return images of ten kinds: a bright bar in one of ten places, with noise."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=g)
    images = torch.randint(0, 120, (count, 1, 28, 28), dtype=torch.uint8, generator=g)
    for image, label in zip(images, labels, strict=True):
        image[0, 2 * int(label) + 2 : 2 * int(label) + 6] += 120
    return Dataset(images, labels)


def toy(work: Work, seed: int = 0, *, quick: bool = False) -> Subject:
    """Return an untrained LeNet among a few pictures."""
    return Subject(
        network="LeNet",
        seed=seed,
        model=ZOO["LeNet"].model(),
        how=normalization.MNIST,
        lesson=pictures(520, 1),
        watched=pictures(20, 2),
        test=pictures(50, 3),
        augment=training.STILL,
        training=training.lenet_training,
        fine_tuning=training.lenet_fine_tuning,
        origin="never trained",
    )
