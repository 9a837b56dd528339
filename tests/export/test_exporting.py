"""A file for another runtime says what the network says, or is not handed out."""

import io
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from entrim.errors import (
    BadImagesError,
    CalibrationWarning,
    ExportError,
    MissingExtraError,
    SaveError,
)
from entrim.export.formats import Exported, to_int8, to_onnx, to_program
from entrim.export.parity import Parity, answer_of, outputs
from entrim.records import ProgressEvent
from tests.pipeline.networks import Residual, chain, images

onnx = pytest.importorskip("onnx", reason="needs onnx: pip install onnx")

WAYS = (to_onnx, to_program)
X = images(130, 3, 8, 8)


@cache
def exported(to: Callable[..., Exported], network: Callable[[], nn.Module]) -> Exported:
    model = network().train()
    made = to(model, X)
    assert all(module.training for module in model.modules())
    return made


@pytest.fixture(scope="module")
def plain() -> Exported:
    return exported(to_onnx, chain)


@pytest.mark.parametrize("to", WAYS)
@pytest.mark.parametrize("network", [chain, Residual])
def test_a_file_says_what_the_network_says_for_any_number_of_images(
    to: Callable[..., Exported], network: Callable[[], nn.Module]
) -> None:
    model, made = network().eval(), exported(to, network)
    assert made.parity.images == len(X)
    assert made.parity.same == len(X)
    assert made.parity.relative < 1e-5
    for count in (1, 2, 5):
        with torch.no_grad():
            wanted = model(X[:count])
        torch.testing.assert_close(made.answer(X[:count])[0], wanted, rtol=1e-4, atol=1e-5)


