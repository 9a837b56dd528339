"""CIFAR-10 networks to measure on: their images, and how many of the test set they get right."""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import entrim
from experiments.datasets import load_cifar10
from experiments.models import PRETRAINED, pretrained

DEV, REPORT = slice(0, 2000), slice(5000, 10000)
"""Defaults are chosen on test images of the first half, figures reported on the second half."""
SEED = 0


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """One trained network with unlabelled training images and the labelled test images."""

    name: str
    model: nn.Module
    images: Tensor
    tests: Tensor
    labels: Tensor

    @classmethod
    def of(cls, name: str, count: int = 500) -> "Subject":
        """Return the network called `name` and `count` training images drawn at random."""
        how = PRETRAINED[name].normalization
        train, test = load_cifar10("train"), load_cifar10("test")
        drawn = torch.randperm(len(train), generator=torch.Generator().manual_seed(SEED))[:count]
        return cls(name, pretrained(name), how(train.images[drawn]), how(test.images), test.labels)

    def accuracy(self, model: nn.Module) -> dict[str, float]:
        """Return the accuracy in percent, to choose by and to report."""
        return {
            "dev": percent_right(model, self.tests[DEV], self.labels[DEV]),
            "report": percent_right(model, self.tests[REPORT], self.labels[REPORT]),
        }

    def sparsified(self, **options: Any) -> dict[str, Any]:
        """Return what `sparsify` with these options saves and costs, nothing trained."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = entrim.sparsify(self.model, self.images, **options)
        before, after = result.record.before, result.record.after
        return {
            "macs": before.macs / after.macs,
            "params": before.params / after.params,
            "seconds": {k: round(v, 2) for k, v in result.record.seconds.items()},
            "kept": {group.name: group.kept for group in result.record.groups},
            **self.accuracy(result.model),
        }


@torch.no_grad()
def percent_right(model: nn.Module, images: Tensor, labels: Tensor, batch: int = 500) -> float:
    """Return the accuracy of `model` in percent."""
    model.eval()
    pairs = zip(images.split(batch), labels.split(batch), strict=True)
    return 100 * sum(int((model(x).argmax(1) == y).sum()) for x, y in pairs) / len(labels)


def interval(percent: float, count: int = 5000) -> float:
    """Return half the width of the 95 % interval around an accuracy."""
    share = percent / 100
    return 100 * 1.96 * math.sqrt(max(share * (1 - share), 1e-9) / count)
