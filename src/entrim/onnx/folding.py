"""Fold the constants of a graph for reading; the file is not changed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from entrim.errors import EntrimError, OnnxError
from entrim.onnx.sizes import SIZE_OPERATORS, Literal, Size, check_elements, literals
from entrim.onnx.source import describe, first_line, opset_of, require_packages

_MOVES = ("Identity", "Squeeze", "Unsqueeze", "Gather", "Slice", "Concat", "Cast", "Reshape")
"""Operators that move whole numbers, which keep their origin."""
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
    computed: int = 0
    """Number of elements of all computed constants."""

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
    try:
        if node.op_type in _MOVES and _small_sizes(inputs):
            given = [found.size(n, number, k) if n else None for k, n in enumerate(node.input)]
            size = SIZE_OPERATORS[node.op_type](given, attributes)
            found.sizes[node.output[0]] = size
            whole = np.array(size.tolist(), dtype=np.int64)
            found.arrays[node.output[0]] = whole.reshape(size.shape)
            return
        model = _one_node(onnx, proto, node, inputs)
        found.computed += _result_elements(onnx, model, inputs)
        check_elements(found.computed, describe(node))
        for name, value in zip(node.output, _evaluate(onnx, model, inputs), strict=False):
            found.arrays[name] = np.asarray(value)
    except EntrimError:
        raise
    except Exception as error:
        raise OnnxError(
            f"{describe(node)} cannot be computed from its constants ({first_line(error)}): check "
            "the file with onnx.checker.check_model, or export it again"
        ) from error


def _small_sizes(inputs: Sequence[np.ndarray | None]) -> bool:
    given = [array for array in inputs if array is not None]
    return bool(given) and all(
        array.dtype.kind in "iu" and array.ndim <= 1 and array.size <= MAX_SIZES for array in given
    )


def _one_node(onnx: Any, proto: Any, node: Any, inputs: Sequence[Any]) -> Any:
    """Return a model of one node, whose inputs have the types and shapes of the constants."""
    types = {
        name: onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in zip(node.input, inputs, strict=True)
        if name
    }
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = onnx.helper.make_graph([node], "constants", list(types.values()), outputs)
    standard = onnx.helper.make_opsetid("", opset_of(proto))
    return onnx.helper.make_model(graph, opset_imports=[standard])


def _result_elements(onnx: Any, model: Any, inputs: Sequence[Any]) -> int:
    """Return the number of elements that a node will compute, before memory is allocated.

    Sizes that depend on the values of large inputs count as 1; such operators only select.
    """
    node, opset = model.graph.node[0], model.opset_import[0]
    small = {
        name: onnx.numpy_helper.from_array(array)
        for name, array in zip(node.input, inputs, strict=True)
        if name and array.size <= MAX_SIZES
    }
    types = {value.name: value.type for value in model.graph.input}
    schema = onnx.defs.get_schema(node.op_type, opset.version, "")
    found = onnx.shape_inference.infer_node_outputs(
        schema, node, types, small, opset_imports=[opset]
    )
    shapes = (value.tensor_type.shape.dim for value in found.values())
    return sum(math.prod(d.dim_value if d.dim_value else 1 for d in dims) for dims in shapes)


def _evaluate(onnx: Any, model: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    """Compute one node with the reference implementation of ONNX, in NumPy."""
    names = model.graph.node[0].input
    values = {name: array for name, array in zip(names, inputs, strict=True) if name}
    return onnx.reference.ReferenceEvaluator(model).run(None, values)
