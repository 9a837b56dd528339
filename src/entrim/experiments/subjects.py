"""The trained networks that the tables are made with, each with its images and recipes."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from entrim.augmenting import Augmentation
from entrim.errors import BadSettingError
from entrim.experiments import normalisation, teaching
from entrim.experiments.assets import PRETRAINED, pretrained
from entrim.experiments.datasets import Dataset, FetchEvent, load_cifar10, load_mnist
from entrim.experiments.normalisation import Normalisation
from entrim.experiments.work import Work
from entrim.experiments.zoo import LeNet, ResNet18
from entrim.recipes import Recipe, Task
from entrim.records import Step

QUICK_LESSON, QUICK_TEST = 2000, 1000
"""Images to learn from and to test with in a quick run."""
QUICK_TRAINING = 6
"""Epochs of the network itself in a quick run, at most."""
_LENET_LESSON, _WATCHED = 50_000, 1000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subject:
    """A trained network, unlabelled images to cut it with, and labelled ones to teach and test."""

    network: str
    """Its name in the zoo and in the published tables."""
    seed: int
    model: nn.Module
    how: Normalisation
    lesson: Dataset
    watched: Dataset
    """Looked at after every epoch; nothing is chosen by it."""
    test: Dataset
    augment: Augmentation
    training: Callable[[int, int], Recipe]
    """By epochs and seed."""
    fine_tuning: Callable[[int, int], Recipe]
    origin: str
    """The sentence that says where the trained network comes from."""

    def images(self, count: int) -> Tensor:
        """Return unlabelled training images, normalised, drawn by the seed."""
        if not 1 <= count <= len(self.lesson):
            raise BadSettingError(f"{count} images of {len(self.lesson):,}: ask for some of them")
        generator = torch.Generator().manual_seed(self.seed)
        drawn = torch.randperm(len(self.lesson), generator=generator)[:count]
        return self.how(self.lesson.images[drawn])

    def task(self, side: int | None = None) -> Task:
        """Return what the network is taught, with images shrunk to `side` pixels."""
        return teaching.classification(self.lesson, self.watched, self.how, self.augment, side)

    def accuracy(self, model: nn.Module) -> float:
        """Return the percentage of the test images that `model` names right."""
        return teaching.percent_right(model.eval(), self.test, self.how)


def lenet(work: Work, seed: int = 0, *, quick: bool = False) -> Subject:
    """Return LeNet on MNIST, trained by the paper's recipe on 50,000 images."""
    data, test = (load_mnist(part, _fetching(work)) for part in ("train", "test"))
    lesson, watched = data[:_LENET_LESSON], data[_LENET_LESSON:]
    if quick:
        lesson, watched, test = lesson[:QUICK_LESSON], watched[:QUICK_TEST], test[:QUICK_TEST]
    how, augment = normalisation.MNIST, teaching.STILL
    recipe = teaching.lenet_training(QUICK_TRAINING if quick else 20, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LeNet()
    task = teaching.classification(lesson, watched, how, augment)
    model = work.trained(f"LeNet seed {seed} training", model, task, recipe)
    return Subject(
        network="LeNet",
        seed=seed,
        model=model.eval(),
        how=how,
        lesson=lesson,
        watched=watched,
        test=test,
        augment=augment,
        training=teaching.lenet_training,
        fine_tuning=teaching.lenet_fine_tuning,
        origin=f"trained for {recipe.epochs} epochs on {len(lesson):,} images",
    )


def vgg16(work: Work, seed: int = 0, *, quick: bool = False) -> Subject:
    """Return VGG-16 on CIFAR-10 with the weights `cifar10_vgg16` of the assets."""
    return _given(work, "VGG-16", "cifar10_vgg16", seed, quick)


def resnet20(work: Work, seed: int = 0, *, quick: bool = False) -> Subject:
    """Return ResNet-20 on CIFAR-10 with the weights `cifar10_resnet20` of the assets."""
    return _given(work, "ResNet-20", "cifar10_resnet20", seed, quick)


def resnet56(work: Work, seed: int = 0, *, quick: bool = False) -> Subject:
    """Return ResNet-56 on CIFAR-10 with the weights `cifar10_resnet56` of the assets."""
    return _given(work, "ResNet-56", "cifar10_resnet56", seed, quick)


def _given(work: Work, network: str, name: str, seed: int, quick: bool) -> Subject:
    how = PRETRAINED[name].normalisation
    return _cifar(work, network, pretrained(name), how, f"the pre-trained {name}", seed, quick)


RESNET18_EPOCHS = sum(recipe.epochs for _, recipe in teaching.cifar_growing())
"""The paper trains 200; these are what hours without a GPU hold. The drop is what counts."""


def resnet18(work: Work, seed: int = 0, *, quick: bool = False) -> Subject:
    """Return ResNet18 on CIFAR-10, trained for a few epochs on images that grow."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = ResNet18()
    start = _cifar(work, "ResNet18", model, normalisation.CIFAR10, "", seed, quick)
    stages = teaching.cifar_growing(seed)
    for side, recipe in stages:
        name = f"ResNet18 seed {seed} training at {side} pixels"
        model = work.trained(name, model, start.task(side), recipe)
    told = ", ".join(f"{recipe.epochs} at {side} pixels" for side, recipe in stages)
    origin = f"trained for {RESNET18_EPOCHS} epochs on {len(start.lesson):,} images ({told})"
    return _cifar(work, "ResNet18", model, start.how, origin, seed, quick)


def _cifar(
    work: Work,
    network: str,
    model: nn.Module,
    how: Normalisation,
    origin: str,
    seed: int,
    quick: bool,
) -> Subject:
    lesson, test = (load_cifar10(part, _fetching(work)) for part in ("train", "test"))
    if quick:
        lesson, test = lesson[:QUICK_LESSON], test[:QUICK_TEST]
    return Subject(
        network=network,
        seed=seed,
        model=model.eval(),
        how=how,
        lesson=lesson,
        watched=test[:_WATCHED],
        test=test,
        augment=teaching.SHIFTED_AND_FLIPPED,
        training=teaching.cifar_training,
        fine_tuning=teaching.cifar_fine_tuning,
        origin=origin,
    )


def _fetching(work: Work) -> Callable[[FetchEvent], None]:
    """Return what shows how far a dataset is on its way."""

    def show(event: FetchEvent) -> None:
        done, total = event.done or 0, event.total or event.done or 1
        detail = f"bytes of {event.source}" if event.done else f"{event.source}: {event.note}"
        work.on_step(
            Step(stage=f"fetch {event.dataset}", name="", done=done, total=total, detail=detail)
        )

    return show
