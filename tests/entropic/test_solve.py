"""Properties of every solution, with either solver."""

from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import entrim
from entrim import Moments, Outcome, refit, solve
from tests.layers import eps_values, layer_moments, layer_rows, shapes

solvers = pytest.mark.parametrize("solver", ["mm", "alternating"])
FEW = 60
"""Ridge solves in property tests: the alternating solver is slow."""


def objective(m: Moments, s: entrim.Solution, eps_w: float, eps_l2: float) -> float:
    """Return F written out from its definition, from (w, L) alone."""
    w = s.w[s.kept]
    L = s.weight / w.repeat_interleave(m.block)
    columns = (1 + s.kept[:, None] * m.block + torch.arange(m.block)).flatten()
    columns = torch.cat([torch.zeros(1, dtype=torch.int64), columns])
    U = torch.cat([s.bias[:, None], s.weight], 1)
    G, C = m.gram_sum[columns][:, columns] / m.count, m.cross_sum[columns] / m.count
    error = m.target_sum_sq / m.count - 2 * (U.T * C).sum() + (U.T * (G @ U.T)).sum()
    norm = L.square().sum() + s.bias.square().sum()
    return float(eps_w * (w * w.log()).sum() + (eps_l2 * norm + error) / m.outputs)


@solvers
@settings(max_examples=12)
@given(shape=shapes(), eps=eps_values)
def test_the_objective_never_increases(solver, shape, eps):
    s = solve(layer_moments(**shape), -eps, eps, solver=solver, max_solves=FEW)
    assert all(after <= before for before, after in pairwise(s.trace))
    assert s.loss == s.trace[-1]


@solvers
@settings(max_examples=12)
@given(shape=shapes(), eps=eps_values)
def test_converged_means_that_the_optimality_residual_is_at_most_tol(solver, shape, eps):
    s = solve(layer_moments(**shape), -eps, eps, solver=solver, tol=1e-4, max_solves=FEW)
    assert (s.status.outcome is Outcome.CONVERGED) == (s.optimality_residual <= 1e-4)
    assert s.status.converged == (s.optimality_residual <= 1e-4)


@solvers
@settings(max_examples=12)
@given(shape=shapes(), eps=eps_values)
def test_a_solution_is_consistent(solver, shape, eps):
    m = layer_moments(**shape)
    s = solve(m, -eps, eps, solver=solver, max_solves=FEW)
    assert float(s.w.sum()) == pytest.approx(1)
    assert torch.equal(s.kept, s.w.nonzero()[:, 0])
    assert s.weight.shape == (m.outputs, len(s.kept) * m.block)
    assert s.bias.shape == (m.outputs,)
    scale = m.target_sum_sq / m.count / m.outputs
    assert s.loss == pytest.approx(objective(m, s, -eps, eps), rel=1e-9, abs=1e-9 * scale)
    assert s.ridge_solves == len(s.widths) >= len(s.trace)


@settings(max_examples=30)
@given(shape=shapes(), eps=eps_values)
def test_the_optimality_residual_bounds_the_range_of_the_numerical_gradient(shape, eps):
    """A central difference of F(w), with L solved again, is independent of the closed form."""
    s = solve(layer_moments(**shape), -eps, eps)
    assume(2 <= len(s.kept) <= 6 and float(s.w[s.kept].min()) > 1e-3)
    m = layer_moments(**shape)

    def loss(w: torch.Tensor) -> float:
        """Return F at w, also off the simplex: solve() would normalize, so scale the rows."""
        scale = torch.cat([torch.ones(1, dtype=torch.float64), w.repeat_interleave(m.block)])
        A = m.gram_sum / m.count * scale * scale[:, None] + eps * torch.eye(len(scale))
        b = m.cross_sum / m.count * scale[:, None]
        fit = (m.target_sum_sq / m.count - (b * torch.linalg.solve(A, b)).sum()) / m.outputs
        return float(-eps * torch.special.xlogy(w, w).sum() + fit)

    gradient = []
    for d in s.kept:
        h = 1e-5 * float(s.w[d])
        up, down = s.w.clone(), s.w.clone()
        up[d] += h
        down[d] -= h
        gradient.append((loss(up) - loss(down)) / (2 * h))
    size = max(abs(g) for g in gradient) + eps
    assert max(gradient) - min(gradient) <= 20 * s.optimality_residual * size + 1e-4 * size


