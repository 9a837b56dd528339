"""Second moments of patches, compared with the patches and with the layers of PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from entrim.calibration import patch_gram as module
from entrim.calibration.patch_gram import Axis, Geometry, PatchGram, patches
from entrim.errors import BadRowsError, BadSettingError

CONV: tuple[Callable[..., Tensor], ...] = (F.conv1d, F.conv2d, F.conv3d)
TRANSPOSED: tuple[Callable[..., Tensor], ...] = (
    F.conv_transpose1d,
    F.conv_transpose2d,
    F.conv_transpose3d,
)


@dataclass(frozen=True)
class Case:
    """A layer and its inputs."""

    settings: dict[str, Any]
    """Of the geometry, which is created later, because beartype draws random numbers itself."""
    shape: tuple[int, ...]
    outputs: int
    seed: int

    @cached_property
    def geometry(self) -> Geometry:
        return Geometry(**self.settings)

    @cached_property
    def x(self) -> Tensor:
        """In float64, but with values of float32."""
        g = torch.Generator().manual_seed(self.seed)
        return (torch.randn(self.shape, generator=g) + 0.5).double()

    @property
    def width(self) -> int:
        return self.shape[1] // self.geometry.groups

    def layer(self, weight: Tensor) -> Tensor:
        """Return PyTorch's outputs as (groups, rows, outputs a group)."""
        g = self.geometry
        rank = len(g.kernel)
        options: dict[str, Any] = {"stride": g.stride, "dilation": g.dilation}
        if not g.transposed:
            sides = [side for pair in reversed(g.padding) for side in pair]
            y = CONV[rank - 1](F.pad(self.x, sides), weight, groups=g.groups, **options)
        else:
            padding, extra = [before for before, _ in g.padding], g.output_padding or 0
            options |= {"padding": padding, "output_padding": extra}
            y = TRANSPOSED[rank - 1](self.x, weight, groups=g.groups, **options)
        y = y.flatten(2).unflatten(1, (g.groups, self.outputs))
        return y.permute(1, 0, 3, 2).flatten(1, 2)

    def weight(self) -> tuple[Tensor, Tensor]:
        """Return a weight as the layer holds it, and as (groups, n, outputs a group)."""
        g, shape = self.geometry, (self.width, self.outputs)
        g_m_c = torch.randn(g.groups, *reversed(shape), *g.kernel, dtype=torch.float64)
        columns = g_m_c.flatten(2).mT
        return (g_m_c.transpose(1, 2) if g.transposed else g_m_c).flatten(0, 1), columns


@st.composite
def cases(draw: st.DrawFn, rank: int | None = None) -> Case:
    rank = draw(st.integers(1, 3)) if rank is None else rank
    transposed = draw(st.booleans())

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    kernel, stride, dilation = each(1, 5 - rank), each(1, 3), each(1, 3)
    before, after, extra = each(0, 3), each(0, 3), each(0, 2)
    if transposed:
        after = before
        ends = zip(extra, stride, dilation, strict=True)
        extra = tuple(min(end, max(t, e) - 1) for end, t, e in ends)
    else:
        extra = (0,) * rank
    sizes = []
    for k, t, e, a, b, end in zip(kernel, stride, dilation, before, after, extra, strict=True):
        axis = Axis(
            kernel=k, stride=t, dilation=e, before=a, after=b, extra=end, transposed=transposed
        )
        least = next(size for size in range(1, 20) if axis.outputs(size) > 0)
        sizes.append(draw(st.integers(least, least + 8 - 2 * rank)))
    groups, images, width, outputs = (draw(st.integers(1, 4)) for _ in range(4))
    settings = {
        "kernel": kernel,
        "stride": stride,
        "dilation": dilation,
        "padding": tuple(zip(before, after, strict=True)),
        "groups": groups,
        "transposed": transposed,
        "output_padding": extra,
    }
    return Case(settings, (images, groups * width, *sizes), outputs, draw(st.integers(0, 99)))


