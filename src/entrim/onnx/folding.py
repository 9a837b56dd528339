"""Fold the constants of a graph for reading; the file is not changed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from entrim.errors import EntrimError, OnnxError
from entrim.onnx.sizes import SIZE_OPERATORS, Literal, Size, check_elements, literals
from entrim.onnx.source import describe, opset_of, require_packages

_MOVES = ("Identity", "Squeeze", "Unsqueeze", "Gather", "Slice", "Concat", "Cast", "Reshape")
_GROWS = ("ConstantOfShape", "Expand", "Range", "Shape", "Size")
"""Operators that are computed here, so that the size of the result is checked first."""
_RANDOM = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli")
_RANDOM += ("Multinomial",)
_COUNTS = {"split": -1, "starts": -2, "ends": -3}
"""Attributes of older operators that contain sizes, and the number that stands for their input."""
MAX_SIZES = 64
"""Maximum number of elements of a constant whose numbers keep their origin."""


@dataclass(slots=True, eq=False)
class Folded:
    """All constants of a graph by name."""

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    attributes: list[dict[str, Any]] = field(default_factory=list)
    """Attributes of every node."""
    sizes: dict[str, Size] = field(default_factory=dict)
    """Computed sizes whose numbers have an origin."""
    roots: dict[str, str] = field(default_factory=dict)
    """Constant -> the constant that it copies."""

    def copied_from(self, name: str) -> str:
        """Return the constant of which `name` is a copy."""
        return self.roots.get(name, name)

    def size(self, name: str, node: int, number: int) -> Size:
        """Return a constant as read by input `number` of a node."""
        if name in self.sizes:
            return self.sizes[name]
        return literals(self.arrays[name], node, number)


def fold_constants(proto: Any) -> Folded:
    """Return all constants: initializers, Constant nodes, and what is computed from them."""
    onnx, _ = require_packages()
    found = Folded()
    for tensor in proto.graph.initializer:
        found.arrays[tensor.name] = _array(onnx, tensor)
    for number, node in enumerate(proto.graph.node):
        attributes = _attributes(onnx, node, number)
        found.attributes.append(attributes)
        if node.op_type == "Constant":
            found.arrays[node.output[0]] = _constant(node, attributes)
        elif node.op_type not in _RANDOM and all(
            not name or name in found.arrays for name in node.input
        ):
            _fold(onnx, proto, node, number, found)
    return found


def _array(onnx: Any, tensor: Any) -> np.ndarray:
    try:
        return onnx.numpy_helper.to_array(tensor)
    except Exception as error:
        raise OnnxError(
            f"the tensor {tensor.name!r} cannot be read ({error}): export the file again"
        ) from error


def _attributes(onnx: Any, node: Any, number: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if attribute.type == onnx.AttributeProto.TENSOR:
            value = _array(onnx, value)
        elif isinstance(value, bytes):
            value = value.decode(errors="replace")
        elif attribute.name in _COUNTS and node.op_type in ("Split", "Slice"):
            place = _COUNTS[attribute.name]
            value = [Literal(v, (number, place, k)) for k, v in enumerate(value)]
        found[attribute.name] = value
    return found


def _constant(node: Any, attributes: Mapping[str, Any]) -> np.ndarray:
    for name, value in attributes.items():
        if name == "value":
            return value
        if name in ("value_int", "value_ints"):
            return np.array(value, dtype=np.int64)
        if name in ("value_float", "value_floats"):
            return np.array(value, dtype=np.float32)
    raise OnnxError(f"{describe(node)} contains no numbers: export the network without it")


def _fold(onnx: Any, proto: Any, node: Any, number: int, found: Folded) -> None:
    """Compute the outputs of a node whose inputs are constant."""
    inputs = [found.arrays.get(name) for name in node.input]
    attributes = found.attributes[number]
    if node.op_type == "Identity" and node.input[0]:
        found.roots[node.output[0]] = found.copied_from(node.input[0])
    sizes = _small_sizes(node, inputs)
    try:
        if sizes and node.op_type in _MOVES:
            given = [found.size(n, number, k) if n else None for k, n in enumerate(node.input)]
            size = SIZE_OPERATORS[node.op_type](given, attributes)
            found.sizes[node.output[0]] = size
            found.arrays[node.output[0]] = np.array(size.tolist(), dtype=np.int64).reshape(
                size.shape
            )
            return
        if node.op_type in _GROWS:
            result = SIZE_OPERATORS[node.op_type](inputs, attributes)
            found.arrays[node.output[0]] = _narrow(result)
            return
        if node.op_type == "Tile" and inputs[0] is not None and inputs[1] is not None:
            check_elements(inputs[0].size * math.prod(inputs[1].tolist()), describe(node))
        for name, value in zip(node.output, _evaluate(onnx, proto, node, inputs), strict=False):
            found.arrays[name] = np.asarray(value)
    except EntrimError:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise OnnxError(
            f"{describe(node)} cannot be computed from its constants ({reason}): check the file "
            "with onnx.checker.check_model, or export it again"
        ) from error


def _small_sizes(node: Any, inputs: Sequence[np.ndarray | None]) -> bool:
    given = [array for array in inputs if array is not None]
    return bool(given) and all(
        array.dtype.kind in "iu" and array.ndim <= 1 and array.size <= MAX_SIZES for array in given
    )


def _narrow(result: Any) -> np.ndarray:
    """Return computed sizes as an array of whole numbers."""
    array = np.asarray(result)
    return array.astype(np.int64) if array.dtype == object else array


def _evaluate(onnx: Any, proto: Any, node: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    """Compute one node with the reference implementation of ONNX, in NumPy."""
    names = [name for name in node.input if name]
    values = {name: array for name, array in zip(node.input, inputs, strict=True) if name}
    make = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node],
        "constants",
        [
            make(name, onnx.helper.np_dtype_to_tensor_dtype(values[name].dtype), None)
            for name in dict.fromkeys(names)
        ],
        [onnx.ValueInfoProto(name=name) for name in node.output if name],
    )
    standard = onnx.helper.make_opsetid("", opset_of(proto))
    model = onnx.helper.make_model(graph, opset_imports=[standard])
    return onnx.reference.ReferenceEvaluator(model).run(None, values)
