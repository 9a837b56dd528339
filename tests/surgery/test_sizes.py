"""Widths that modules store as attributes, and the reasons why nothing can be pruned."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entrim.errors import NothingToCutError
from entrim.surgery.plan import Plan
from entrim.surgery.prune import prune
from entrim.surgery.trace import trace

IMAGES = torch.randn(2, 3, 8, 8)


class Split(nn.Module):
    """Splits its channels at a stored number, as the stages of CSPNet do."""

    def __init__(self) -> None:
        super().__init__()
        self.expand_chs, self.scale_shape, self.kernel_size = 8, (1, 8, 1, 1), 8
        self.a, self.b = nn.Conv2d(3, 8, 1), nn.Conv2d(4, 4, 1)
        self.scale = nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x)) * self.scale.view(self.scale_shape)
        first, second = x.split(self.expand_chs // 2, 1)
        return torch.cat([self.b(first), second], 1)


class Network(nn.Module):
    """Has the metadata of a network of timm."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = Split(), nn.Linear(8, 4)
        self.num_features, self.unrelated_dim = 8, 7
        self.feature_info = [{"num_chs": 8, "module": "body"}]

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x).mean((2, 3)))


def test_stored_widths_follow_the_channels() -> None:
    net = Network()
    graph = trace(net, IMAGES)
    assert {group.name: group.channels for group in graph.groups} == {"body.a": 4, "body.b": 4}
    small: Any = prune(net, Plan({"body.a": [1, 3], "body.b": [0, 2]}), IMAGES, graph=graph).model
    assert (small.body.expand_chs, small.body.scale_shape) == (4, (1, 4, 1, 1))
    assert (small.num_features, small.feature_info[0]["num_chs"]) == (4, 4)
    assert (small.body.kernel_size, small.unrelated_dim) == (8, 7)
    assert (net.num_features, net.feature_info[0]["num_chs"], net.body.expand_chs) == (8, 8, 8)


class Misleading(nn.Module):
    """Has an attribute that looks like a width, and that the code uses for something else."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = 6
        self.a, self.b = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x)[:, :, : self.hidden])


def test_a_guess_that_changes_the_outputs_is_dropped() -> None:
    net = Misleading()
    graph = trace(net, IMAGES)
    assert {group.name: group.channels for group in graph.groups} == {"a": 6}
    small: Any = prune(net, Plan({"a": [0, 2]}), IMAGES, graph=graph).model
    assert small.hidden == 6


def test_a_network_without_prunable_channels_is_refused_in_one_sentence() -> None:
    with pytest.raises(NothingToCutError, match=r"6 of 6 because it is an output") as caught:
        trace(nn.Sequential(nn.Conv2d(3, 6, 1)), IMAGES)
    assert len(str(caught.value)) < 250
    assert "it is an output of the network" in str(caught.value.graph)
