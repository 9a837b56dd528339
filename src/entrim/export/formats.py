"""Export a network to ONNX, int8 or torch.export, and compare its outputs."""

import io
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from entrim.calibration.data import Images, read_images
from entrim.callbacks import Callback, Progress
from entrim.errors import CalibrationWarning, ExportError, SaveError, TraceError, warn
from entrim.export.parity import (
    INPUT,
    Answer,
    Parity,
    Report,
    answer_of,
    batches,
    in_onnxruntime,
    name_errors,
    outputs,
    report_step,
    runtime,
    silence_exporter,
)
from entrim.graph.eager import (
    copy_without_hooks,
    isolate_random_state,
    neutral_context,
    unwrap,
)
from entrim.graph.tracer import export_program
from entrim.storage import atomic

TOLERANCE = 1e-4
"""Maximum relative error of an exported network; another order of sums is far below."""
FEW = 100
"""Minimum number of images for reliable ranges of int8."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exported:
    """An exported network as the content of a file, compared with the original.

    Attributes
    ----------
    content : bytes
        Content of the file.
    answer : callable
        Runs the exported network on a batch and returns its outputs.
    parity : Parity
        The difference from the original network.
    """

    content: bytes
    answer: Answer
    parity: Parity

    def outputs(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of the exported network for all images."""
        return outputs(self.answer, images)

    def write(self, file: str | os.PathLike[str]) -> None:
        """Write the network to `file` atomically."""
        try:
            atomic.write(Path(file), self.content)
        except OSError as error:
            raise SaveError(
                f"{file} cannot be written ({error.strerror}): free space, or pass another file"
            ) from error


@neutral_context()
@isolate_random_state()
def to_onnx(
    model: nn.Module,
    images: Images,
    *,
    tolerance: float = TOLERANCE,
    callbacks: Sequence[Callback] | None = None,
) -> Exported:
    """Export `model` in eval mode to ONNX, with a dynamic batch size.

    The result is run in onnxruntime on `images` and compared with PyTorch. Requires the extra
    `export`.

    Parameters
    ----------
    model : nn.Module
        The network; it is not modified.
    images : Tensor or iterable
        Images for the comparison.
    tolerance : float, default 1e-4
        Maximum relative error of the outputs.
    callbacks : list of Callback, optional
        Callbacks that receive progress events.

    Returns
    -------
    Exported

    Raises
    ------
    ExportError
        If the network cannot be exported, or its outputs differ by more than `tolerance`.
    """
    report = Progress.of(callbacks).report
    runtime()  # raise errors for missing packages first
    still, x = _ready(model, images)
    program = _program(still, x, report)
    names = [f"output_{k}" for k in range(len(answer_of(still)(x[:1])))]
    with silence_exporter(), name_errors(f"torch.onnx cannot write {type(model).__name__}"):
        made: Any = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            external_data=False,
            input_names=[INPUT],
            output_names=names if len(names) > 1 else ["outputs"],
        )
        content = _bare(made.model_proto)
    return _compare(content, in_onnxruntime(content), answer_of(still), x, tolerance, report)


@neutral_context()
@isolate_random_state()
def to_program(
    model: nn.Module,
    images: Images,
    *,
    tolerance: float = TOLERANCE,
    callbacks: Sequence[Callback] | None = None,
) -> Exported:
    """Export `model` in eval mode with torch.export (.pt2), with a dynamic batch size.

    The result is loaded, run on `images` and compared. Parameters are those of `to_onnx`.
    """
    report = Progress.of(callbacks).report
    still, x = _ready(model, images)
    program = _program(still, x, report)
    with silence_exporter(), name_errors(f"torch.export cannot save {type(model).__name__}"):
        stream = io.BytesIO()
        torch.export.save(program, stream)
        again = torch.export.load(io.BytesIO(stream.getvalue())).module()
    content = stream.getvalue()
    return _compare(content, answer_of(again), answer_of(still), x, tolerance, report)


def to_int8(
    network: Exported, images: Images, *, callbacks: Sequence[Callback] | None = None
) -> Exported:
    """Quantize an ONNX network to int8: weights per channel, activations per tensor.

    Ranges are the extreme values on `images`. The result is compared with `network`, without a
    limit for the difference.

    Parameters
    ----------
    network : Exported
        A result of `to_onnx`.
    images : Tensor or iterable
        Calibration images.
    callbacks : list of Callback, optional
        Callbacks that receive progress events.

    Returns
    -------
    Exported
    """
    report = Progress.of(callbacks).report
    runtime()
    x = _tensor(images, None)
    if len(x) < FEW:
        warn(f"int8 is calibrated on only {len(x)} images: pass at least {FEW}", CalibrationWarning)
    with silence_exporter(), name_errors("onnxruntime cannot quantize the network"):
        content = _quantize(network.content, batches(x, "calibrate", report))
    return _compare(content, in_onnxruntime(content), network.answer, x, math.inf, report)


def _compare(
    content: bytes,
    answer: Answer,
    expected: Answer,
    x: Tensor,
    tolerance: float,
    report: Report | None,
) -> Exported:
    """Return the exported network if its outputs are within `tolerance`."""
    with name_errors("the exported network cannot be run"):
        parity = Parity.of(outputs(answer, x, report), outputs(expected, x), len(x))
    if not parity.relative <= tolerance:  # NaN is refused too
        raise ExportError(
            f"the outputs of the exported network differ from those of the original ({parity}; the "
            f"tolerance is {tolerance:.0e}): check that the network computes in float32, draws no "
            "random numbers, and processes images independently"
        )
    return Exported(content=content, answer=answer, parity=parity)


def _ready(model: nn.Module, images: Images) -> tuple[nn.Module, Tensor]:
    """Return a copy in eval mode, and its images."""
    model = unwrap(model)
    return copy_without_hooks(model).eval(), _tensor(images, model)


def _tensor(images: Images, model: nn.Module | None) -> Tensor:
    data = read_images(images, model)
    batch = data.batch(slice(None))
    if not isinstance(batch, Tensor):
        raise ExportError(
            f"only networks with one input tensor can be exported, got the inputs "
            f"{', '.join(data.names)}: use torch.onnx.export instead"
        )
    return batch


def _program(still: nn.Module, x: Tensor, report: Report | None) -> ExportedProgram:
    """Return the program of the network with a dynamic batch size.

    Images, source lines and paths are not included.
    """
    two = torch.zeros(
        2, *x.shape[1:], dtype=x.dtype, device=x.device
    )  # a size of 1 would become static
    try:
        program = export_program(still, two, dynamic_shapes=({0: Dim("batch")},))
    except TraceError as error:
        raise ExportError(f"{error}, or on the number of images") from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    report_step(report, "export", 1, 1)
    return program


def _bare(network: Any) -> bytes:
    """Return an ONNX network without the debug metadata of torch.onnx."""
    for node in network.graph.node:
        node.ClearField("metadata_props")
    return network.SerializeToString()


def _quantize(content: bytes, batches: Iterator[Tensor]) -> bytes:
    """Return the ONNX network with QuantizeLinear and DequantizeLinear around its operations."""
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class BatchReader(quantization.CalibrationDataReader):
        def get_next(self) -> Any:
            batch = next(batches, None)
            return None if batch is None else {INPUT: batch.numpy()}

    with tempfile.TemporaryDirectory() as folder:
        plain, ready, small = (Path(folder, f"{k}.onnx") for k in range(3))
        plain.write_bytes(content)
        quant_pre_process(plain, ready)
        quantization.quantize_static(
            ready,
            small,
            BatchReader(),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
        )
        return small.read_bytes()
