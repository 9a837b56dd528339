"""What the experiments need: datasets, networks, pre-trained weights, published figures.

The extra `experiments` brings what this room needs beyond entrim itself.
"""

from entrim.experiments.cache import cache_folder
from entrim.experiments.datasets import (
    Dataset,
    FetchEvent,
    load_cifar10,
    load_fashion_mnist,
    load_mnist,
)
from entrim.experiments.normalisation import Normalisation
from entrim.experiments.zoo import VGG16, ZOO, Entry, LeNet, ResNet18, ResNet20, ResNet50, ResNet56

__all__ = [
    "ZOO",
    "Dataset",
    "Entry",
    "FetchEvent",
    "LeNet",
    "Normalisation",
    "ResNet18",
    "ResNet20",
    "ResNet50",
    "ResNet56",
    "VGG16",
    "cache_folder",
    "load_cifar10",
    "load_fashion_mnist",
    "load_mnist",
]
