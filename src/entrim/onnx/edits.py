"""Replace constants of a graph, also those that are computed from others or shared by nodes."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from entrim.onnx.folding import Folded
from entrim.onnx.source import require_packages

Targets = dict[tuple[int, int], np.ndarray]
"""(node, input) -> the constant that the node must read there."""
_FOLLOWING = ("Shape", "Size")
"""Operators that follow a constant of another shape without an edit."""


def edit_constants(proto: Any, folded: Folded, target: Targets) -> None:
    """Edit the constants of `proto` so that every node reads its target.

    A constant that is computed, such as a transposed weight, is traced back to its source. If
    nodes share a constant and want different values, or if it cannot be traced back, the others
    read a new initializer.
    """
    edit = _Edit(proto, folded)
    for (node, number), array in target.items():
        edit.want(node, number, array)
    while edit.pending:
        name = max(edit.pending, key=edit.order)
        edit.resolve(name, edit.pending.pop(name))


class _Edit:
    def __init__(self, proto: Any, folded: Folded) -> None:
        self.graph, self.folded = proto.graph, folded
        self.pending: dict[str, Targets] = {}
        self.producers = {
            name: number for number, node in enumerate(self.graph.node) for name in node.output
        }
        self.initializers = {tensor.name: tensor for tensor in self.graph.initializer}
        self.outputs = {value.name for value in self.graph.output}
        self.names = set(self.producers) | set(self.initializers)
        self.names |= {value.name for value in self.graph.input}

    def order(self, name: str) -> int:
        """Return the position of a constant; computed ones come after their sources."""
        return self.producers.get(name, -1)

    def want(self, node: int, number: int, array: np.ndarray) -> None:
        """Set the target at an input of a node."""
        name = self.graph.node[node].input[number]
        self.pending.setdefault(name, {})[node, number] = array

    def resolve(self, name: str, target: Targets) -> None:
        """Edit a constant in place for the first value, and add initializers for others."""
        groups = _distinct(target)
        others = [user for user in self._users(name) if user not in target]
        if not others and name not in self.outputs and self._replace(name, groups[0][0]):
            groups = groups[1:]
        for array, users in groups:
            self._add(name, array, users)

    def _users(self, name: str) -> list[tuple[int, int]]:
        return [
            (number, k)
            for number, node in enumerate(self.graph.node)
            if node.op_type not in _FOLLOWING
            for k, given in enumerate(node.input)
            if given == name
        ]

    def _replace(self, name: str, array: np.ndarray) -> bool:
        """Replace the value of a constant; False if it is computed in a way without inverse."""
        onnx, _ = require_packages()
        if name in self.initializers:
            tensor = self.initializers[name]
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, name))
            self._declare(name, array.shape)
            return True
        number = self.producers[name]
        node = self.graph.node[number]
        if node.op_type == "Constant":
            return _replace_constant(onnx, node, array)
        sources = [self.folded.arrays.get(given) for given in node.input]
        before = invert(
            node.op_type, self.folded.attributes[number], sources, self.folded.arrays[name], array
        )
        if before is None:
            return False
        for k, value in before.items():
            old = self.folded.arrays[node.input[k]]
            if value.shape != old.shape or not np.array_equal(value, old):
                self.want(number, k, value.astype(old.dtype))
        return True

    def _declare(self, name: str, shape: Sequence[int]) -> None:
        """Update the shape of an initializer that is also listed as an input."""
        for value in self.graph.input:
            if value.name == name:
                for dim, size in zip(value.type.tensor_type.shape.dim, shape, strict=True):
                    dim.dim_value = size

    def _add(self, name: str, array: np.ndarray, users: Sequence[tuple[int, int]]) -> None:
        """Add an initializer, and let `users` read it."""
        onnx, _ = require_packages()
        new = next(
            n
            for n in (f"{name}_pruned{k or ''}" for k in range(len(self.names) + 1))
            if n not in self.names
        )
        self.names.add(new)
        self.graph.initializer.append(onnx.numpy_helper.from_array(array, new))
        for node, number in users:
            self.graph.node[node].input[number] = new


def _distinct(target: Targets) -> list[tuple[np.ndarray, list[tuple[int, int]]]]:
    """Return the different values, each with the inputs that want it."""
    groups: list[tuple[np.ndarray, list[tuple[int, int]]]] = []
    for user, array in target.items():
        for value, users in groups:
            if value.shape == array.shape and np.array_equal(value, array):
                users.append(user)
                break
        else:
            groups.append((array, [user]))
    return groups


def _replace_constant(onnx: Any, node: Any, array: np.ndarray) -> bool:
    """Replace the value of a Constant node, in its attribute."""
    for attribute in node.attribute:
        if attribute.name == "value":
            attribute.t.CopyFrom(onnx.numpy_helper.from_array(array, attribute.t.name))
        elif attribute.name == "value_ints":
            attribute.ints[:] = array.tolist()
        elif attribute.name == "value_floats":
            attribute.floats[:] = array.tolist()
        elif attribute.name == "value_int":
            attribute.i = int(array)
        else:
            return False
    return True


def invert(
    op_type: str,
    attributes: dict[str, Any],
    inputs: Sequence[np.ndarray | None],
    output: np.ndarray,
    target: np.ndarray,
) -> dict[int, np.ndarray] | None:
    """Return the inputs with which an operator on constants computes `target`, None if unknown."""
    if op_type in ("Identity", "Cast", "CastLike"):
        return {0: target}
    if op_type == "Transpose":
        perm = attributes.get("perm", range(target.ndim)[::-1])
        return {0: target.transpose(np.argsort(list(perm)))}
    if op_type not in ("Reshape", "Unsqueeze", "Squeeze", "Flatten") or inputs[0] is None:
        return None
    shape = _reshape_back(inputs[0].shape, output.shape, target.shape)
    if shape is None:
        return None
    found = {0: target.reshape(shape)}
    if op_type == "Reshape" and inputs[1] is not None:
        sizes = zip(inputs[1].tolist(), target.shape, strict=True)
        found[1] = np.array([new if old > 0 else old for old, new in sizes], inputs[1].dtype)
    return found


def _reshape_back(
    source: Sequence[int], output: Sequence[int], target: Sequence[int]
) -> list[int] | None:
    """Return the shape of the source, if a reshape only adds or removes dimensions of size 1."""
    own, other = list(_wide(source)), list(_wide(output))
    if [source[dim] for dim in own] != [output[dim] for dim in other]:
        return None
    shape = list(source)
    for dim, out in zip(own, other, strict=True):
        shape[dim] = target[out]
    return shape


def _wide(shape: Sequence[int]) -> Iterator[int]:
    return (dim for dim, size in enumerate(shape) if size > 1)
