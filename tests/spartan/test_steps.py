"""Each of the four steps minimizes F over its variable."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from entrim.spartan import boxes
from entrim.spartan.importance import convex_step, linear_step, w_step
from entrim.spartan.regression import ridge
from tests.spartan.problems import loss, problem, problems, start


@settings(max_examples=40)
@given(p=problems(), seed=st.integers(0, 99))
def test_the_loss_follows_its_definition(p, seed):
    point = start(p, seed)
    assert point.loss == pytest.approx(loss(point), rel=1e-10, abs=1e-12)


@settings(max_examples=25)
@given(p=problems(), seed=st.integers(0, 99))
def test_the_lambda_step_is_the_minimizer(p, seed):
    """F is quadratic in U: it increases in every direction from the minimizer."""
    point = start(p, seed)
    random = np.random.default_rng(seed)
    for _ in range(3):
        move = random.normal(size=point.fit.values.shape)
        up, down = (loss(point, U=point.fit.values + h * move) for h in (1e-4, -1e-4))
        curve = up + down - 2 * point.loss
        assert curve > 0
        assert abs(up - down) <= 1e-3 * curve + 1e-12 * abs(point.loss)


@pytest.mark.parametrize("shape", [(3, 7), (7, 7), (9, 4)])
def test_the_ridge_over_rows_equals_the_ridge_over_columns(shape):
    random = np.random.default_rng(0)
    A, Y = random.normal(size=shape), random.normal(size=(shape[0], 2))
    primal = np.linalg.solve(A.T @ A + 0.3 * np.eye(shape[1]), A.T @ Y)
    np.testing.assert_allclose(ridge(A, Y, 0.3), primal, rtol=1e-10)


@pytest.mark.parametrize("seed", range(4))
def test_the_gamma_step_is_the_best_of_all_affiliations(seed):
    p = problem(seed, rows=6, boxes=3)
    point = start(p, seed)
    every = [loss(point, gamma=np.eye(3)[list(labels)].T) for labels in product(range(3), repeat=6)]
    best = loss(point, gamma=np.eye(3)[point.new_labels].T)
    assert best == pytest.approx(min(every), rel=1e-12)


@settings(max_examples=20)
@given(p=problems(), seed=st.integers(0, 99))
def test_no_mixed_affiliation_is_better_than_one_box_a_row(p, seed):
    point = start(p, seed)
    best = loss(point, gamma=np.eye(p.boxes)[point.new_labels].T)
    mixed = np.random.default_rng(seed).dirichlet(np.ones(p.boxes), len(p.rows)).T
    assert best <= loss(point, gamma=mixed) + 1e-12


def test_of_equally_near_boxes_a_row_keeps_its_own():
    costs = np.array([[1.0, 1.0, 2.0], [1.0, 0.5, 0.5], [3.0, 1.0, 3.0]])
    assert boxes.affiliate(costs, np.array([1, 2, 0])).tolist() == [1, 2, 1]


@settings(max_examples=25)
@given(p=problems(), seed=st.integers(0, 99))
def test_the_c_step_is_the_minimizer(p, seed):
    point = start(p, seed)
    centers = boxes.center(point.rows, p.weights, point.labels, point.centers)
    move = 0.1 * np.random.default_rng(seed).normal(size=centers.shape)
    assert loss(point, C=centers) <= loss(point, C=centers + move) + 1e-12


def test_an_empty_box_keeps_its_center():
    rows, before = np.arange(6.0).reshape(3, 2), np.full((2, 2), 7.0)
    after = boxes.center(rows, np.ones(3), np.zeros(3, dtype=int), before)
    assert after.tolist() == [[2.0, 3.0], [7.0, 7.0]]


def simplex_grid(parts: int) -> np.ndarray:
    """Return every w of three features in steps of 1 / `parts`, none of them 0."""
    steps = [(i, j, parts - i - j) for i, j in product(range(1, parts), repeat=2) if i + j < parts]
    return np.array(steps) / parts


@pytest.mark.parametrize("eps_w", [0.0, 0.01, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_the_convex_w_step_is_better_than_every_w_of_a_grid(eps_w, seed):
    p = problem(seed, features=3, eps_w=eps_w)
    point = start(p, seed)
    w = w_step(point.fit.ridge_energy, point.price, point.w, eps_w)
    assert w.sum() == pytest.approx(1)
    best = loss(point, w=w)
    grid = min(loss(point, w=other) for other in simplex_grid(12))
    assert best <= grid
    assert best < point.loss


def separable(a, b, eps_w):
    """Return the function of log w that the convex step minimizes over the simplex."""

    def value(u):
        w = np.exp(u - np.logaddexp.reduce(u))
        return float((a / w**2 + b * w + eps_w * w * np.log(w)).sum())

    return value


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    size=st.integers(1, 6),
    eps_w=st.sampled_from([1e-3, 0.1, 10.0]),
    scale=st.sampled_from([1e-6, 1e-2, 1.0]),
)
def test_the_convex_w_step_agrees_with_a_general_solver(seed, size, eps_w, scale):
    random = np.random.default_rng(seed)
    a, b = scale * random.uniform(size=size), random.uniform(size=size)
    w = convex_step(a, b, eps_w)
    value = separable(a, b, eps_w)
    assert w.sum() == pytest.approx(1, rel=1e-12)
    gradient = -2 * a / w**3 + b + eps_w * (np.log(w) + 1)
    assert np.ptp(gradient) <= 1e-9 * np.abs(gradient).max() + 1e-9 * np.max(2 * a / w**3)
    found = minimize(value, np.zeros(size), method="L-BFGS-B")
    assert value(np.log(w)) <= found.fun + 1e-9 * abs(found.fun) + 1e-12


def test_the_convex_w_step_of_unused_features_is_a_softmax():
    b = np.array([0.0, 1.0, 700.0])
    w = convex_step(np.zeros(3), b, 1.0)
    np.testing.assert_allclose(w, np.exp(-b) / np.exp(-b).sum(), rtol=1e-12)


@settings(max_examples=40)
@given(p=problems(eps_w=(-0.3, -0.02)), seed=st.integers(0, 99))
def test_the_minimum_entropy_w_step_never_increases_the_loss(p, seed):
    point = start(p, seed)
    w = w_step(point.fit.ridge_energy, point.price, point.w, p.eps_w)
    assert w.sum() == pytest.approx(1)
    assert loss(point, w=w) <= point.loss + 1e-12 * abs(point.loss)


@pytest.mark.parametrize(
    ("a", "c", "expected"),
    [
        ([0.0, 0.0, 0.0], [3.0, 1.0, 2.0], [0.0, 1.0, 0.0]),
        ([1.0, 0.0, 1.0], [0.0, 9.0, 0.0], [0.5, 0.0, 0.5]),
        ([4e-3, 0.0, 4e-3], [0.0, -1.0, 0.0], [0.2, 0.6, 0.2]),
    ],
    ids=["nothing used", "dear and idle", "cheap and idle"],
)
def test_an_unused_feature_gets_the_rest_only_where_it_is_cheapest(a, c, expected):
    np.testing.assert_allclose(linear_step(np.array(a), np.array(c)), expected, atol=1e-12)