class Several(nn.Module):
    """Two outputs, of which one is far smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.conv(x)
        return {"map": 1e6 * y, "mean": 1e-6 * y.mean((2, 3))}


@pytest.mark.parametrize("to", WAYS)
def test_every_output_is_compared_by_its_own_size(to: Callable[..., Exported]) -> None:
    made = to(Several(), X)
    assert made.parity.same is None  # the first output is no row of scores
    found = made.outputs(X)
    assert [y.shape for y in found] == [(130, 4, 6, 6), (130, 4)]
    spoilt = Parity.of([found[0], found[1] * 1.5], found)
    assert spoilt.relative == pytest.approx(0.5)
    assert spoilt.largest < 1e-5


@given(st.floats(-0.9, 0.9), st.integers(0, 2**31))
def test_the_relative_error_is_that_of_the_norms(share: float, seed: int) -> None:
    wanted = torch.randn(7, 3, generator=torch.Generator().manual_seed(seed)).double()
    parity = Parity.of([wanted * (1 + share)], [wanted])
    assert parity.relative == pytest.approx(abs(share), abs=1e-12)
    assert parity.largest == pytest.approx(float(wanted.abs().max()) * abs(share), abs=1e-12)
    assert parity.same == 7


def test_nan_anywhere_is_told_and_nothing_is_like_nothing() -> None:
    one, zero = torch.ones(2, 3), torch.zeros(2, 3)
    for place in (0, 1):
        found = [one, one]
        found[place] = one * torch.nan
        assert not Parity.of(found, [one, one]).relative <= torch.inf
    assert Parity.of([zero], [zero]).relative == 0
    assert Parity.of([one], [zero]).relative == torch.inf
    with pytest.raises(ExportError, match="shapes"):
        Parity.of([one], [one[:1]])


class Said(nn.Module):
    """A network of one line."""

    def __init__(self, say: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.say = say

    def forward(self, x: Tensor) -> Tensor:
        return self.say(x)


@pytest.mark.parametrize(
    ("to", "say", "part"),
    [
        (to_onnx, lambda x: x + torch.rand_like(x), "draws no random numbers"),
        (to_program, lambda x: x + torch.rand_like(x), "draws no random numbers"),
        (to_program, lambda x: x * torch.nan, "relative error nan"),
        (to_onnx, lambda x: x.reshape(2, -1), "the number of images"),
        (to_program, lambda x: x if len(x) > 3 else -x, "the number of images"),
    ],
)
def test_a_network_that_a_file_cannot_follow_is_refused(
    to: Callable[..., Exported], say: Callable[[Tensor], Tensor], part: str
) -> None:
    with pytest.raises(ExportError, match=part):
        to(Said(say), X)


def test_an_operation_that_onnx_lacks_is_named() -> None:
    with pytest.raises(ExportError, match="svd") as caught:
        to_onnx(Said(torch.linalg.svdvals), X)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("to", WAYS)
def test_what_cannot_be_exported_is_refused_with_the_remedy(to: Callable[..., Exported]) -> None:
    with pytest.raises(BadImagesError, match="NaN"):
        to(chain(), torch.full((4, 3, 8, 8), torch.nan))
    with pytest.raises(ExportError, match=r"call torch\.onnx\.export"):
        to(chain(), {"pixels": X, "mask": X})


@pytest.mark.parametrize("to", WAYS)
def test_a_file_holds_neither_images_nor_lines_of_source(to: Callable[..., Exported]) -> None:
    content = exported(to, Residual).content
    for secret in (__file__, "networks.py", torch.__path__[0]):
        assert secret.encode() not in content
    for image in (X[0], X[-1]):
        assert image.numpy().tobytes() not in content


def test_int8_rounds_every_weight_to_the_nearest_step_of_its_channel(plain: Exported) -> None:
    eight = to_int8(plain, X)
    held = {
        name: onnx.numpy_helper.to_array(tensor)
        for content in (plain.content, eight.content)
        for tensor in onnx.load_model_from_string(content).graph.initializer
        for name in [tensor.name]
    }
    rounded = [name for name in held if name.endswith("weight_quantized")]
    assert len(rounded) == 4
    for name in rounded:
        weight, steps = held[name.removesuffix("_quantized")], held[f"{name[:-9]}scale"]
        assert held[name].dtype == "int8"
        assert steps.shape == weight.shape[:1]
        steps = steps.reshape(-1, *[1] * (weight.ndim - 1))
        assert (abs(weight - steps * held[name]) <= 0.5001 * steps).all()


def test_int8_is_compared_with_the_float_file_and_near_it(plain: Exported) -> None:
    eight = to_int8(plain, X)
    assert eight.parity == Parity.of(eight.outputs(X), plain.outputs(X))
    assert 1e-4 < eight.parity.relative < 0.2
    assert eight.parity.same is not None
    assert eight.parity.same > 0.9 * len(X)


def test_int8_warns_of_few_images(plain: Exported) -> None:
    with pytest.warns(CalibrationWarning, match="on 9 images only: hand over at least 100"):
        to_int8(plain, X[:9])


def test_steps_are_told_and_loggers_are_left_as_they_were(plain: Exported) -> None:
    loggers = [logging.getLogger(name) for name in ("", "torch.onnx", "torch.export")]
    levels, steps = [logger.level for logger in loggers], []
    to_int8(plain, X, on_step=steps.append)
    assert [logger.level for logger in loggers] == levels
    assert [step for step in steps if step.done == step.total] == [
        ProgressEvent(stage=stage, name="", done=4, total=4) for stage in ("calibrate", "compare")
    ]


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_a_missing_package_names_the_extra_and_torch_export_needs_none(
    uninstall: Callable[[str], None], package: str
) -> None:
    uninstall(package)
    with pytest.raises(MissingExtraError, match="pip install onnx onnxscript onnxruntime, or"):
        to_onnx(chain(), X)
    assert to_program(chain(), X).parity.relative == 0


def test_a_file_is_written_whole_or_not_at_all(plain: Exported, tmp_path: Path) -> None:
    plain.write(tmp_path / "net.onnx")
    assert (tmp_path / "net.onnx").read_bytes() == plain.content
    with pytest.raises(SaveError, match="cannot be written"):
        plain.write(tmp_path / "nowhere" / "net.onnx")
    assert [entry.name for entry in tmp_path.iterdir()] == ["net.onnx"]


def test_a_program_is_read_by_torch_alone() -> None:
    made = exported(to_program, Residual)
    again = torch.export.load(io.BytesIO(made.content)).module()
    for found, wanted in zip(outputs(answer_of(again), X), made.outputs(X), strict=True):
        assert torch.equal(found, wanted)
