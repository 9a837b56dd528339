"""A network as the bytes of a file that runs without entrim, compared before anybody gets it."""

import io
import math
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from entrim.calibration.data import Images, read_images
from entrim.callbacks import Callback, Progress
from entrim.errors import CalibrationWarning, ExportError, SaveError, TraceError
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
from entrim.graph.eager import copy_without_hooks
from entrim.graph.tracer import export_program
from entrim.storage import atomic

TOLERANCE = 1e-4
"""The largest relative error of a file that is handed out: sums in another order stay far below."""
FEW = 100
"""With fewer images the ranges of int8 are a guess."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exported:
    """A network in the bytes of a file, and how far it is from the one that it was made of."""

    content: bytes
    answer: Answer
    """What the file says to a batch, run as whoever gets the file would."""
    parity: Parity

    def outputs(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return what the file says to the images, batch by batch."""
        return outputs(self.answer, images)

    def write(self, file: str | os.PathLike[str]) -> None:
        """Put the network into `file`, in one step."""
        try:
            atomic.write(Path(file), self.content)
        except OSError as error:
            raise SaveError(
                f"{file} cannot be written ({error.strerror}): make room, or name another file"
            ) from error


def to_onnx(
    model: nn.Module,
    images: Images,
    *,
    tolerance: float = TOLERANCE,
    callbacks: Sequence[Callback] | None = None,
) -> Exported:
    """Return `model` in eval mode as an ONNX file for any number of images.

    It is run in onnxruntime on `images` and compared with PyTorch; a relative error above
    `tolerance`, or NaN, is an ExportError. Needs the extra `export`.
    """
    report = Progress.of(callbacks).report
    runtime()  # what is missing is said before any work
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


def to_program(
    model: nn.Module,
    images: Images,
    *,
    tolerance: float = TOLERANCE,
    callbacks: Sequence[Callback] | None = None,
) -> Exported:
    """Return `model` in eval mode as a file of torch.export (.pt2) for any number of images.

    It is read back, run on `images` and compared, as in `to_onnx`.
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
    """Return an ONNX network of `to_onnx` in eight bits: weights by channel, activations by tensor.

    Ranges are the extremes seen on `images`. The parity is that with `network`, and whatever it is,
    the file is handed out: how much may be lost is for whoever uses it to say.
    """
    report = Progress.of(callbacks).report
    runtime()
    x = _tensor(images, None)
    if len(x) < FEW:
        warnings.warn(
            f"int8 is calibrated on {len(x)} images only: hand over at least {FEW}",
            CalibrationWarning,
            stacklevel=2,
        )
    with silence_exporter(), name_errors("onnxruntime cannot quantise the network"):
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
    """Return the network if it says what is wanted."""
    with name_errors("the exported network cannot be run"):
        parity = Parity.of(outputs(answer, x, report), outputs(expected, x))
    if not parity.relative <= tolerance:  # NaN is refused too
        raise ExportError(
            f"the exported network says something else than the network itself ({parity}; "
            f"{tolerance:.0e} is allowed), so no file is written: check that it computes in "
            "float32, and that its forward draws no random numbers and treats images one by one"
        )
    return Exported(content=content, answer=answer, parity=parity)


def _ready(model: nn.Module, images: Images) -> tuple[nn.Module, Tensor]:
    """Return a copy in eval mode, and the images as it reads them."""
    return copy_without_hooks(model).eval(), _tensor(images, model)


def _tensor(images: Images, model: nn.Module | None) -> Tensor:
    data = read_images(images, model)
    batch = data.batch(slice(None))
    if not isinstance(batch, Tensor):
        raise ExportError(
            f"the network takes the inputs {', '.join(data.names)}: only networks of one tensor "
            "are exported here, for others call torch.onnx.export"
        )
    return batch


def _program(still: nn.Module, x: Tensor, report: Report | None) -> ExportedProgram:
    """Return the operations of the network on any number of images.

    Nothing else goes into a file: no image, and no lines of source with their paths.
    """
    two = torch.zeros(2, *x.shape[1:], dtype=x.dtype, device=x.device)  # one would stay one
    try:
        program = export_program(still, two, dynamic_shapes=({0: Dim("batch")},))
    except TraceError as error:
        raise ExportError(f"{error}, or on the number of images") from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    report_step(report, "export", 1, 1)
    return program


def _bare(network: Any) -> bytes:
    """Return an ONNX network without what torch.onnx notes for its own developers."""
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
