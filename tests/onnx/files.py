"""ONNX files for the tests."""

import io
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from entrim.graph.eager import ExampleInputs, arguments


def export(model: nn.Module, inputs: ExampleInputs, file: Path, **options: Any) -> Path:
    """Export a network with its BatchNorms."""
    args, kwargs = arguments(inputs)
    if args:
        options = {"input_names": ["images"], "output_names": ["scores"], **options}
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.eval(),
            args,
            str(file),
            kwargs=kwargs,
            dynamo=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
            **options,
        )
    return file


def graph(
    nodes: list[Any],
    constants: dict[str, np.ndarray],
    *,
    shape: tuple[Any, ...] = ("n", 3, 8, 8),
    opset: int = 17,
) -> Any:
    """Return a model with one input `x` and one output `y`."""
    made = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def kernel(outputs: int, inputs: int, size: int = 3) -> np.ndarray:
    values = np.random.default_rng(outputs * 100 + inputs).standard_normal(
        (outputs, inputs, size, size)
    )
    return values.astype(np.float32)


def write(model: Any, file: Path) -> Path:
    onnx.save(model, str(file))
    return file
