"""Pre-trained CIFAR-10 networks for benchmarks, with their images and accuracy."""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import entrim
from experiments.datasets import load_cifar10
from experiments.models import PRETRAINED, load_pretrained

DEV, REPORT = slice(0, 2000), slice(5000, 10000)
"""Defaults are chosen on test images of the first half, results reported on the second half."""
SEED = 0


@dataclass(frozen=True, slots=True, eq=False)
class BenchmarkModel:
    """One trained network with unlabeled training images and the labeled test images."""

    name: str
    model: nn.Module
    images: Tensor
    test_images: Tensor
    test_labels: Tensor

    @classmethod
    def of(cls, name: str, count: int = 500) -> "BenchmarkModel":
        """Return the network called `name` and `count` training images drawn at random."""
        normalization = PRETRAINED[name].normalization
        train, test = load_cifar10("train"), load_cifar10("test")
        drawn = torch.randperm(len(train), generator=torch.Generator().manual_seed(SEED))[:count]
        return cls(
            name,
            load_pretrained(name),
            train[drawn].normalize(normalization),
            test.normalize(normalization),
            test.labels,
        )

    def accuracy(self, model: nn.Module) -> dict[str, float]:
        """Return the accuracy in percent, for choices and for results."""
        return {
            "dev": accuracy(model, self.test_images[DEV], self.test_labels[DEV]),
            "report": accuracy(model, self.test_images[REPORT], self.test_labels[REPORT]),
        }

    def prune(self, **options: Any) -> dict[str, Any]:
        """Return savings, cost and accuracy of `sparsify` with these options, without training."""
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
def accuracy(model: nn.Module, images: Tensor, labels: Tensor, batch: int = 500) -> float:
    """Return the accuracy of `model` in percent."""
    model.eval()
    pairs = zip(images.split(batch), labels.split(batch), strict=True)
    return 100 * sum(int((model(x).argmax(1) == y).sum()) for x, y in pairs) / len(labels)


def interval(percent: float, count: int = 5000) -> float:
    """Return half the width of the 95 % interval around an accuracy."""
    share = percent / 100
    return 100 * 1.96 * math.sqrt(max(share * (1 - share), 1e-9) / count)
