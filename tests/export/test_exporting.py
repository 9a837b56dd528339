"""An exported file computes the same outputs as the network, or is refused."""

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

from entrim.callbacks import ProgressEvent
from entrim.errors import (
    BadImagesError,
    CalibrationWarning,
    ExportError,
    MissingExtraError,
    SaveError,
)
from entrim.export.formats import Exported, to_int8, to_onnx, to_program
from entrim.export.parity import Parity, answer_of, outputs
from tests.callbacks import Recorder
from tests.pipeline.networks import Residual, chain, images

onnx = pytest.importorskip("onnx", reason="needs onnx: pip install onnx")

EXPORTS = (to_onnx, to_program)
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


@pytest.mark.parametrize("to", EXPORTS)
@pytest.mark.parametrize("network", [chain, Residual])
def test_a_file_computes_the_outputs_of_the_network_for_any_number_of_images(
    to: Callable[..., Exported], network: Callable[[], nn.Module]
) -> None:
    model, made = network().eval(), exported(to, network)
    assert made.parity.images == len(X)
    assert made.parity.same == len(X)
    assert made.parity.relative < 1e-5
    for count in (1, 2, 5):
        with torch.no_grad():
            expected = model(X[:count])
        torch.testing.assert_close(made.answer(X[:count])[0], expected, rtol=1e-4, atol=1e-5)


class Several(nn.Module):
    """Two outputs, of which one is far smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.conv(x)
        return {"map": 1e6 * y, "mean": 1e-6 * y.mean((2, 3))}


@pytest.mark.parametrize("to", EXPORTS)
def test_every_output_is_compared_relative_to_its_own_size(to: Callable[..., Exported]) -> None:
    made = to(Several(), X)
    assert made.parity.same is None  # the first output has no class scores
    found = made.outputs(X)
    assert [y.shape for y in found] == [(130, 4, 6, 6), (130, 4)]
    wrong = Parity.of([found[0], found[1] * 1.5], found)
    assert wrong.relative == pytest.approx(0.5)
    assert wrong.largest < 1e-5


@given(st.floats(-0.9, 0.9), st.integers(0, 2**31))
def test_the_relative_error_is_a_ratio_of_norms(share: float, seed: int) -> None:
    expected = torch.randn(7, 3, generator=torch.Generator().manual_seed(seed)).double()
    parity = Parity.of([expected * (1 + share)], [expected])
    assert parity.relative == pytest.approx(abs(share), abs=1e-12)
    assert parity.largest == pytest.approx(float(expected.abs().max()) * abs(share), abs=1e-12)
    assert parity.same == 7


def test_nan_is_never_equal_and_zeros_are_equal_to_zeros() -> None:
    one, zero = torch.ones(2, 3), torch.zeros(2, 3)
    for place in (0, 1):
        found = [one, one]
        found[place] = one * torch.nan
        assert not Parity.of(found, [one, one]).relative <= torch.inf
    assert Parity.of([zero], [zero]).relative == 0
    assert Parity.of([one], [zero]).relative == torch.inf
    with pytest.raises(ExportError, match="shapes"):
        Parity.of([one], [one[:1]])


class Function(nn.Module):
    """A network that calls one function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize(
    ("to", "function", "part"),
    [
        (to_onnx, lambda x: x + torch.rand_like(x), "draws no random numbers"),
        (to_program, lambda x: x + torch.rand_like(x), "draws no random numbers"),
        (to_program, lambda x: x * torch.nan, "relative error nan|not JSON compliant"),
        (to_onnx, lambda x: x.reshape(2, -1), "the number of images"),
        (to_program, lambda x: x if len(x) > 3 else -x, "the number of images"),
    ],
)
def test_a_network_that_cannot_be_exported_exactly_is_refused(
    to: Callable[..., Exported], function: Callable[[Tensor], Tensor], part: str
) -> None:
    with pytest.raises(ExportError, match=part):
        to(Function(function), X)


def test_an_operation_that_onnx_does_not_have_is_named() -> None:
    with pytest.raises(ExportError, match="svd") as caught:
        to_onnx(Function(torch.linalg.svdvals), X)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("to", EXPORTS)
def test_unusable_inputs_are_refused_with_a_remedy(to: Callable[..., Exported]) -> None:
    with pytest.raises(BadImagesError, match="NaN"):
        to(chain(), torch.full((4, 3, 8, 8), torch.nan))
    with pytest.raises(ExportError, match=r"use torch\.onnx\.export"):
        to(chain(), {"pixels": X, "mask": X})


@pytest.mark.parametrize("to", EXPORTS)
def test_a_file_contains_neither_images_nor_source_code(to: Callable[..., Exported]) -> None:
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


def test_int8_is_compared_with_the_float_file_and_close_to_it(plain: Exported) -> None:
    eight = to_int8(plain, X)
    assert eight.parity == Parity.of(eight.outputs(X), plain.outputs(X))
    assert 1e-4 < eight.parity.relative < 0.2
    assert eight.parity.same is not None
    assert eight.parity.same > 0.9 * len(X)


def test_int8_warns_about_few_images(plain: Exported) -> None:
    with pytest.warns(CalibrationWarning, match="on only 9 images: pass at least 100"):
        to_int8(plain, X[:9])


def test_progress_is_reported_and_loggers_are_restored(plain: Exported) -> None:
    loggers = [logging.getLogger(name) for name in ("", "torch.onnx", "torch.export")]
    levels, recorder = [logger.level for logger in loggers], Recorder()
    to_int8(plain, X, callbacks=[recorder])
    assert [logger.level for logger in loggers] == levels
    assert [event for event in recorder.events if event.done == event.total] == [
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


def test_a_file_is_written_completely_or_not_at_all(plain: Exported, tmp_path: Path) -> None:
    plain.write(tmp_path / "net.onnx")
    assert (tmp_path / "net.onnx").read_bytes() == plain.content
    with pytest.raises(SaveError, match="cannot be written"):
        plain.write(tmp_path / "nowhere" / "net.onnx")
    assert [entry.name for entry in tmp_path.iterdir()] == ["net.onnx"]


def test_a_program_can_be_loaded_with_torch_alone() -> None:
    made = exported(to_program, Residual)
    again = torch.export.load(io.BytesIO(made.content)).module()
    for found, expected in zip(outputs(answer_of(again), X), made.outputs(X), strict=True):
        assert torch.equal(found, expected)