@settings(max_examples=40)
@given(shape=shapes(), eps=eps_values, order=st.randoms(use_true_random=False))
def test_w_follows_a_permutation_of_the_channels(shape, eps, order):
    assume(shape["rows"] > 5)
    x, y = layer_rows(**shape)
    labels = list(range(shape["channels"]))
    order.shuffle(labels)
    moved = x.unflatten(1, (-1, shape["block"]))[:, labels].flatten(1)
    s = solve(layer_moments(**shape), -eps, eps)
    permuted = solve(Moments.of(moved, y, block=shape["block"]), -eps, eps)
    torch.testing.assert_close(permuted.w, s.w[labels], rtol=0, atol=1e-8)


@solvers
@settings(max_examples=12)
@given(shape=shapes(), eps=eps_values, copied=st.integers(0, 11))
def test_of_exact_copies_the_lowest_index_is_kept_at_the_same_loss(solver, shape, eps, copied):
    x, y = layer_rows(**shape)
    blocks = x.unflatten(1, (-1, shape["block"]))
    twice = torch.cat([blocks, -blocks[:, [copied % shape["channels"]]]], 1).flatten(1)
    twice = twice if copied % 2 else twice.abs()
    options = {"eps_w": -eps, "eps_l2": eps, "solver": solver, "max_solves": FEW}
    alone = solve(Moments.of(x, y, block=shape["block"]), **options)
    s = solve(Moments.of(twice, y, block=shape["block"]), **options)
    assert s.loss == pytest.approx(alone.loss, rel=1e-9)
    assert torch.equal(s.kept, alone.kept)
    assert "1 copies of other channels dropped" in str(s.status)


@solvers
@pytest.mark.parametrize("noise", [1e-7, 1e-5, 1e-4, 1e-3, 1e-2])
def test_nearly_equal_channels_do_not_end_at_a_saddle_point(solver, noise):
    """Without comparing them, F is higher with an optimality residual below 1e-3."""
    x, y = layer_rows(1, channels=3)
    g = torch.Generator().manual_seed(9)
    near = x[:, :1] + noise * torch.randn(len(x), 1, generator=g, dtype=torch.float64)
    alone = solve(Moments.of(x, y), -0.1, 0.1, solver=solver)
    assert 0 in alone.kept
    s = solve(Moments.of(torch.cat([x, near], 1), y), -0.1, 0.1, solver=solver)
    assert s.loss <= alone.loss * (1 + 1e-3)
    assert len({0, 3} & set(s.kept.tolist())) == 1


@settings(max_examples=30)
@given(shape=shapes(), eps=eps_values)
def test_removing_the_least_important_channel_does_not_decrease_the_objective(shape, eps):
    m = layer_moments(**shape)
    s = solve(m, -eps, eps, max_solves=2000)
    assume(len(s.kept) > 1 and s.full_size_solves < 50)
    start = s.w.clone()
    start[s.kept[s.w[s.kept].argmin()]] = 0
    assert solve(m, -eps, eps, start=start, max_solves=1).loss > s.loss


@settings(max_examples=30)
@given(shape=shapes(), parts=st.integers(2, 5))
def test_moments_of_chunks_give_the_same_solution(shape, parts):
    x, y = layer_rows(**shape)
    chunks = zip(x.chunk(parts), y.chunk(parts), strict=True)
    streamed = sum(Moments.of(a, b, block=shape["block"]) for a, b in chunks)
    assert isinstance(streamed, Moments)
    s, t = solve(layer_moments(**shape), -1e-2, 1e-2), solve(streamed, -1e-2, 1e-2)
    assert t.loss == pytest.approx(s.loss, rel=1e-9)


