"""Ridge regression from the rows equals ridge regression from second moments."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from entrim import Moments, refit
from entrim.entropic.observations import Observations, principal_directions, refit_rows
from entrim.errors import SingularMomentsError
from entrim.selection.elimination import elimination_order, reduce_columns
from tests.layers import layer_rows, shapes

ridges = st.sampled_from([1e-4, 1e-2, 1.0, 10.0])


@given(shapes(), ridges, st.booleans())
def test_the_weights_and_error_are_those_of_the_second_moments(shape, ridge, has_intercept):
    x, y = layer_rows(**shape)
    x[:, 0] *= 1e-3  # below the floor of the scale
    rows = Observations(inputs=x, targets=y, has_intercept=has_intercept)
    m = Moments.of(x, y)
    expected = refit(m if has_intercept else m.through_origin(), range(m.channels), ridge=ridge)
    found = refit_rows(rows, ridge=ridge)
    torch.testing.assert_close(found.weight, expected.weight, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.bias, expected.bias, rtol=1e-8, atol=1e-8)
    assert found.mse == pytest.approx(expected.mse, rel=1e-6, abs=1e-8)
    assert rows.squared_error(found) == pytest.approx(found.mse * y.numel(), rel=1e-6, abs=1e-12)


@given(shapes())
def test_the_moments_are_those_of_the_rows(shape):
    x, y = layer_rows(**shape)
    rows, m = Observations(inputs=x, targets=y), Moments.of(x, y)
    torch.testing.assert_close(rows.moments().gram_sum, m.gram_sum)
    torch.testing.assert_close(rows.moments().cross_sum, m.cross_sum)
    assert rows.target_sum_sq == pytest.approx(m.target_sum_sq)
    assert (rows.count, rows.columns, rows.outputs) == (m.count, m.columns, m.outputs)


def test_two_sets_of_rows_are_added_like_their_moments():
    x, y = layer_rows(3, rows=12, channels=20)
    parts = [Observations(inputs=x[s], targets=y[s]) for s in (slice(7), slice(7, None))]
    found, expected = (
        refit_rows(parts[0] + parts[1], ridge=0.1),
        refit(Moments.of(x, y), range(20), ridge=0.1),
    )
    torch.testing.assert_close(found.weight, expected.weight, rtol=1e-8, atol=1e-8)


def test_fewer_rows_than_columns_are_interpolated_without_a_ridge():
    x, y = layer_rows(0, rows=10, channels=8, block=9)
    fit = refit_rows(Observations(inputs=x, targets=y), ridge=0.0)
    torch.testing.assert_close(x @ fit.weight.T + fit.bias, y)
    assert fit.mse == 0


def test_repeated_rows_need_a_ridge():
    x, y = torch.zeros(4, 9, dtype=torch.float64), torch.ones(4, 1, dtype=torch.float64)
    with pytest.raises(SingularMomentsError, match="pivot"):
        refit_rows(Observations(inputs=x, targets=y), ridge=0.0)


@pytest.mark.parametrize("rows", [6, 60])
def test_rankings_on_directions_from_rows_and_from_moments_are_equal(rows):
    x, y = layer_rows(1, rows=rows, channels=7, block=9)
    directions = principal_directions(x.unflatten(1, (7, 9)), 3)
    assert directions is not None
    reduced = torch.einsum("tdq,dqk->tdk", x.unflatten(1, (7, 9)), directions).flatten(1)
    found = Moments.of(reduced, y, block=3)
    expected = reduce_columns(Moments.of(x, y, block=9), 3)
    torch.testing.assert_close(found.gram_sum.abs(), expected.gram_sum.abs())
    assert torch.equal(elimination_order([found]), elimination_order([expected]))


def test_channels_of_low_rank_are_ranked_on_directions() -> None:
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(50, 7, 1, dtype=torch.float64, generator=generator)
    x = (maps * torch.randn(1, 7, 9, dtype=torch.float64, generator=generator)).flatten(1)
    moments = Moments.of(x, maps[:, :2, 0], block=9)  # each channel has one direction
    single = replace(moments, gram_sum=moments.gram_sum.float().double())
    assert sorted(elimination_order([reduce_columns(single, 5)]).tolist()) == list(range(7))


def test_channels_with_few_columns_are_not_reduced():
    assert principal_directions(torch.ones(5, 2, 3), 3) is None


def test_directions_beyond_the_rank_of_a_channel_are_zero():
    x = torch.zeros(4, 2, 9, dtype=torch.float64)
    x[:, 0] = torch.outer(torch.arange(1.0, 5), torch.ones(9))
    directions = principal_directions(x, 2)
    assert directions is not None
    lengths = directions.square().sum(1)
    torch.testing.assert_close(lengths, torch.tensor([[0.0, 1], [0, 0]], dtype=torch.float64))