def summed(rows: Tensor) -> Tensor:
    z = F.pad(rows.double(), (1, 0), value=1.0)
    return z.mT @ z


def apart(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the Cauchy-Schwarz bound of each entry."""
    size = expected.diagonal(dim1=-2, dim2=-1).sqrt()
    scale = size[:, :, None] * size[:, None, :]
    different = (found - expected).abs()
    assert float(different[scale == 0].sum()) == 0
    return float((different / scale.where(scale > 0, 1)).max())


def gram(x: Tensor, geometry: Geometry, *, few: int = 1) -> PatchGram:
    """Return the sum over `x`, by shifts however few the channels are, or else by rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FEW", few)
        result = PatchGram(geometry, x.shape[1] if geometry.kernel else x.shape[-1], "cpu")
        result.add(x)
    return result


@given(cases())
def test_patches_times_the_weight_are_the_outputs_of_the_layer(case):
    weight, columns = case.weight()
    torch.testing.assert_close(patches(case.x, case.geometry) @ columns, case.layer(weight))


@given(cases(), st.sampled_from([1, 10**6]))
def test_the_gram_is_that_of_the_patches_in_both_precisions(case, few):
    rows = patches(case.x, case.geometry)
    expected = summed(rows)
    exact = gram(case.x, case.geometry, few=few)
    assert exact.count == rows.shape[1]
    assert exact.gram_sum.shape == (case.geometry.groups, *2 * (rows.shape[2] + 1,))
    assert apart(exact.gram_sum, expected) <= 1e-12
    single = gram(case.x.float(), case.geometry, few=few).gram_sum
    assert single.dtype == torch.float64
    assert apart(single, expected) <= 1e-6


@given(cases())
def test_the_gram_is_symmetric_with_a_non_negative_diagonal(case):
    found = gram(case.x, case.geometry).gram_sum
    assert float(found.diagonal(dim1=-2, dim2=-1).min()) >= 0
    assert apart(found.mT, found) <= 1e-14


@given(cases(), st.integers(0, 4))
def test_batches_add_up_and_a_returned_sum_does_not_change(case, at):
    total = gram(case.x, case.geometry)
    parts = gram(case.x[:at], case.geometry)
    before = parts.gram_sum
    kept = before.clone()
    parts.add(case.x[at:])
    assert parts.count == total.count
    assert apart(parts.gram_sum, total.gram_sum) <= 1e-12
    assert torch.equal(before, kept)


@given(cases(), st.integers(1, 4000), st.integers(1, 50), st.sampled_from([1, 10**6]))
def test_the_size_of_chunks_does_not_matter(case, size, rows, few):
    expected = gram(case.x, case.geometry).gram_sum
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK_BYTES", size)
        patch.setattr(module, "_ROWS", rows)
        assert apart(gram(case.x, case.geometry, few=few).gram_sum, expected) <= 1e-12


@given(cases(), st.integers(1, 5), st.integers(0, 99))
def test_sampled_positions_are_rows_of_all_patches(case, sampled, seed):
    rows = patches(case.x, case.geometry).unflatten(1, (len(case.x), -1))
    g = torch.Generator().manual_seed(seed)
    positions = torch.randint(rows.shape[2], (len(case.x), sampled), generator=g)
    expected = rows[:, torch.arange(len(case.x))[:, None], positions].flatten(1, 2)
    assert torch.equal(patches(case.x, case.geometry, positions), expected)
    result = PatchGram(case.geometry, case.x.shape[1], "cpu")
    result.add(case.x, positions)
    assert result.count == positions.numel()
    assert apart(result.gram_sum, summed(expected)) <= 1e-12


@given(cases(rank=2), st.integers(1, 4))
def test_images_of_several_sizes_and_sampled_positions_add_up(case, longer):
    larger = F.pad(case.x, (0, longer, longer, 0), value=0.5)
    positions = torch.zeros(len(case.x), 1, dtype=torch.int64)
    mixed = gram(case.x, case.geometry)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FEW", 1)
        for x, where in ((larger, None), (case.x, positions), (case.x, None)):
            mixed.add(x, where)
    rows = [patches(x, case.geometry) for x in (case.x, larger, case.x)]
    rows.append(patches(case.x, case.geometry, positions))
    assert mixed.count == sum(some.shape[1] for some in rows)
    assert apart(mixed.gram_sum, summed(torch.cat(rows, 1))) <= 1e-12


@pytest.mark.parametrize("shape", [(7, 5), (3, 4, 5), (2, 3, 2, 5)])
@pytest.mark.parametrize("few", [1, 10**6])
def test_a_linear_layer_uses_the_last_axis(shape, few):
    x, weight = torch.randn(shape, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    rows = patches(x, Geometry())
    torch.testing.assert_close(rows[0] @ weight.T, F.linear(x, weight).flatten(0, -2))
    assert apart(gram(x, Geometry(), few=few).gram_sum, summed(rows)) <= 1e-12


def same(kernel: int = 3, **settings) -> Geometry:
    side = (kernel // 2, (kernel - 1) // 2)
    pairs = {"kernel": 2 * (kernel,), "stride": (1, 1), "dilation": (1, 1), "padding": (side, side)}
    return Geometry(**(pairs | settings))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("groups", [1, 2])
def test_float32_products_of_many_rows_are_accurate_to_a_millionth(stride, groups):
    g = torch.Generator().manual_seed(0)
    x = torch.relu(torch.randn(30, 32, 64, 64, generator=g) + 1)
    geometry = same(stride=(stride, stride), groups=groups)
    found, expected = (PatchGram(geometry, 32, "cpu") for _ in range(2))
    found.add(x)
    expected.add(x.double())
    assert apart(found.gram_sum, expected.gram_sum) <= 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_other_dtypes_count_as_their_exact_values(dtype):
    x = torch.randint(-9, 9, (2, 3, 5, 5), generator=torch.Generator().manual_seed(0))
    found = gram(x.to(dtype), same()).gram_sum
    assert torch.equal(found, gram(x.double(), same()).gram_sum)


def test_a_3x3_layer_needs_29_products_and_10_on_a_2x2_image():
    assert len(module.meetings(same(), (8, 8))) == 29
    assert len(module.meetings(same(), (2, 2))) == 10


def test_inputs_may_be_strided_and_require_gradients():
    x = torch.randn(2, 5, 5, 3, dtype=torch.float64).permute(0, 3, 1, 2).requires_grad_()
    found = gram(x, same()).gram_sum
    assert not found.requires_grad
    assert apart(found, summed(patches(x.detach().contiguous(), same()))) <= 1e-12


def test_an_empty_sum_is_zero():
    empty = PatchGram(same(), 4, "cpu")
    assert empty.count == 0
    assert torch.equal(empty.gram_sum, torch.zeros(1, 37, 37, dtype=torch.float64))


def test_inputs_that_do_not_fit_the_layer_are_refused():
    with pytest.raises(BadRowsError, match="multiple of groups=3, got 4"):
        PatchGram(same(groups=3), 4, "cpu")
    with pytest.raises(BadRowsError, match="4 input channels, got inputs with 3"):
        PatchGram(same(), 4, "cpu").add(torch.zeros(1, 3, 5, 5))
    with pytest.raises(BadRowsError, match=r"\(images, channels, \*spatial\)"):
        patches(torch.zeros(3, 5, 5), same())
    with pytest.raises(BadRowsError, match=r"\(images, ..., channels\)"):
        patches(torch.zeros(3), Geometry())
    with pytest.raises(BadRowsError, match="larger images"):
        patches(torch.zeros(1, 3, 1, 9), same(padding=((0, 0), (0, 0))))


def test_a_geometry_that_contradicts_itself_is_refused():
    with pytest.raises(BadSettingError, match="pass one value per axis"):
        same(stride=(1,))
    with pytest.raises(BadSettingError, match="output_padding must have one value per axis"):
        replace(same(), transposed=True, output_padding=(1,))
    with pytest.raises(BadSettingError, match="must be positive"):
        same(dilation=(1, 0))