@solvers
def test_vanishing_penalties_give_least_squares(solver):
    x, y = layer_rows(1, channels=5, block=4)
    m = Moments.of(x, y, block=4)
    s = solve(m, -1e-12, 1e-12, solver=solver)
    z = torch.cat([torch.ones(len(x), 1, dtype=torch.float64), x], 1)
    best = torch.linalg.lstsq(z, y).solution
    assert s.kept.tolist() == list(range(5))
    torch.testing.assert_close(s.weight, best[1:].T, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(s.bias, best[0], rtol=1e-6, atol=1e-6)


def test_the_first_step_at_uniform_w_is_a_ridge_of_strength_eps_l2_times_d_squared():
    x, y = layer_rows(2, channels=5, block=4)
    s = solve(Moments.of(x, y, block=4), -0.3, 0.3, max_solves=1)
    assert s.status.outcome is Outcome.OUT_OF_SOLVES
    z = torch.cat([torch.ones(len(x), 1, dtype=torch.float64), x], 1)
    strength = torch.full((21,), 0.3 * 5**2, dtype=torch.float64)
    strength[0] = 0.3
    best = torch.linalg.solve(z.T @ z / len(x) + torch.diag(strength), z.T @ y / len(x))
    torch.testing.assert_close(s.weight, best[1:].T)
    torch.testing.assert_close(s.bias, best[0])


def test_a_larger_eps_keeps_fewer_channels():
    m = layer_moments(3, channels=12, rows=300)
    kept = [len(solve(m, -eps, eps).kept) for eps in (1e-6, 0.1, 10.0)]
    assert kept[0] > kept[1] > kept[2] >= 1


@solvers
def test_a_solution_as_the_start_needs_no_step(solver):
    m = layer_moments(4, channels=10)
    s = solve(m, -1e-2, 1e-2)
    again = solve(m, -1e-2, 1e-2, solver=solver, start=s)
    assert again.ridge_solves <= 2
    assert len(again.trace) == 1
    torch.testing.assert_close(again.w, s.w)
    assert again.loss == pytest.approx(s.loss, rel=1e-12)


def test_channels_that_are_zero_at_the_start_remain_zero():
    start = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 0.0])
    s = solve(layer_moments(5), -1e-6, 1e-6, start=start)
    assert s.kept.tolist() == [0, 2, 4]


@pytest.mark.parametrize("tol", [1e-2, 1e-6])
def test_smaller_tolerances_are_reached_too(tol):
    assert solve(layer_moments(6, channels=10), -1e-2, 1e-2, tol=tol).optimality_residual <= tol


@solvers
def test_min_decrease_stops_at_the_first_smaller_step(solver):
    m = layer_moments(9, channels=12, rows=300)
    full = solve(m, -0.1, 0.1, solver=solver)
    decreases = [before - after for before, after in pairwise(full.trace)]
    limit = sorted(decreases)[len(decreases) // 2]
    early = solve(m, -0.1, 0.1, solver=solver, min_decrease=limit)
    last = next(n for n, value in enumerate(decreases) if value < limit)
    assert last + 1 < len(decreases)
    assert early.trace == full.trace[: last + 2]
    assert early.status.outcome is Outcome.SLOW
    assert set(full.kept.tolist()) <= set(early.kept.tolist())


def test_refit_has_a_smaller_error_than_the_shrunk_weights():
    m = layer_moments(7, channels=10)
    s = solve(m, -0.1, 0.1)
    assert len(s.kept) < 10
    assert refit(m, s.kept).mse < s.mse


def test_ridge_solves_are_counted_in_full_size_equivalents():
    s = solve(layer_moments(8, channels=10), -0.1, 0.1)
    assert s.full_size_solves == pytest.approx(sum((k / 10) ** 3 for k in s.widths))
    assert s.widths[0] == 10
    assert len(s.kept) in s.widths
