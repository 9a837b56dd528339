"""The selection methods, compared with their definitions."""

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from entrim import Moments, refit, select, solve_k
from entrim.errors import BadSettingError, MissingExtraError
from tests.layers import layer_moments, layer_rows, shapes


def greedy_by_definition(m: Moments, k: int) -> list[int]:
    """Remove the channel with the smallest increase of the error, with a new solve each time."""
    left = list(range(m.channels))
    while len(left) > k:
        left.remove(min(left, key=lambda d: refit(m, [c for c in left if c != d]).mse))
    return left


@settings(max_examples=25)
@given(st.integers(0, 1000), st.sampled_from([1, 4]), st.integers(1, 6))
def test_greedy_with_updates_equals_greedy_with_new_solves(seed, block, k):
    m = layer_moments(seed, channels=7, block=block, outputs=4)
    assert select(m, k=k, method="greedy").tolist() == greedy_by_definition(m, k)


@settings(max_examples=25)
@given(shapes(), st.data(), st.sampled_from(["entropic", "greedy", "lasso", "magnitude", "random"]))
def test_every_selector_returns_k_ascending_channels(shape, data, method):
    m = layer_moments(**shape)
    k = data.draw(st.integers(1, shape["channels"]))
    weight = torch.randn(m.outputs, m.columns)
    kept = select(m, k=k, method=method, weight=weight)
    assert len(kept) == k
    assert kept.tolist() == sorted(set(kept.tolist()))
    assert set(kept.tolist()) <= set(range(m.channels))


@pytest.mark.parametrize("method", ["entropic", "greedy", "lasso", "exhaustive"])
def test_the_channels_that_make_the_output_are_found(method):
    x, _ = layer_rows(1, channels=8, block=4)
    y = x.unflatten(1, (-1, 4))[:, [2, 5, 6]].sum(2)
    kept = select(Moments.of(x, y, block=4), k=3, method=method)
    assert kept.tolist() == [2, 5, 6]


@settings(max_examples=25)
@given(st.integers(0, 1000), st.sampled_from([1, 4]), st.integers(1, 6))
def test_swaps_never_increase_the_error(seed, block, k):
    m = layer_moments(seed, channels=7, block=block, outputs=4)
    plain = refit(m, solve_k(m, k=k).kept).mse
    assert refit(m, select(m, k=k, method="entropic")).mse <= plain * (1 + 1e-9)


def test_swaps_decrease_the_error_of_some_selections():
    gains = []
    for seed in range(12):
        m = layer_moments(seed, channels=9, outputs=4)
        plain = refit(m, solve_k(m, k=4).kept).mse
        gains.append(1 - refit(m, select(m, k=4, method="entropic")).mse / plain)
    assert max(gains) > 0.01


@pytest.mark.parametrize("seed", range(12))
def test_no_further_swap_of_the_cheapest_channel_decreases_the_error(seed):
    m = layer_moments(seed, channels=9, block=1 + seed % 2, outputs=4)
    kept = select(m, k=4, method="entropic").tolist()
    error = refit(m, kept).mse
    cheapest = min(kept, key=lambda d: refit(m, [c for c in kept if c != d]).mse)
    rest = [c for c in kept if c != cheapest]
    others = set(range(9)) - set(kept)
    assert min(refit(m, [*rest, c]).mse for c in others) >= error * (1 - 1e-9)


def test_dead_channels_and_copies_are_removed_first():
    x, y = layer_rows(2, channels=6)
    x[:, 1] = 0
    x[:, 4] = x[:, 0]
    m = Moments.of(x, y)
    assert set(select(m, k=4, method="greedy").tolist()) in ({0, 2, 3, 5}, {2, 3, 4, 5})
    assert 1 not in select(m, k=4, method="lasso")


def test_lasso_selects_a_support_of_the_lasso_path():
    """The selected channels are the support of a LASSO fit of the channel scales."""
    from sklearn.linear_model import Lasso

    x, y = layer_rows(3, channels=8, outputs=4)
    weight = torch.randn(4, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    columns = (x - x.mean(0))[:, None] * weight[None]
    design = columns.flatten(0, 1).numpy()
    target = (y - y.mean(0)).flatten().numpy()
    kept = select(Moments.of(x, y), k=3, method="lasso", weight=weight).tolist()
    supports = []
    for strength in torch.logspace(2, -4, 400):
        fit = Lasso(alpha=float(strength), fit_intercept=False, tol=1e-8).fit(design, target)
        supports.append(set(fit.coef_.nonzero()[0].tolist()))
    assert set(kept) in supports


def test_magnitude_selects_the_largest_norms_and_needs_the_weight():
    m = layer_moments(4, channels=4, block=2, outputs=1)
    weight = torch.tensor([[1.0, -1.0, 3.0, 0.0, 0.0, 0.5, -4.0, -4.0]])
    assert select(m, k=2, method="magnitude", weight=weight).tolist() == [1, 3]
    with pytest.raises(BadSettingError, match="requires weight="):
        select(m, k=2, method="magnitude")
    with pytest.raises(BadSettingError, match=r"shape \(1, 8\), got \(1, 4\)"):
        select(m, k=2, method="magnitude", weight=weight[:, :4])


def test_random_draws_from_the_generator():
    m = layer_moments(5, channels=12)

    def draw(seed: int) -> list[int]:
        g = torch.Generator().manual_seed(seed)
        return select(m, k=5, method="random", generator=g).tolist()

    assert draw(0) == draw(0) != draw(1)


def test_exhaustive_is_the_best_of_all_subsets():
    m = layer_moments(6, channels=7, outputs=4)
    best = refit(m, select(m, k=3, method="exhaustive")).mse
    assert best == min(refit(m, subset).mse for subset in combinations(range(7), 3))


def test_exhaustive_refuses_too_many_subsets():
    m = layer_moments(7, channels=30)
    with pytest.raises(BadSettingError, match=r"155,117,520 subsets .* use method=\"greedy\""):
        select(m, k=15, method="exhaustive")


@pytest.mark.parametrize("k", [0, 7])
def test_channels_out_of_range_are_refused(k):
    with pytest.raises(BadSettingError, match=f"from 1 to 6, got {k}"):
        select(layer_moments(8), k=k, method="greedy")


def test_an_unknown_selector_names_the_known_ones():
    with pytest.raises(BadSettingError, match="'entropic', 'greedy'"):
        select(layer_moments(8), k=2, method="best")  # type: ignore[arg-type]


def test_lasso_without_scikit_learn_names_the_extra(uninstall):
    uninstall("sklearn")
    with pytest.raises(MissingExtraError, match="pip install scikit-learn, or"):
        select(layer_moments(8), k=2, method="lasso")
