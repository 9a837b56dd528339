"""Refit is least squares on the kept channels."""

import pytest
import torch
from hypothesis import assume, given

from entrim import Moments, refit
from entrim.errors import BadSettingError
from tests.layers import layer_rows, shapes


@given(shapes())
def test_refit_equals_least_squares_on_the_rows(shape):
    assume(shape["rows"] > 2 * shape["channels"] * shape["block"])
    x, y = layer_rows(**shape)
    kept = list(range(0, shape["channels"], 2))
    part = x.unflatten(1, (-1, shape["block"]))[:, kept].flatten(1)
    z = torch.cat([torch.ones(len(x), 1, dtype=torch.float64), part], 1)
    best = torch.linalg.lstsq(z, y).solution
    fit = refit(Moments.of(x, y, block=shape["block"]), kept)
    torch.testing.assert_close(fit.weight, best[1:].T, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(fit.bias, best[0], rtol=1e-5, atol=1e-6)
    assert fit.mse == pytest.approx(float((y - z @ best).square().mean()), rel=1e-6, abs=1e-9)


def test_the_order_of_kept_is_the_order_of_the_columns():
    x, y = layer_rows(0, block=4)
    m = Moments.of(x, y, block=4)
    there, back = refit(m, [1, 3]), refit(m, torch.tensor([3, 1]))
    torch.testing.assert_close(back.weight.roll(4, 1), there.weight)


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_the_scale_of_the_rows_does_not_matter(scale):
    x, y = layer_rows(1)
    fit = refit(Moments.of(x * scale, y), [0, 2, 4])
    expected = refit(Moments.of(x, y), [0, 2, 4])
    torch.testing.assert_close(fit.weight * scale, expected.weight, rtol=1e-5, atol=1e-6)


def test_fewer_rows_than_columns_are_interpolated_with_moderate_weights():
    x, y = layer_rows(2, rows=10, channels=8, block=9)
    fit = refit(Moments.of(x, y, block=9), range(8))
    assert fit.mse < 1e-6
    shortest = torch.linalg.pinv(torch.cat([torch.ones(10, 1, dtype=torch.float64), x], 1)) @ y
    assert float(fit.weight.norm()) < 2 * float(shortest.norm())


def test_dead_and_copied_channels_get_finite_weights():
    x, y = layer_rows(3)
    x[:, 1] = 0
    x[:, 4] = x[:, 0]
    fit = refit(Moments.of(x, y), range(6))
    assert torch.equal(fit.weight[:, 1], torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(fit.weight[:, 0], fit.weight[:, 4], rtol=1e-3, atol=1e-3)
    alone = refit(Moments.of(x, y), [0, 2, 3, 5])
    assert fit.mse == pytest.approx(alone.mse, rel=1e-6)


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ([], "at least one channel index from 0 to 5"),
        ([6], "0 to 5"),
        ([-1], "0 to 5"),
        ([1, 1], "each channel once"),
    ],
)
def test_invalid_channels_are_refused(kept, message):
    x, y = layer_rows(4)
    with pytest.raises(BadSettingError, match=message):
        refit(Moments.of(x, y), kept)
