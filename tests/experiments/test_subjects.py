"""Networks learn from the images that the paper names, and are tested on others."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from entrim.distillation.trainer import TrainingConfig, TrainingTask
from experiments import models
from experiments.datasets import Dataset
from experiments.models import Subject
from experiments.training import cifar_growing, lenet_training
from experiments.work import Work
from tests.experiments.toys import toy

TEST = 100_000
"""The label of the first test image; that of a training image is its number."""


def numbered(train: int) -> Callable[..., Dataset]:
    """Return what loads images of one pixel, each labelled by its number."""
    counts, first = {"train": train, "test": 10_000}, {"train": 0, "test": TEST}

    def load(part: str, *_: object) -> Dataset:
        images = torch.zeros(counts[part], 1, 1, 1, dtype=torch.uint8)
        return Dataset(images, first[part] + torch.arange(counts[part]))

    return load


@pytest.fixture
def taught(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, TrainingConfig]]:
    """Return how many images are learned from and how; nothing is fetched, and nobody learns."""
    seen: list[tuple[int, TrainingConfig]] = []

    def trained(
        _: Work, name: str, model: nn.Module, task: TrainingTask, recipe: TrainingConfig
    ) -> nn.Module:
        seen.append((task.count, recipe))
        return model

    monkeypatch.setattr(Work, "trained", trained)
    monkeypatch.setattr(models, "load_mnist", numbered(60_000))
    monkeypatch.setattr(models, "load_cifar10", numbered(50_000))
    monkeypatch.setattr(models, "pretrained", lambda name: nn.Identity())
    return seen


def parts(subject: Subject) -> list[Tensor]:
    return [data.labels for data in (subject.lesson, subject.watched, subject.test)]


def shown(subject: Subject) -> list[range]:
    """Return the numbers of the images to learn from, to watch and to test with."""
    found = [range(int(labels[0]), int(labels[-1]) + 1) for labels in parts(subject)]
    assert all(labels.tolist() == list(r) for labels, r in zip(parts(subject), found, strict=True))
    return found


def test_lenet_learns_from_50000_images_and_watches_the_other_10000(
    taught: list[tuple[int, TrainingConfig]], tmp_path: Path
) -> None:
    lenet = models.lenet(Work(tmp_path), 3)
    assert shown(lenet) == [range(50_000), range(50_000, 60_000), range(TEST, TEST + 10_000)]
    assert taught == [(50_000, lenet_training(20, 3))]
    assert (lenet.network, lenet.seed, lenet.model.training) == ("LeNet", 3, False)


def test_a_quick_lenet_is_tested_on_test_images(
    taught: list[tuple[int, TrainingConfig]], tmp_path: Path
) -> None:
    quick = models.lenet(Work(tmp_path), 3, quick=True)
    assert shown(quick) == [range(2000), range(50_000, 51_000), range(TEST, TEST + 1000)]
    assert taught == [(2000, lenet_training(6, 3))]


def test_the_weights_that_lenet_starts_with_follow_from_the_seed(
    taught: list[tuple[int, TrainingConfig]], tmp_path: Path
) -> None:
    one, same, other = (
        models.lenet(Work(tmp_path), seed).model.get_parameter("fc1.weight") for seed in (3, 3, 4)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("subject", "network"),
    [
        (models.vgg16, "VGG-16"),
        (models.resnet20, "ResNet-20"),
        (models.resnet56, "ResNet-56"),
        (models.resnet18, "ResNet18"),
    ],
)
def test_the_cifar_networks_are_tested_on_test_images_also_when_quick(
    subject: Callable[..., Subject],
    network: str,
    taught: list[tuple[int, TrainingConfig]],
    tmp_path: Path,
) -> None:
    whole, quick = subject(Work(tmp_path), 3), subject(Work(tmp_path), 3, quick=True)
    assert shown(whole) == [range(50_000), range(TEST, TEST + 1000), range(TEST, TEST + 10_000)]
    assert shown(quick) == [range(2000), range(TEST, TEST + 1000), range(TEST, TEST + 1000)]
    assert whole.network == quick.network == network
    stages = [recipe for _, recipe in cifar_growing(3)] if network == "ResNet18" else []
    assert taught == [(count, recipe) for count in (50_000, 2000) for recipe in stages]


def test_images_follow_from_the_seed_and_are_some_of_those_to_learn_from(tmp_path: Path) -> None:
    one = toy(Work(tmp_path))
    other = replace(one, seed=1)
    assert torch.equal(one.images(40), one.images(40))
    assert torch.equal(one.images(20), one.images(40)[:20])
    assert not torch.equal(one.images(40), other.images(40))
    for subject in (one, other):
        drawn = {image.numpy().tobytes() for image in subject.images(40)}
        known = {image.numpy().tobytes() for image in subject.how(subject.lesson.images)}
        assert len(drawn) == 40
        assert drawn <= known
