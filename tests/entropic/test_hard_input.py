"""Bad and degenerate input: a clear error that names the remedy, or a defined answer."""

import pytest
import torch

from entrim import Moments, Outcome, select, solve, solve_k
from entrim.errors import BadSettingError, DeadInputError, MissingExtraError, SingularMomentsError
from tests.layers import layer_moments, layer_rows

methods = pytest.mark.parametrize("method", ["fast", "reference"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eps_w": 1e-4}, r"eps_w is 0\.0001: it must be negative, because"),
        ({"eps_w": 0.0}, "must be negative"),
        ({"eps_w": float("nan")}, "must be negative"),
        ({"eps_w": float("-inf")}, "must be negative"),
        ({"eps_l2": 0.0}, r"eps_l2 is 0\.0: it must be positive, as"),
        ({"eps_l2": -1e-4}, "must be positive"),
        ({"eps_l2": float("nan")}, "must be positive"),
        ({"method": "quick"}, "choose one of fast, reference"),
        ({"tol": 0.0}, "tol is"),
        ({"max_solves": 0}, "max_solves is 0"),
        ({"fall": -1.0}, "fall is -1.0: it must be 0 or positive"),
        ({"start": torch.ones(5)}, "for each of the 6 channels"),
        ({"start": torch.zeros(6)}, "not all zero"),
        ({"start": -torch.ones(6)}, "non-negative"),
        ({"start": torch.full((6,), float("nan"))}, "non-negative"),
    ],
)
def test_settings_out_of_range_name_the_remedy(settings, message):
    with pytest.raises(BadSettingError, match=message):
        solve(layer_moments(0), **settings)


@methods
def test_dead_channels_are_dropped_and_counted(method):
    x, y = layer_rows(1)
    x[:, [1, 4]] = 0
    s = solve(Moments.of(x, y), -1e-5, 1e-5, solver=method)
    assert s.kept.tolist() == [0, 2, 3, 5]
    assert "2 dead channels dropped" in str(s.status)
    live = solve(Moments.of(x[:, [0, 2, 3, 5]], y), -1e-5, 1e-5, solver=method)
    torch.testing.assert_close(s.w[s.kept], live.w)


@methods
def test_all_channels_dead_is_an_error(method):
    m = Moments.of(torch.zeros(10, 4), torch.ones(10, 2))
    with pytest.raises(DeadInputError, match=r"all 4 input channels are zero .* leave this layer"):
        solve(m, solver=method)


@methods
def test_a_single_channel_needs_one_solve(method):
    s = solve(layer_moments(2, channels=1, block=4), solver=method)
    assert s.w.tolist() == [1.0]
    assert s.kept.tolist() == [0]
    assert (s.ridge_solves, s.optimality_residual) == (1, 0.0)
    assert s.status.converged


def test_fewer_rows_than_columns_have_a_minimum_all_the_same():
    s = solve(layer_moments(3, rows=8, channels=6, block=9), -1e-3, 1e-3)
    assert s.status.converged
    assert torch.isfinite(s.weight).all()


@methods
def test_huge_rows_floor_the_ridge_and_say_so(method):
    x, y = layer_rows(4)
    s = solve(Moments.of(x * 1e8, y * 1e8), solver=method)
    assert "ridge floored at rounding" in str(s.status)
    assert torch.isfinite(s.weight).all()
    assert list(s.trace) == sorted(s.trace, reverse=True)
    plain = solve(Moments.of(x, y), solver=method)
    assert "floored" not in str(plain.status)


def test_tiny_rows_are_cheaper_to_give_up_than_to_fit():
    """Rows of 1e-8 have squares below any eps: entropy alone decides, and one channel is left."""
    x, y = layer_rows(5)
    s = solve(Moments.of(x * 1e-8, y * 1e-8))
    assert len(s.kept) == 1
    assert torch.isfinite(s.weight).all()


def test_the_reference_does_not_call_a_maximum_converged():
    """Where entropy alone decides, a general solver sees no slope at the uniform start."""
    x, y = layer_rows(5)
    s = solve(Moments.of(x * 1e-8, y * 1e-8), solver="reference")
    assert len(s.kept) == 1 or s.status.outcome is Outcome.STALLED


def test_outputs_that_are_all_zero_need_no_weights():
    x, _ = layer_rows(6)
    s = solve(Moments.of(x, torch.zeros(len(x), 2)))
    assert s.kept.tolist() == [0]
    assert s.mse == 0
    assert s.weight.abs().max() == 0
    assert solve_k(Moments.of(x, torch.zeros(len(x), 2)), k=3).kept.shape == (3,)


def test_running_out_of_solves_is_a_status_that_names_the_remedy():
    s = solve(layer_moments(7, channels=10), -1e-2, 1e-2, tol=1e-9, max_solves=3)
    assert s.status.outcome is Outcome.OUT_OF_SOLVES
    assert s.ridge_solves == 3
    assert s.optimality_residual > 1e-9
    assert "raise max_solves" in str(s.status)


def test_a_tolerance_below_rounding_ends_in_a_stall_not_in_a_loop():
    s = solve(layer_moments(8, channels=10), -1e-2, 1e-2, tol=1e-300, max_solves=10_000)
    assert s.status.outcome is Outcome.STALLED
    assert s.optimality_residual < 1e-6
    assert s.ridge_solves < 10_000


def test_sums_that_are_no_second_moments_are_refused():
    gram = torch.tensor([[10.0, 9, 0], [9, 1, 0], [0, 0, 1]])
    m = Moments(count=10, gram_sum=gram, cross_sum=torch.ones(3, 1), target_sum_sq=9.0)
    with pytest.raises(SingularMomentsError, match="collect them again in float64"):
        solve(m)
    with pytest.raises(SingularMomentsError, match="collect them again in float64"):
        select(m, k=1, method="greedy")


def test_reference_without_scipy_names_the_extra(uninstall):
    uninstall("scipy")
    with pytest.raises(MissingExtraError, match=r'scipy: pip install scipy, .*"\.\[compare\]"'):
        solve(layer_moments(9), solver="reference")
    assert solve(layer_moments(9)).status.converged
