"""ResNet-18 of torchvision for CIFAR-10, with trained weights, pruned and recovered."""

from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

import entrim
from experiments.datasets import load_cifar10
from experiments.models import PRETRAINED, load_pretrained
from experiments.training import accuracy
from experiments.tutorials import copy_weights, read_folder

WEIGHTS = "cifar10_resnet18"


def cifar_resnet18() -> nn.Module:
    """Return the ResNet-18 of torchvision with the usual changes for images of 32 x 32."""
    models: Any = import_module("torchvision.models")
    model = models.resnet18(num_classes=10)
    model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    return model


def main(folder: Path) -> None:
    """Prune with 500 training images, and print accuracies on 2,000 test images."""
    normalization = PRETRAINED[WEIGHTS].normalization
    images = normalization(load_cifar10("train")[:500].images)
    test = load_cifar10("test")[:2000]
    model = copy_weights(cifar_resnet18(), load_pretrained(WEIGHTS))

    result = entrim.sparsify(model, images, entrim.Budget(macs=0.5))
    result.save(folder / "small")
    loaded = entrim.load(cifar_resnet18(), folder / "small")
    print(result.summary())
    with torch.no_grad():
        for name, network in {"original": model, "pruned": result.model, "loaded": loaded}.items():
            print(f"{name}: {accuracy(network.eval(), test, normalization):.2f} % of {len(test)}")


if __name__ == "__main__":
    main(read_folder(__doc__))
