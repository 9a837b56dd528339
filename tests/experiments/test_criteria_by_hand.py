"""The criteria of others against arithmetic, on a network of three channels."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from experiments.datasets import Dataset
from experiments.models import TrainedModel
from experiments.normalization import Normalization
from experiments.paper.criteria import CRITERIA
from experiments.work import Work
from tests.experiments.toys import toy

FILTERS = torch.tensor([[1.0, 2.0], [3.0, -2.0], [0.0, 4.0]])
SCALES = torch.tensor([1.0, -3.0, 2.0])
READER = torch.tensor([[1.0, 0.0, 2.0], [-1.0, 2.0, 1.0]])
"""Its columns (1, -1), (0, 2) and (2, 1) read the three channels."""


@pytest.fixture(scope="module")
def three() -> TrainedModel:
    """Return channels with a filter of two pixels, a scale and a column that reads them."""
    net = nn.Sequential(
        nn.Conv2d(1, 3, (1, 2), bias=False),
        nn.BatchNorm2d(3, eps=0.0),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3, 2, bias=False),
    )
    net.load_state_dict(
        {
            **net.state_dict(),
            "0.weight": FILTERS.view(3, 1, 1, 2),
            "1.weight": SCALES,
            "4.weight": READER,
        }
    )
    g = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (150, 1, 1, 2), dtype=torch.uint8, generator=g)
    train_set = Dataset(images, torch.randint(2, (150,), generator=g))
    normalization = Normalization((0.5,), (0.5,))
    return replace(
        toy(Work(Path("unused"))),
        model=net.eval(),
        normalization=normalization,
        train_set=train_set,
    )


def by_their_mean(scores: Sequence[float]) -> list[float]:
    return [3 * score / sum(scores) for score in scores]


SQUARES = (5 + 1 + 2, 13 + 9 + 4, 16 + 4 + 5)
"""Of filter, scale and column."""
FAR = (
    (8 + math.sqrt(145)) + (math.sqrt(10) + 3),
    (8 + 15) + (math.sqrt(10) + 5),
    (math.sqrt(145) + 15) + (3 + 5),
)
"""Distances between (1, 4), (9, 4), (0, 16), the filters squared, and (1, 1), (0, 4), (4, 1)."""


HAND = {
    "L1 norm": [3.0, 5.0, 4.0],
    "BatchNorm scale": by_their_mean([1.0, 3.0, 2.0]),
    "torch-pruning's group L2 norm": by_their_mean(SQUARES),
    "torch-pruning's LAMP": [8 / (8 + 25 + 26), 26 / 26, 25 / (25 + 26)],
    "torch-pruning's FPGM": by_their_mean(FAR),
    "KSE": [0.0, 0.0, 1.0],  # absolute sums 2, 2, 3; two kernels each, so equal entropies
}
ENTROPY = "entropy of filter outputs"
TAYLOR = "torch-pruning's Taylor, with labels"


@pytest.mark.parametrize(("name", "expected"), HAND.items(), ids=list(HAND))
def test_a_criterion_is_what_is_reckoned_by_hand(
    name: str, expected: list[float], three: TrainedModel
) -> None:
    assert CRITERIA[name](three, ["0"])["0"].tolist() == pytest.approx(expected)


def test_taylor_is_weight_times_gradient_by_the_chain_rule(three: TrainedModel) -> None:
    x = three.normalization(three.train_set.images).flatten(1).double()
    filters, scales, reader = FILTERS.double(), SCALES.double(), READER.double()
    before = (x @ filters.T) * scales
    hidden = before.clamp(min=0)
    off = (hidden @ reader.T).softmax(1) - nn.functional.one_hot(three.train_set.labels, 2)
    to_reader = off.T @ hidden
    to_filters = ((off @ reader) * scales * (before > 0)).T @ x
    change = (filters * to_filters).abs().sum(1) + (reader * to_reader).abs().sum(0)
    found = CRITERIA[TAYLOR](three, ["0"])["0"]
    assert found.tolist() == pytest.approx(by_their_mean(change.tolist()), rel=1e-4)


def test_the_entropy_of_outputs_is_that_of_a_histogram(three: TrainedModel) -> None:
    x = three.normalization(three.train_set.images).flatten(1).double()
    hidden = ((x @ FILTERS.double().T) * SCALES.double()).clamp(min=0).numpy()
    expected = []
    for column in hidden.T:
        shares = np.histogram(column, bins=100)[0] / len(column)
        expected.append(float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum()))
    found = CRITERIA[ENTROPY](three, ["0"])["0"].tolist()
    assert found == pytest.approx(expected, abs=0.02)  # values on the edges of bins


def test_every_criterion_is_reckoned_here() -> None:
    assert {*HAND, TAYLOR, ENTROPY} == set(CRITERIA)
