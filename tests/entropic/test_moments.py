"""Moments are sums over rows: exact, additive, and independent of the dtype."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from entrim import Moments
from entrim.errors import BadRowsError, GramTooLargeError
from tests.layers import layer_moments, layer_rows, shapes


def as_one(m: Moments) -> torch.Tensor:
    """Return all sums as one vector."""
    flat = torch.cat([m.gram_sum.flatten(), m.cross_sum.flatten()])
    return torch.cat([flat, torch.tensor([m.target_sum_sq, m.count], dtype=torch.float64)])


def test_moments_are_sums_of_products_of_the_rows_with_a_constant_first():
    x, y = layer_rows(0, block=4)
    z = torch.cat([torch.ones(len(x), 1, dtype=torch.float64), x], 1)
    m = Moments.of(x, y, block=4)
    torch.testing.assert_close(m.gram_sum, z.T @ z)
    torch.testing.assert_close(m.cross_sum, z.T @ y)
    assert m.target_sum_sq == pytest.approx(float(y.square().sum()))
    assert (m.count, m.channels, m.columns, m.outputs) == (200, 6, 24, 3)


@given(shapes(), st.lists(st.integers(1, 60), min_size=1, max_size=8))
def test_moments_of_parts_add_up_to_the_moments_of_all_rows(shape, sizes):
    x, y = layer_rows(**shape)
    cuts = torch.tensor(sizes).cumsum(0).clamp_max(len(x) - 1).unique()
    parts = zip(torch.tensor_split(x, cuts), torch.tensor_split(y, cuts), strict=True)
    total = sum(Moments.of(a, b, block=shape["block"]) for a, b in parts)
    assert isinstance(total, Moments)
    torch.testing.assert_close(as_one(total), as_one(layer_moments(**shape)), rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int64]
)
def test_every_real_dtype_is_summed_exactly(dtype):
    g = torch.Generator().manual_seed(1)
    x = torch.randint(-9, 9, (50, 6), generator=g)
    y = torch.randint(-9, 9, (50, 2), generator=g)
    m = Moments.of(x.to(dtype), y.to(dtype), block=2)
    assert torch.equal(as_one(m), as_one(Moments.of(x.double(), y.double(), block=2)))


def test_numpy_arrays_and_strided_tensors_are_accepted():
    x, y = layer_rows(2)
    expected = as_one(Moments.of(x, y))
    strided = x.T.contiguous().T
    assert not strided.is_contiguous()
    torch.testing.assert_close(as_one(Moments.of(strided, y)), expected)
    torch.testing.assert_close(as_one(Moments.of(x.numpy(), np.asfortranarray(y))), expected)
    torch.testing.assert_close(as_one(Moments.of(x.clone().requires_grad_(), y)), expected)


def test_many_rows_are_summed_in_chunks(monkeypatch):
    x, y = layer_rows(3)
    expected = as_one(Moments.of(x, y))
    monkeypatch.setattr("entrim.entropic.moments._CHUNK_BYTES", 7 * 8 * (x.shape[1] + 1))
    torch.testing.assert_close(as_one(Moments.of(x, y)), expected)


def test_non_finite_rows_are_counted_and_the_first_is_named():
    x, y = layer_rows(4)
    x[17, 2], x[90, 0], x[90, 1] = float("nan"), float("inf"), float("-inf")
    with pytest.raises(BadRowsError, match=r"3 values of the inputs .* row 17, column 2.*remove"):
        Moments.of(x, y)
    x, y = layer_rows(4)
    y[3, 1] = float("nan")
    with pytest.raises(BadRowsError, match=r"1 values of the outputs .* row 3, column 1"):
        Moments.of(x, y)


def test_an_infinite_output_is_found_although_the_gram_is_finite():
    x, y = torch.zeros(3, 2), torch.tensor([[1.0], [float("inf")], [2.0]])
    with pytest.raises(BadRowsError, match=r"outputs .* row 1"):
        Moments.of(x, y)


def test_rows_whose_squares_overflow_are_refused():
    with pytest.raises(BadRowsError, match="overflow: scale the rows down"):
        Moments.of(torch.full((2, 2), 1e200, dtype=torch.float64), torch.ones(2, 1))


ROWS = torch.ones(4, 6)


@pytest.mark.parametrize(
    ("inputs", "outputs", "block", "message"),
    [
        (ROWS[:0], ROWS[:0], 1, "no rows"),
        (ROWS, ROWS[:3], 1, "same number of rows, got 4 and 3"),
        (ROWS, ROWS, 4, "positive multiple of block=4, got 6"),
        (ROWS[:, :0], ROWS, 1, "multiple of block=1, got 0"),
        (ROWS, ROWS[:, :0], 1, "no column"),
        (ROWS, ROWS, 0, "positive integer, got 0"),
        (ROWS, ROWS[0], 1, r"outputs must have the shape .* got \(6,\)"),
        (ROWS.view(4, 2, 3), ROWS, 1, r"inputs must have the shape .* got \(4, 2, 3\)"),
        (ROWS.to(torch.complex64), ROWS, 1, "complex"),
    ],
)
def test_rows_of_wrong_shapes_are_refused_with_a_remedy(inputs, outputs, block, message):
    with pytest.raises(BadRowsError, match=message):
        Moments.of(inputs, outputs, block=block)


def test_a_gram_above_the_memory_limit_is_refused_before_it_is_allocated():
    with pytest.raises(GramTooLargeError, match=r"of 25088 columns takes 4\.7 GiB.*memory_limit="):
        Moments.of(torch.zeros(1, 25_088), torch.zeros(1, 1))
    with pytest.raises(GramTooLargeError):
        Moments.of(ROWS, ROWS, memory_limit=7 * 7 * 8 - 1)
    assert Moments.of(ROWS, ROWS, memory_limit=7 * 7 * 8).channels == 6


def test_moments_can_be_created_from_sums():
    m = layer_moments(5, block=4)
    same = Moments(
        count=m.count,
        gram_sum=m.gram_sum.float(),
        cross_sum=m.cross_sum,
        target_sum_sq=m.target_sum_sq,
        block=4,
    )
    assert same.gram_sum.dtype == torch.float64
    torch.testing.assert_close(as_one(same), as_one(m), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 0}, "count must be a positive integer, got 0"),
        ({"count": 7}, "corner must equal count"),
        ({"gram_sum": torch.eye(7)[:, :6]}, r"shape \(n\+1, n\+1\), got \(7, 6\)"),
        ({"gram_sum": torch.full((7, 7), float("nan"))}, "NaN"),
        ({"cross_sum": torch.ones(6, 3)}, r"cross_sum must have .* got \(6, 3\)"),
        ({"target_sum_sq": -1.0}, "not negative"),
        ({"target_sum_sq": float("nan")}, "not negative"),
        ({"block": 4}, "multiple of block=4"),
    ],
)
def test_sums_that_cannot_be_moments_are_refused(change, message):
    m = layer_moments(6)
    sums = {name: getattr(m, name) for name in ("count", "gram_sum", "cross_sum", "target_sum_sq")}
    with pytest.raises(BadRowsError, match=message):
        Moments(**(sums | change))


def test_moments_of_different_layers_cannot_be_added():
    with pytest.raises(BadRowsError, match="same layer"):
        sum([layer_moments(7), layer_moments(7, outputs=2)])
    with pytest.raises(TypeError):
        sum([layer_moments(7)], start=1)  # type: ignore[arg-type]


def test_moments_are_pickled_without_the_lower_triangle() -> None:
    moments = Moments.of(torch.randn(50, 600), torch.randn(50, 2), block=3)
    content = pickle.dumps(moments)
    again = pickle.loads(content)
    assert len(content) < 0.75 * moments.gram_sum.nbytes
    assert (again.count, again.block, again.target_sum_sq) == (50, 3, moments.target_sum_sq)
    torch.testing.assert_close(again.gram_sum, moments.gram_sum, rtol=1e-12, atol=1e-12)
    assert torch.equal(again.cross_sum, moments.cross_sum)
