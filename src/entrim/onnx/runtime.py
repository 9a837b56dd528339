"""Run ONNX files in onnxruntime, and compare the outputs with those of a module."""

import itertools
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from entrim.errors import OnnxError
from entrim.onnx.source import first_line, require_packages

_SPATIAL = (64, 32, 48, 96, 128, 160, 224, 256, 320, 512, 640)
"""Sizes that are tried where the file leaves a size open."""
_TYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(uint8)": np.uint8,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}
TOLERANCE, HALF_TOLERANCE = 1e-4, 1e-2
"""Maximum relative difference from onnxruntime, and that of networks in half precision."""
SMALL = 1e-2
MAX_INPUT = 2**28
"""Maximum number of elements of an example input."""
MAX_MEMORY = 4 * 2**30
"""Maximum number of bytes that onnxruntime allocates for weights and activations."""


@cache
def _limit_memory() -> None:
    """Register an allocator with a limit, for the sessions that ask for it."""
    _, ort = require_packages()
    memory = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    limits = ort.OrtArenaCfg({"max_mem": MAX_MEMORY, "arena_extend_strategy": 1})
    ort.create_and_register_allocator(memory, limits)


class Session:
    """A file in onnxruntime, on the CPU, with limited memory.

    Graphs are not optimized: constants would be computed before their size is known.
    """

    def __init__(self, content: bytes, what: str) -> None:
        _, onnxruntime = require_packages()
        _limit_memory()
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.use_env_allocators", "1")
        options.log_severity_level = 4
        options.intra_op_num_threads = torch.get_num_threads()
        options.inter_op_num_threads = 1
        try:
            self._session = onnxruntime.InferenceSession(
                content, options, providers=["CPUExecutionProvider"], enable_fallback=False
            )
        except Exception as error:
            raise OnnxError(
                f"onnxruntime cannot read {what} ({first_line(error)}): check it with "
                "onnx.checker.check_model, or export it again"
            ) from error
        self.inputs = tuple(value.name for value in self._session.get_inputs())
        self.types = tuple(value.type for value in self._session.get_inputs())

    def run(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the outputs for some inputs."""
        given = {name: x.numpy() for name, x in zip(self.inputs, inputs, strict=True)}
        return tuple(torch.from_numpy(np.array(y)) for y in self._session.run(None, given))


def difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest ||y - y'|| / ||y'|| of any output; infinite for other shapes.

    Equal infinities, and two values that are not numbers, are no difference.

    Elements below `SMALL` in the root mean square are compared absolutely: onnxruntime approximates
    sigmoid and tanh to about 1e-7, which is more than rounding for probabilities close to 0.
    """
    if [tuple(y.shape) for y in found] != [tuple(y.shape) for y in expected]:
        return float("inf")
    errors = [0.0]
    for y, other in zip(found, expected, strict=True):
        if not other.numel():
            continue
        a, b = y.double(), other.double()
        same = (a == b) | (a.isnan() & b.isnan())
        size = torch.where(b.isfinite(), b, 0.0)
        norm = max(float(torch.linalg.vector_norm(size)), SMALL * b.numel() ** 0.5)
        errors.append(float(torch.linalg.vector_norm(torch.where(same, 0.0, a - b))) / norm)
    return max(errors, key=lambda error: (error != error, error))


def is_equal(error: float, inputs: Sequence[Tensor]) -> bool:
    """Whether a difference is only rounding in the precision of the network."""
    return error <= (HALF_TOLERANCE if inputs[0].dtype == torch.float16 else TOLERANCE)


def example_inputs(
    session: Session, graph: Any, shape: Sequence[int] | None
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return random inputs with which the file runs, and its outputs."""
    stored = {tensor.name for tensor in graph.initializer}
    given = [value for value in graph.input if value.name not in stored]
    if not given:
        raise OnnxError("the file has no input: export the network with its input")
    reason = ""
    for shapes in _shapes(given, shape):
        inputs = random_inputs(shapes, session.types)
        try:
            return inputs, session.run(inputs)
        except Exception as error:
            reason = reason or first_line(error)
    remedy = "pass input_shape=" if shape is None else "pass another input_shape"
    raise OnnxError(f"the network does not run on random inputs ({reason}): {remedy}")


def _shapes(given: Sequence[Any], shape: Sequence[int] | None) -> Iterator[list[list[int]]]:
    """Yield possible shapes of all inputs; fixed sizes are those of the file."""
    if shape is not None:
        if len(given) != 1:
            raise OnnxError(f"input_shape needs a file with one input, this one has {len(given)}")
        yield [list(shape)]
        return
    declared = []
    for value in given:
        dims = [d.dim_value for d in value.type.tensor_type.shape.dim]
        declared.append([size if size > 0 else None for size in dims])
    for spatial, batch, channels in itertools.product(_SPATIAL, (2, 1), (3, 1)):
        default = {0: batch, 1: channels}
        shapes = [
            [
                size or (spatial if dim and channels_last(dims) else default.get(dim, spatial))
                for dim, size in enumerate(dims)
            ]
            for dims in declared
        ]
        yield shapes
        if all(size is not None for dims in declared for size in dims):
            return


def channels_last(dims: Sequence[int | None]) -> bool:
    """Whether an image has its channels in the last dimension, as in TensorFlow."""
    return len(dims) == 4 and dims[3] in (1, 3, 4) and dims[1] not in (1, 3, 4)


def random_inputs(shapes: Sequence[Sequence[int]], types: Sequence[str]) -> tuple[Tensor, ...]:
    """Return random inputs of these shapes and types, always the same ones."""
    return tuple(_random(shape, dtype) for shape, dtype in zip(shapes, types, strict=True))


def _random(shape: Sequence[int], dtype: str) -> Tensor:
    if dtype not in _TYPES:
        raise OnnxError(f"an input has the type {dtype}: export the network with float inputs")
    if int(np.prod(shape, dtype=object)) > MAX_INPUT:
        raise OnnxError(f"the input has the shape {list(shape)}: pass a smaller input_shape")
    generator = np.random.default_rng(0)
    if np.dtype(_TYPES[dtype]).kind in "iu":
        return torch.from_numpy(generator.integers(0, 256, shape).astype(_TYPES[dtype]))
    return torch.from_numpy(generator.standard_normal(shape).astype(_TYPES[dtype]))
