"""Invalid and degenerate inputs: a clear error with a remedy, or a defined solution."""

import pytest
import torch

from entrim import Moments, Outcome, select, solve, solve_k
from entrim.errors import BadSettingError, DeadInputError, MissingExtraError, SingularMomentsError
from tests.layers import layer_moments, layer_rows

solvers = pytest.mark.parametrize("solver", ["mm", "alternating"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eps_w": 1e-4}, r"eps_w must be negative, got 0\.0001: a positive"),
        ({"eps_w": 0.0}, "must be negative"),
        ({"eps_w": float("nan")}, "must be negative"),
        ({"eps_w": float("-inf")}, "must be negative"),
        ({"eps_l2": 0.0}, r"eps_l2 must be positive, got 0\.0: without"),
        ({"eps_l2": -1e-4}, "must be positive"),
        ({"eps_l2": float("nan")}, "must be positive"),
        ({"solver": "quick"}, "one of 'mm', 'alternating'; got 'quick'"),
        ({"tol": 0.0}, "tol must be positive, got 0.0"),
        ({"max_solves": 0}, "max_solves must be a positive integer, got 0"),
        ({"min_decrease": -1.0}, "min_decrease must be 0 or positive, got -1.0"),
        ({"start": torch.ones(5)}, "for each of the 6 channels"),
        ({"start": torch.zeros(6)}, "not all zero"),
        ({"start": -torch.ones(6)}, "non-negative"),
        ({"start": torch.full((6,), float("nan"))}, "non-negative"),
    ],
)
def test_invalid_options_are_refused_with_a_remedy(settings, message):
    with pytest.raises(BadSettingError, match=message):
        solve(layer_moments(0), **settings)


@solvers
def test_dead_channels_are_removed_and_counted(solver):
    x, y = layer_rows(1)
    x[:, [1, 4]] = 0
    s = solve(Moments.of(x, y), -1e-5, 1e-5, solver=solver)
    assert s.kept.tolist() == [0, 2, 3, 5]
    assert "2 dead channels dropped" in str(s.status)
    live = solve(Moments.of(x[:, [0, 2, 3, 5]], y), -1e-5, 1e-5, solver=solver)
    torch.testing.assert_close(s.w[s.kept], live.w)


@solvers
def test_only_dead_channels_are_an_error(solver):
    m = Moments.of(torch.zeros(10, 4), torch.ones(10, 2))
    with pytest.raises(
        DeadInputError, match=r"all 4 input channels are zero .* exclude this layer"
    ):
        solve(m, solver=solver)


@solvers
def test_a_single_channel_needs_one_solve(solver):
    s = solve(layer_moments(2, channels=1, block=4), solver=solver)
    assert s.w.tolist() == [1.0]
    assert s.kept.tolist() == [0]
    assert (s.ridge_solves, s.optimality_residual) == (1, 0.0)
    assert s.status.converged


def test_fewer_rows_than_columns_have_a_minimum_too():
    s = solve(layer_moments(3, rows=8, channels=6, block=9), -1e-3, 1e-3)
    assert s.status.converged
    assert torch.isfinite(s.weight).all()


@solvers
def test_huge_rows_raise_the_ridge_to_the_rounding_error_and_report_it(solver):
    x, y = layer_rows(4)
    s = solve(Moments.of(x * 1e8, y * 1e8), solver=solver)
    assert "ridge raised above rounding" in str(s.status)
    assert torch.isfinite(s.weight).all()
    assert list(s.trace) == sorted(s.trace, reverse=True)
    plain = solve(Moments.of(x, y), solver=solver)
    assert "ridge raised" not in str(plain.status)


def test_tiny_rows_keep_a_single_channel():
    """Rows of 1e-8 have squares below any eps: entropy alone decides, and one channel remains."""
    x, y = layer_rows(5)
    s = solve(Moments.of(x * 1e-8, y * 1e-8))
    assert len(s.kept) == 1
    assert torch.isfinite(s.weight).all()


def test_the_alternating_solver_does_not_report_a_maximum_as_converged():
    """Where entropy alone decides, the gradient is zero at the uniform start."""
    x, y = layer_rows(5)
    s = solve(Moments.of(x * 1e-8, y * 1e-8), solver="alternating")
    assert len(s.kept) == 1 or s.status.outcome is Outcome.STALLED


def test_outputs_that_are_all_zero_need_no_weights():
    x, _ = layer_rows(6)
    s = solve(Moments.of(x, torch.zeros(len(x), 2)))
    assert s.kept.tolist() == [0]
    assert s.mse == 0
    assert s.weight.abs().max() == 0
    assert solve_k(Moments.of(x, torch.zeros(len(x), 2)), k=3).kept.shape == (3,)


def test_too_few_solves_are_a_status_with_a_remedy():
    s = solve(layer_moments(7, channels=10), -1e-2, 1e-2, tol=1e-9, max_solves=3)
    assert s.status.outcome is Outcome.OUT_OF_SOLVES
    assert s.ridge_solves == 3
    assert s.optimality_residual > 1e-9
    assert "raise max_solves" in str(s.status)


def test_a_tolerance_below_rounding_stops_without_convergence():
    s = solve(layer_moments(8, channels=10), -1e-2, 1e-2, tol=1e-300, max_solves=10_000)
    assert s.status.outcome is Outcome.STALLED
    assert s.optimality_residual < 1e-6
    assert s.ridge_solves < 10_000


def test_sums_that_cannot_be_second_moments_are_refused():
    gram = torch.tensor([[10.0, 9, 0], [9, 1, 0], [0, 0, 1]])
    m = Moments(count=10, gram_sum=gram, cross_sum=torch.ones(3, 1), target_sum_sq=9.0)
    with pytest.raises(SingularMomentsError, match="collect them again in float64"):
        solve(m)
    with pytest.raises(SingularMomentsError, match="collect them again in float64"):
        select(m, k=1, method="greedy")


def test_the_alternating_solver_without_scipy_names_the_extra(uninstall):
    uninstall("scipy")
    with pytest.raises(MissingExtraError, match=r'scipy: pip install scipy, .*"\.\[compare\]"'):
        solve(layer_moments(9), solver="alternating")
    assert solve(layer_moments(9)).status.converged
