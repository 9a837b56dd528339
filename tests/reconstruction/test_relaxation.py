"""Targets that are relaxed where a ReLU is inactive."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import entrim
from entrim.calibration.collect import LayerStatistics
from entrim.calibration.consumers import BoundConsumer
from entrim.calibration.tensor_store import Scratch, TensorStore
from entrim.entropic.least_squares import Refit
from entrim.entropic.moments import Moments
from entrim.reconstruction.layer import solve_layer
from entrim.reconstruction.relaxation import RelaxedRows, target_interval
from entrim.surgery.trace import trace
from tests.pipeline.networks import images, residual

RELU, RELU6 = (0.0, math.inf), (0.0, 6.0)
WIDTHS = entrim.Widths({"conv1": 6, "conv3": 7})


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def linear_reader() -> BoundConsumer:
    """Return the last layer of a network of two Linear layers: 6 inputs, 3 outputs."""
    model, x = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), draw(8, 4).float()
    found = LayerStatistics.of(
        model, trace(model, x), [x], memory_limit=2**30, scratch=Scratch(None, 2**30)
    )
    return found.consumers["2"]


@pytest.mark.parametrize("limits", [RELU, RELU6])
def test_only_errors_that_change_the_output_of_the_activation_remain(
    limits: tuple[float, float],
) -> None:
    reference, present = 5 * draw(200, 4), 5 * draw(200, 4, seed=1)
    wanted = present.clamp(*target_interval(reference, limits))
    torch.testing.assert_close(wanted.clamp(*limits), reference.clamp(*limits))
    inside = (reference > limits[0]) & (reference < limits[1])
    assert torch.equal(wanted[inside], reference[inside])
    hidden = present.clamp(*limits) == reference.clamp(*limits)
    assert bool(hidden.any())
    assert torch.equal(wanted[hidden], present[hidden])


def test_the_relaxed_error_bounds_the_error_behind_the_activation() -> None:
    reference, present = draw(500, 3), draw(500, 3, seed=1)
    relaxed = present.clamp(*target_interval(reference, RELU)) - present
    apart = present.relu() - reference.relu()
    assert bool((relaxed.abs() >= apart.abs()).all())
    assert bool((relaxed.abs() <= (reference - present).abs()).all())


def test_outputs_with_a_scale_near_zero_are_not_relaxed() -> None:
    x, residual = draw(50, 6), draw(50, 3, seed=1)
    scale = torch.tensor([1.0, 1e-9, 1.0]).double()
    found = RelaxedRows(scale, RELU, TensorStore(2**30))
    found.add(x[None], residual, -torch.ones(50, 3).double())
    moments, reader = Moments.of(x, residual), linear_reader()
    relaxed, plain = (found.refit(reader, [moments], [1e-9], rounds)[0] for rounds in (5, 0))
    torch.testing.assert_close(relaxed.weight[1], plain.weight[1], rtol=1e-4, atol=1e-5)
    assert float((relaxed.weight[0] - plain.weight[0]).abs().max()) > 0.1


@pytest.fixture
def rows() -> tuple[RelaxedRows, Moments, Tensor, Tensor]:
    """Return rows whose ReLU is a linear function, behind which the targets are not."""
    x, weight = draw(400, 6), draw(6, 3, seed=1)
    exact = x @ weight
    reference = torch.where(exact > 0, exact, -10 * draw(400, 3, seed=2).abs())
    found = RelaxedRows(torch.ones(3), RELU, TensorStore(2**30))
    for part in torch.arange(400).split(150):
        found.add(x[part][None], reference[part], reference[part])
    return found, Moments.of(x, reference), x, exact


def test_relaxed_refits_find_a_layer_that_reproduces_the_active_outputs(
    rows: tuple[RelaxedRows, Moments, Tensor, Tensor],
) -> None:
    found, moments, x, exact = rows
    reader = linear_reader()
    plain = solve_layer(reader, moments, 1e-9)
    relaxed = found.refit(reader, [moments], [1e-9], 60)[0]
    errors = [
        float(((x @ fit.weight.T + fit.bias).relu() - exact.relu()).square().mean())
        for fit in (plain, relaxed)
    ]
    assert errors[1] < 1e-4 * errors[0]


def test_no_round_increases_the_relaxed_error(
    rows: tuple[RelaxedRows, Moments, Tensor, Tensor],
) -> None:
    found, moments, _, _ = rows
    reader = linear_reader()
    errors = [found.refit(reader, [moments], [1e-9], rounds)[0].mse for rounds in range(6)]
    assert all(later < earlier for earlier, later in pairwise(errors))


@pytest.mark.parametrize("rounds", [1, 3])
def test_the_error_of_a_fit_is_an_upper_bound_of_its_relaxed_error(
    rows: tuple[RelaxedRows, Moments, Tensor, Tensor], rounds: int
) -> None:
    found, moments, x, exact = rows
    reference = torch.where(exact > 0, exact, -10 * draw(400, 3, seed=2).abs())
    reader = linear_reader()

    def relaxed_error(fit: Refit) -> float:
        present = x @ fit.weight.T + fit.bias
        wanted = present.clamp(*target_interval(reference, RELU))
        return float((wanted - present).square().mean())

    earlier, fit = (
        found.refit(reader, [moments], [1e-9], count)[0] for count in (rounds - 1, rounds)
    )
    assert relaxed_error(fit) < fit.mse < relaxed_error(earlier)


def test_without_rounds_the_fit_is_that_of_the_moments(
    rows: tuple[RelaxedRows, Moments, Tensor, Tensor],
) -> None:
    found, moments, _, _ = rows
    reader = linear_reader()
    plain, fit = solve_layer(reader, moments, 0.1), found.refit(reader, [moments], [0.1], 0)[0]
    assert torch.equal(fit.weight, plain.weight)
    assert torch.equal(fit.bias, plain.bias)


@pytest.mark.parametrize("n_positions", ["auto", None])
def test_relaxation_reduces_the_error_behind_a_relu(n_positions: int | None) -> None:
    model, x = residual(), images(300, 3, 8, 8)
    errors = []
    for rounds in (0, 5):
        r = entrim.sparsify(
            model,
            x,
            WIDTHS,
            reconstruction=entrim.Reconstruction(relaxation=rounds),
            calibration=entrim.Calibration(n_positions=n_positions),
        )
        unseen = images(300, 3, 8, 8, seed=1)
        streams = [first_block(m, unseen) for m in (r.model, model)]
        errors.append(float((streams[0] - streams[1]).square().mean()))
    assert errors[1] < errors[0]


def first_block(model: nn.Module, x: Tensor) -> Tensor:
    """Return the input of the second block, which follows a ReLU."""
    seen: list[Tensor] = []
    layer = model.get_submodule("conv3")
    handle = layer.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        model(x)
    handle.remove()
    return seen[0]
