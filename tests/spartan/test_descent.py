"""Properties of every descent: F never increases, its residual is exact, one box is `solve`."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import entrim
from entrim.spartan.descent import Outcome, Point, Problem, descend
from entrim.spartan.regression import Regression
from entrim.spartan.regressor import SPARTAnRegressor
from entrim.spartan.search import search, solo_scores, varying
from experiments.benchmarks.piecewise import piecewise
from tests.layers import layer_rows
from tests.spartan.problems import loss, problem, problems, start


@settings(max_examples=20)
@given(p=problems(), seed=st.integers(0, 99))
def test_the_loss_never_increases(p, seed):
    down = descend(start(p, seed), tol=1e-6, max_iter=40)
    assert all(after <= before for before, after in pairwise(down.trace))
    assert down.trace[-1] == pytest.approx(loss(down.point), rel=1e-9, abs=1e-12)


@settings(max_examples=20)
@given(p=problems(), seed=st.integers(0, 99))
def test_converged_means_that_the_optimality_residual_is_at_most_tol(p, seed):
    down = descend(start(p, seed), tol=1e-3, max_iter=40)
    assert (down.outcome is Outcome.CONVERGED) == (down.point.optimality_residual <= 1e-3)


@settings(max_examples=20)
@given(p=problems(), seed=st.integers(0, 99))
def test_the_optimality_residual_is_the_range_of_the_numerical_gradient(p, seed):
    point = descend(start(p, seed), tol=1e-3, max_iter=100).point
    assume(len(point.w) >= 2 and point.w.min() > 1e-3)
    assume(point.optimality_residual < 1)
    gradient = []
    for d in range(len(point.w)):
        h = 1e-5 * point.w[d] * np.eye(len(point.w))[d]
        up, down = loss(point, w=point.w + h), loss(point, w=point.w - h)
        gradient.append((up - down) / (2 * h[d]))
    slope = 2 * point.fit.ridge_energy / point.w**3
    size = (slope + np.abs(point.price + p.eps_w * (np.log(point.w) + 1))).max()
    assert np.ptp(gradient) == pytest.approx(point.optimality_residual * size, abs=1e-4 * size)


def test_the_optimality_residual_is_one_while_a_row_is_nearer_to_another_box():
    point = start(problem(3))
    assert not np.array_equal(point.new_labels, point.labels)
    assert point.optimality_residual == 1


def test_the_optimality_residual_is_one_where_the_loss_is_concave():
    p = problem(0, features=6, boxes=1, eps_w=-5.0, box_weight=0.0)
    point = p.start(np.ones(6), np.zeros(30, dtype=int))
    assert point.optimality_residual == 1


@settings(max_examples=10)
@given(p=problems(eps_w=(-0.3, -0.02)), seed=st.integers(0, 99))
def test_removing_the_least_important_feature_does_not_decrease_the_loss(p, seed):
    down = descend(start(p, seed), tol=1e-3, max_iter=200)
    assume(down.outcome is Outcome.CONVERGED and len(down.trace) < 200 and len(down.point.w) > 1)
    left = np.arange(len(down.point.w)) != down.point.w.argmin()
    w = down.point.w[left] / down.point.w[left].sum()
    assert down.point.restrict(left, w).loss >= down.point.loss


def test_a_descent_without_a_step_reports_it():
    down = descend(start(problem(1)), tol=1e-9, max_iter=1)
    assert down.outcome is Outcome.OUT_OF_SWEEPS
    assert len(down.trace) == 2


def single_box(x: np.ndarray, y: np.ndarray, eps: float, block: int) -> Problem:
    """Return the layer method's problem: one box, no box distance, eps_r = 1, eps_l2 / M."""
    ones = np.ones(len(x))
    task = Regression(y, ones, eps / y.shape[1], 1.0, block, penalize_intercept=True)
    return Problem(x, ones, task, 1, -eps, 0.0, block)


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10_000),
    rows=st.sampled_from([5, 40, 300]),
    channels=st.integers(1, 8),
    block=st.sampled_from([1, 4]),
    eps=st.sampled_from([1e-3, 1e-2, 0.1]),
)
def test_one_box_has_the_loss_and_the_optimality_residual_of_solve(
    seed, rows, channels, block, eps
):
    x, y = layer_rows(seed, rows=rows, channels=channels, block=block)
    solved = entrim.solve(entrim.Moments.of(x, y, block=block), -eps, eps)
    p = single_box(x.numpy(), y.numpy(), eps, block)
    point = p.start(solved.w.numpy(), np.zeros(rows, dtype=int))
    assert point.loss == pytest.approx(solved.loss, rel=1e-8)
    assert point.optimality_residual == pytest.approx(solved.optimality_residual, abs=1e-5)
    np.testing.assert_allclose(point.fit.values[0, 1:].T, solved.weight, atol=1e-7)
    np.testing.assert_allclose(point.fit.values[0, 0], solved.bias, atol=1e-7)


