"""Run networks in PyTorch or onnxruntime, and compare their outputs."""

import logging
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from entrim.callbacks import ProgressEvent
from entrim.errors import EntrimError, ExportError, MissingExtraError, SaveError
from entrim.graph.eager import call

INPUT = "images"
"""Name of the input of an ONNX file."""
BATCH = 64
Answer = Callable[[Tensor], Sequence[Tensor]]
"""A network as a function of a batch."""
Report = Callable[[ProgressEvent], None]
_LOUD = ("torch.onnx", "torch.export", "")
"""Loggers with messages for developers of exporters; "" is the root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """The difference between the outputs of two networks."""

    images: int
    largest: float
    """Largest absolute difference."""
    relative: float
    """Largest ||y - y'|| / ||y|| of any output."""
    same: int | None
    """Number of images with the same class; None if the outputs are not class scores."""

    @classmethod
    def of(
        cls, found: Sequence[Tensor], expected: Sequence[Tensor], images: int | None = None
    ) -> "Parity":
        """Return the difference of `found` from `expected`, the outputs for `images` images.

        By default, the first dimension of the first output is the images.
        """
        if [tuple(y.shape) for y in found] != [tuple(y.shape) for y in expected] or not expected:
            raise ExportError(
                f"the outputs have shapes {[tuple(y.shape) for y in found]} instead of "
                f"{[tuple(y.shape) for y in expected]}: return tensors with images first"
            )
        pairs = [(a.double(), b.double()) for a, b in zip(found, expected, strict=True)]
        scores, others = pairs[0]
        images = len(scores) if images is None else images
        rows = scores.dim() == 2 and scores.shape[0] == images and scores.shape[1] > 1
        return cls(
            images=images,
            largest=_worst([(a - b).abs().max() for a, b in pairs]),
            relative=_worst([_relative(a, b) for a, b in pairs]),
            same=int((scores.argmax(1) == others.argmax(1)).sum()) if rows else None,
        )

    def __str__(self) -> str:
        same = "" if self.same is None else f", same class for {self.same}"
        return (
            f"relative error {self.relative:.2g}, largest difference {self.largest:.2g}{same} of "
            f"{self.images} images"
        )


def answer_of(model: nn.Module) -> Answer:
    """Return the network as a function of a batch that returns all output tensors."""

    @torch.no_grad()
    def answer(batch: Tensor) -> list[Tensor]:
        leaves = pytree.tree_leaves(call(model, batch))
        return [leaf.cpu() for leaf in leaves if isinstance(leaf, Tensor)]

    return answer


def in_onnxruntime(content: bytes) -> Answer:
    """Return an ONNX network as a function of a batch."""
    onnx = runtime()
    options = onnx.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    with name_errors("onnxruntime cannot read the exported network"):
        session = onnx.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def answer(batch: Tensor) -> list[Tensor]:
        return [torch.from_numpy(y) for y in session.run(None, {INPUT: batch.cpu().numpy()})]

    return answer


def outputs(answer: Answer, x: Tensor, report: Report | None = None) -> tuple[Tensor, ...]:
    """Return the outputs for all images, in batches of different sizes."""
    sizes, parts = [], []
    for batch in batches(x, "compare", report):
        sizes.append(len(batch))
        parts.append([torch.atleast_1d(y) for y in answer(batch)])
    return tuple(torch.cat(part, _image_axis(part, sizes)) for part in zip(*parts, strict=True))


def _image_axis(parts: Sequence[Tensor], sizes: Sequence[int]) -> int:
    """Return the first axis with one entry per image in every batch, 0 if there is none."""
    axes = range(min(part.dim() for part in parts))
    fitting = [axis for axis in axes if [part.shape[axis] for part in parts] == list(sizes)]
    return fitting[0] if fitting else 0


def batches(x: Tensor, stage: str, report: Report | None) -> Iterator[Tensor]:
    """Yield the first image alone, then batches of the others; report each after its use."""
    parts = [part for part in (x[:1], *x[1:].split(BATCH)) if len(part)]
    for done, part in enumerate(parts, 1):
        yield part
        report_step(report, stage, done, len(parts))


def runtime() -> Any:
    """Return onnxruntime; torch.onnx requires onnx and onnxscript."""
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        packages = "onnx onnxscript onnxruntime"
        raise MissingExtraError("exporting to ONNX", packages, "export") from error
    return onnxruntime


@contextmanager
def silence_exporter() -> Iterator[None]:
    """Suppress warnings and log messages of exporters."""
    loggers = [logging.getLogger(name) for name in _LOUD]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def name_errors(what: str) -> Iterator[None]:
    """Convert errors of exporters to an ExportError or SaveError."""
    try:
        yield
    except EntrimError:
        raise
    except OSError as error:
        raise SaveError(
            f"{what}, because {tempfile.gettempdir()} cannot be written ({error.strerror}): free "
            "some space there, or set TMPDIR to another folder"
        ) from error
    except Exception as error:
        raise ExportError(
            f"{what} ({_reason(error)}): use only operations that the format supports, in float32"
        ) from error


def report_step(report: Report | None, stage: str, done: int, total: int) -> None:
    """Report one step, if there is a `report` function."""
    if report is not None:
        report(ProgressEvent(stage=stage, name="", done=done, total=total))


def _reason(error: BaseException) -> str:
    """Return the first line of the root cause, without terminal colors."""
    while error.__cause__ is not None:
        error = error.__cause__
    first = f"{type(error).__name__}: {error}".partition("\n")[0]
    return re.sub(r"\x1b\[[0-9;]*m", "", first)


def _relative(found: Tensor, expected: Tensor) -> Tensor:
    """Return ||found - expected|| / ||expected||; 0 for equal tensors."""
    apart, size = (found - expected).norm(), expected.norm()
    return apart if not apart else apart / size


def _worst(values: Sequence[Tensor]) -> float:
    """Return the largest value; NaN if any is NaN."""
    return float(torch.stack(list(values)).max())
