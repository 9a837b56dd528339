"""Networks are trained on the images that the paper names, and tested on others."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from entrim.distillation.trainer import TrainingConfig, TrainingTask
from experiments import models
from experiments.datasets import Dataset
from experiments.models import TrainedModel
from experiments.training import lenet_training
from experiments.work import Work
from tests.experiments.toys import toy

TEST = 100_000
"""The label of the first test image; that of a training image is its number."""


def numbered_loader(train: int) -> Callable[..., Dataset]:
    """Return a loader of images of one pixel, each labelled by its number."""
    counts, first = {"train": train, "test": 10_000}, {"train": 0, "test": TEST}

    def load(part: str, *_: object) -> Dataset:
        images = torch.zeros(counts[part], 1, 1, 1, dtype=torch.uint8)
        return Dataset(images, first[part] + torch.arange(counts[part]))

    return load


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, TrainingConfig]]:
    """Return the trainings by number of images and configuration; nothing is fetched or trained."""
    seen: list[tuple[int, TrainingConfig]] = []

    def train(
        _: Work, name: str, model: nn.Module, task: TrainingTask, config: TrainingConfig
    ) -> nn.Module:
        seen.append((task.count, config))
        return model

    monkeypatch.setattr(Work, "train", train)
    monkeypatch.setattr(models, "load_mnist", numbered_loader(60_000))
    monkeypatch.setattr(models, "load_cifar10", numbered_loader(50_000))
    monkeypatch.setattr(models, "load_pretrained", lambda name: nn.Identity())
    return seen


def parts(trained: TrainedModel) -> list[Tensor]:
    return [data.labels for data in (trained.train_set, trained.val_set, trained.test_set)]


def image_numbers(trained: TrainedModel) -> list[range]:
    """Return the numbers of the images for training, validation and test."""
    found = [range(int(labels[0]), int(labels[-1]) + 1) for labels in parts(trained)]
    assert all(labels.tolist() == list(r) for labels, r in zip(parts(trained), found, strict=True))
    return found


def test_lenet_is_trained_on_50000_images_and_validated_on_the_other_10000(
    trainings: list[tuple[int, TrainingConfig]], tmp_path: Path
) -> None:
    lenet = models.lenet(Work(tmp_path), 3)
    assert image_numbers(lenet) == [
        range(50_000),
        range(50_000, 60_000),
        range(TEST, TEST + 10_000),
    ]
    assert trainings == [(50_000, lenet_training(20, 3))]
    assert (lenet.network, lenet.seed, lenet.model.training) == ("LeNet", 3, False)


def test_a_quick_lenet_is_tested_on_test_images(
    trainings: list[tuple[int, TrainingConfig]], tmp_path: Path
) -> None:
    quick = models.lenet(Work(tmp_path), 3, quick=True)
    assert image_numbers(quick) == [range(2000), range(50_000, 51_000), range(TEST, TEST + 1000)]
    assert trainings == [(2000, lenet_training(6, 3))]


def test_the_weights_that_lenet_starts_with_follow_from_the_seed(
    trainings: list[tuple[int, TrainingConfig]], tmp_path: Path
) -> None:
    one, same, other = (
        models.lenet(Work(tmp_path), seed).model.get_parameter("fc1.weight") for seed in (3, 3, 4)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("load", "network"),
    [
        (models.vgg16, "VGG-16"),
        (models.resnet20, "ResNet-20"),
        (models.resnet56, "ResNet-56"),
        (models.resnet18, "ResNet18"),
    ],
)
def test_the_cifar_networks_are_tested_on_test_images_also_when_quick(
    load: Callable[..., TrainedModel],
    network: str,
    trainings: list[tuple[int, TrainingConfig]],
    tmp_path: Path,
) -> None:
    full, quick = load(Work(tmp_path), 3), load(Work(tmp_path), 3, quick=True)
    assert image_numbers(full) == [
        range(50_000),
        range(TEST, TEST + 1000),
        range(TEST, TEST + 10_000),
    ]
    assert image_numbers(quick) == [range(2000), range(TEST, TEST + 1000), range(TEST, TEST + 1000)]
    assert full.network == quick.network == network
    assert trainings == []


def test_images_follow_from_the_seed_and_are_training_images(tmp_path: Path) -> None:
    one = toy(Work(tmp_path))
    other = replace(one, seed=1)
    assert torch.equal(one.images(40), one.images(40))
    assert torch.equal(one.images(20), one.images(40)[:20])
    assert not torch.equal(one.images(40), other.images(40))
    for trained in (one, other):
        drawn = {image.numpy().tobytes() for image in trained.images(40)}
        known = {
            image.numpy().tobytes() for image in trained.normalization(trained.train_set.images)
        }
        assert len(drawn) == 40
        assert drawn <= known
