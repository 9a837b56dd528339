"""What the experiments need: datasets, networks, pre-trained weights, published figures.

The extra `experiments` brings what this room needs beyond entrim itself.
"""

from entrim.experiments.assets import PRETRAINED, Pretrained, imagenet_samples, pretrained
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
    "PRETRAINED",
    "ZOO",
    "Dataset",
    "Entry",
    "FetchEvent",
    "LeNet",
    "Normalisation",
    "Pretrained",
    "ResNet18",
    "ResNet20",
    "ResNet50",
    "ResNet56",
    "VGG16",
    "cache_folder",
    "imagenet_samples",
    "load_cifar10",
    "load_fashion_mnist",
    "load_mnist",
    "pretrained",
]
