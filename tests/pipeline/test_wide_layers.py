"""Layers with more columns than rows are pruned although their Gram matrices do not fit."""

import warnings

import pytest
import torch
from torch import nn

import entrim
from entrim.calibration.patch_gram import LayerRows
from entrim.errors import CalibrationWarning
from tests.pipeline.networks import images, settled
from tests.surgery.oracle import distance, outputs

pytestmark = pytest.mark.filterwarnings("ignore:.* is refitted on 96 rows")
"""The weights are those of the ridge, but more images would be better."""
X = images(96, 3, 8, 8)
LIMIT = 150_000
"""Less than the Gram matrix of 9 * 16 columns, more than the 96 rows of 12 * 16 columns."""
LITTLE = entrim.Calibration(memory_limit=LIMIT, holdout=0)
TARGETS = [entrim.Widths({"0": 5, "3": 9}), entrim.Budget(params=0.6)]


def flattened(seed: int = 0, bias: bool = True) -> nn.Sequential:
    """Return two convolutions and a Linear layer with 12 * 16 columns behind a Flatten."""
    torch.manual_seed(seed)
    return settled(
        nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 12, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(12 * 16, 10, bias=bias),
            nn.ReLU(),
            nn.Linear(10, 4),
        )
    )


@pytest.mark.parametrize("target", TARGETS, ids=["widths", "params"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_wide_layer_is_pruned_and_verified_without_a_warning(
    target: entrim.Widths | entrim.Budget, bias: bool
) -> None:
    model = flattened(bias=bias)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "not pruned", CalibrationWarning)
        r = entrim.sparsify(model, X, target, calibration=LITTLE)
    assert len(r.plan.kept["3"]) < 12
    assert r.record.after.params < r.record.before.params
    again = entrim.apply_plan(model, r.plan, X[:4])
    assert distance(outputs(again, X), outputs(r.model, X)) < 1e-6


@pytest.mark.parametrize("selector", ["greedy", "entropic", "lasso", "magnitude", "random"])
def test_every_selector_works_on_the_rows(selector: str) -> None:
    r = entrim.sparsify(
        flattened(), X, entrim.Widths({"3": 9}), selector=selector, calibration=LITTLE
    )
    assert len(r.plan.kept["3"]) == 9


@pytest.mark.parametrize("ridge", [None, 1e-3])
@pytest.mark.parametrize("order", ["sequential", "independent"])
@pytest.mark.parametrize("width", [4, 9])
def test_the_weights_are_those_from_the_gram_matrix(
    ridge: float | None, order: str, width: int
) -> None:
    by_rows, by_gram = (
        entrim.sparsify(
            flattened().double(),
            X.double(),
            entrim.Widths({"3": width}),
            selector=entrim.Scores({"3": torch.arange(12.0)}),
            reconstruction=entrim.Reconstruction(ridge=ridge, order=order, mirror=False),
            calibration=entrim.Calibration(memory_limit=limit, holdout=0),
        )
        for limit in (LIMIT, 2**30)
    )
    assert by_rows.plan.kept == by_gram.plan.kept
    for name, tensor in by_gram.plan.weights.items():
        torch.testing.assert_close(by_rows.plan.weights[name], tensor, rtol=1e-8, atol=1e-8)
    for one, other in zip(by_rows.record.layers, by_gram.record.layers, strict=True):
        assert one.error == pytest.approx(other.error, rel=1e-6, abs=1e-9)


def test_the_statistics_of_a_wide_layer_are_its_rows() -> None:
    with entrim.Pruner(flattened(), X, calibration=LITTLE) as pruner:
        group = pruner.graph.group("3")
        pruner.collect([group])
        found = pruner.statistics.gram("6")
        assert isinstance(found, LayerRows)
        assert found.rows.shape == (1, 96, 12 * 16)
        statistics = pruner.group_statistics(group)
        assert (statistics.moments[0].columns + 1) ** 2 * 8 <= LIMIT
        assert statistics.weights[0].shape == (10, statistics.moments[0].columns)


def test_the_estimate_counts_the_rows_of_a_wide_layer() -> None:
    memory = []
    for limit in (LIMIT, 2**30):
        calibration = entrim.Calibration(memory_limit=limit, holdout=0)
        with entrim.Pruner(flattened(), X, calibration=calibration) as pruner:
            memory.append(pruner.plan(TARGETS[0]).memory)
    assert memory[0] < memory[1]


def test_the_weights_of_the_solution_need_the_gram_matrix() -> None:
    solution = entrim.Reconstruction(weights="solution")
    with pytest.warns(CalibrationWarning, match="memory_limit=150,000 bytes: 3; raise"):
        r = entrim.sparsify(
            flattened(),
            X,
            entrim.Widths({"0": 5, "3": 9}),
            reconstruction=solution,
            calibration=LITTLE,
        )
    assert set(r.plan.kept) == {"0"}


def test_rows_above_the_memory_limit_are_not_pruned_and_named() -> None:
    little = entrim.Calibration(memory_limit=LIMIT - 10_000, holdout=0)
    with pytest.warns(CalibrationWarning, match="140,000 bytes: 3; raise"):
        r = entrim.sparsify(flattened(), X, TARGETS[0], calibration=little)
    assert set(r.plan.kept) == {"0"}
