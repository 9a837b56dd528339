"""Channels as the layers behind them receive them: alive or dead, and their entropy."""

import math

import pytest
import torch
from torch import nn

from experiments.models import LeNet
from experiments.paper.activations import channel_values, live_channels
from experiments.paper.entropy_criteria import histogram_entropy, kse


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)
    ).eval()


def test_a_channel_is_dead_if_its_output_is_constant_or_never_positive() -> None:
    model, x = network(), torch.randn(50, 1, 8, 8)
    assert live_channels(model, x, ["0"]) == {"0": 8}
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm2d)
    with torch.no_grad():
        norm.weight[0], norm.bias[0] = 0, 3
        norm.bias[1] = -100
        norm.weight[2] *= 1e-4
    assert live_channels(model, x, ["0"]) == {"0": 5}


def test_values_are_those_behind_activation_and_pooling() -> None:
    torch.manual_seed(0)
    model, x = LeNet().eval(), torch.randn(30, 1, 28, 28)
    found = channel_values(model, x, ["conv0", "conv1"], lambda values: values.mean(2))
    pooled = nn.functional.avg_pool2d(model.conv0(x).relu(), 2)
    torch.testing.assert_close(found["conv0"], pooled.mean((2, 3)))
    pooled = nn.functional.avg_pool2d(model.conv1(pooled).relu(), 2)
    torch.testing.assert_close(found["conv1"], pooled.mean((2, 3)))


def test_the_entropy_of_outputs_is_that_of_100_bins() -> None:
    even = torch.arange(100.0)
    halves = (even < 50).float()
    values = torch.stack([even, halves, torch.ones(100)], dim=1)
    expected = torch.tensor([math.log(100), math.log(2), 0])
    torch.testing.assert_close(histogram_entropy(values), expected)


def test_kse_prefers_large_kernels_with_few_repetitions() -> None:
    torch.manual_seed(0)
    large = torch.randn(12, 9)
    crowded = large[:1] + 1e-3 * torch.randn(12, 9)
    crowded[0] += 5  # one kernel apart from eleven near copies: low entropy of distances
    scores = kse(torch.stack([large, 0.1 * large, crowded], dim=1))
    assert scores[1] == 0  # the least absolute weights
    sums = torch.stack([large, 0.1 * large, crowded]).abs().sum((1, 2))
    sparsity = (sums - sums[1]) / (sums.max() - sums[1])
    distances = torch.cdist(large, large).topk(6, largest=False).values.sum(1)
    shares = distances / distances.sum()
    assert scores[0] <= sparsity[0].sqrt()
    assert float(-(shares * shares.log()).sum()) == pytest.approx(math.log(12), abs=0.1)
    assert scores[0] == pytest.approx(float((sparsity[0] / 2).sqrt()), abs=1e-3)


def test_kernels_without_spread_have_no_entropy() -> None:
    assert kse(torch.ones(4, 3, 9)).tolist() == [0, 0, 0]