@pytest.mark.parametrize("block", [1, 4])
@pytest.mark.parametrize("seed", range(5))
def test_the_regressor_with_one_box_equals_solve(seed, block):
    x, y = layer_rows(seed, rows=300, channels=6, block=block)
    solved = entrim.solve(entrim.Moments.of(x, y, block=block), -1e-2, 1e-2, tol=1e-7)
    model = SPARTAnRegressor(
        n_boxes=1,
        eps_w=-1e-2,
        eps_l2=1e-2 / y.shape[1],
        eps_r=1.0,
        box_weight=0.0,
        n_init=1,
        tol=1e-7,
        max_iter=3000,
        block=block,
        penalize_intercept=True,
    ).fit(x.numpy(), y.numpy())
    assert model.loss_ == pytest.approx(solved.loss, rel=1e-9)
    np.testing.assert_allclose(model.w_, solved.w, atol=1e-5)
    kept = np.repeat(model.w_ > 0, block)
    np.testing.assert_allclose(model.coef_[0][:, kept], solved.weight, atol=1e-4)
    np.testing.assert_allclose(model.intercept_[0], solved.bias, atol=1e-4)
    assert torch.equal(torch.from_numpy(np.flatnonzero(model.w_)), solved.kept)


def test_more_starts_never_increase_the_loss():
    p = problem(5, rows=60, features=20, boxes=3)
    losses = [search(p, n, 1e-3, 200, np.random.RandomState(0)).point.loss for n in (1, 3, 9)]
    assert losses == sorted(losses, reverse=True)
    assert losses[2] < losses[0]


def test_informed_starts_find_lower_losses_than_uniform_ones_over_two_draws():
    informed, uniform = [], []
    for seed in (20, 21):
        data = piecewise("touching", seed, rows=150, features=200)
        ones = np.ones(150)
        p = Problem(data.x, ones, Regression(data.y[:, None], ones, 5e-3, 20.0), 3, -0.02, 1.0)
        random = np.random.RandomState(0)
        losses = [
            descend(p.start(np.ones(200), random.randint(0, 3, 150)), 1e-3, 300).point.loss
            for _ in range(4)
        ]
        uniform.append(min(losses))
        informed.append(search(p, 4, 1e-3, 300, random).point.loss)
    assert sum(informed) < 0.8 * sum(uniform)


def test_constant_features_are_ignored():
    p = problem(2, features=3)
    rows = np.concatenate([p.rows, np.ones((len(p.rows), 1))], axis=1)
    wider = Problem(rows, p.weights, p.task, p.boxes, p.eps_w, p.box_weight)
    assert varying(wider).tolist() == [1, 1, 1, 0]
    assert 3 not in search(wider, 3, 1e-3, 200, np.random.RandomState(0)).point.features


def test_the_score_of_a_feature_is_the_variance_that_a_cubic_explains():
    random = np.random.default_rng(0)
    rows = random.normal(size=(400, 5))
    y = np.stack([rows[:, 1] ** 2, rows[:, 3] ** 3], axis=1)
    y /= y.std(0)
    ones = np.ones(400)
    scores = solo_scores(Problem(rows, ones, Regression(y, ones, 1e-3, 1.0), 2, -0.1, 1.0))
    np.testing.assert_allclose(np.sqrt(scores[[1, 3]]), 0.5, atol=0.06)
    assert scores[[0, 2, 4]].max() < 1e-3


def copies(point: Point) -> int:
    """Return how many of the features 0 and 1 remain."""
    return int((point.features < 2).sum())


def test_copies_of_a_feature_do_not_share_their_weight():
    p = problem(4, rows=60, features=3)
    rows = np.concatenate([p.rows[:, :1], p.rows], axis=1)
    twice = Problem(rows, p.weights, p.task, p.boxes, p.eps_w, p.box_weight)
    assert copies(search(twice, 4, 1e-3, 300, np.random.RandomState(0)).point) == 1
