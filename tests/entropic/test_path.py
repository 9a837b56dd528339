"""Paths are nested and start warm; `solve_k` keeps exactly k channels."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from entrim import Moments, refit, select, solve, solve_k, solve_path
from entrim.errors import BadSettingError
from tests.layers import layer_moments, layer_rows, shapes

EPS = [1e-6 * 3**i for i in range(14)]


@settings(max_examples=20)
@given(shapes())
def test_kept_sets_are_nested_from_dense_to_sparse(shape):
    path = solve_path(layer_moments(**shape), EPS)
    assert len(path) == len(EPS)
    assert all(set(b.kept.tolist()) <= set(a.kept.tolist()) for a, b in pairwise(path))
    assert all(s.status.converged for s in path)


def test_a_warm_path_is_about_as_good_as_cold_starts_with_fewer_solves():
    m = layer_moments(0, channels=40, outputs=8, rows=400)
    warm = solve_path(m, EPS)
    cold = [solve(m, -eps, eps) for eps in EPS]
    assert sum(s.full_size_solves for s in warm) < 0.8 * sum(s.full_size_solves for s in cold)
    for a, b in zip(warm, cold, strict=True):
        assert a.loss <= 1.05 * b.loss


def test_a_path_of_a_shared_group_has_parts():
    m = layer_moments(1)
    path = solve_path([m, m], EPS[:3])
    assert [len(s.parts) for s in path] == [2, 2, 2]


@pytest.mark.parametrize("eps", [[], [1e-3, 1e-4], [1e-3, 1e-3]])
def test_a_path_must_be_increasing(eps):
    with pytest.raises(BadSettingError, match="strictly increasing"):
        solve_path(layer_moments(1), eps)


def test_a_path_through_zero_is_refused_like_a_single_solve():
    with pytest.raises(BadSettingError, match=r"eps_w must be negative, got -0\.0"):
        solve_path(layer_moments(1), [0.0, 1e-3])


@settings(max_examples=40)
@given(shapes(), st.data())
def test_exactly_k_channels_are_kept(shape, data):
    k = data.draw(st.integers(1, shape["channels"]))
    s = solve_k(layer_moments(**shape), k=k)
    assert len(s.kept) == k
    assert s.weight.shape[1] == k * shape["block"]
    assert float(s.w.sum()) == pytest.approx(1)
    assert all(after <= before for before, after in pairwise(s.trace))


def test_exactly_k_channels_of_a_shared_group_are_kept():
    m, n = layer_moments(2, channels=9), layer_moments(3, channels=9, block=4)
    s = solve_k([m, n], k=4)
    assert len(s.kept) == 4
    assert [p.weight.shape for p in s.parts] == [(3, 4), (3, 16)]


def test_the_selection_of_k_channels_is_better_than_random_ones():
    m = layer_moments(4, channels=12, outputs=4, rows=400)
    chosen = refit(m, solve_k(m, k=5).kept).mse
    g = torch.Generator().manual_seed(0)
    draws = [select(m, k=5, method="random", generator=g) for _ in range(50)]
    assert chosen < sum(refit(m, kept).mse for kept in draws) / 50


@pytest.mark.parametrize("k", [0, -1, 6])
def test_an_impossible_number_of_channels_is_refused_with_the_possible_ones(k):
    x, y = layer_rows(5)
    x[:, 2] = 0
    with pytest.raises(BadSettingError, match=rf"from 1 to 5, .* got {k}"):
        solve_k(Moments.of(x, y), k=k)
