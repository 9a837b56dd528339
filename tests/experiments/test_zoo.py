"""The networks of the experiments are those of the papers."""

import pytest
import torch

from entrim import measure
from experiments.models import ZOO

MACS = {
    "LeNet": 416_520,
    "VGG-16": 313_201_664,
    "ResNet18": 555_422_720,
    "ResNet-20": 40_551_040,
    "ResNet-56": 125_485_696,
    "ResNet-50": 3_857_973_248,
}


@pytest.mark.parametrize("name", ZOO)
def test_parameters_and_macs_are_those_of_the_papers(name: str) -> None:
    entry = ZOO[name]
    with torch.device("meta"):
        model, images = entry.build(), torch.randn(1, *entry.image)
    cost = measure(model, images, repeats=2)
    assert cost.params == entry.params
    assert cost.macs == MACS[name]
