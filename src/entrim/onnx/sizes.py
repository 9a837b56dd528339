"""Operators on sizes: small arrays that are computed from shapes and constants, not from images.

A size is a NumPy array of Python numbers, so that networks can be traced: torch.export sees sizes
as numbers. Numbers of the file are `Literal`s. They keep their origin while they are moved, so that
the writer finds the constant that contains a channel count.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from entrim.errors import OnnxError

MAX_ELEMENTS = 2**26
"""Maximum number of elements of a computed constant."""
Size = np.ndarray
Place = tuple[int, int, int]
"""A number in the file: node, input of the node, and position in the constant it reads."""


class Literal(int):
    """A whole number that is written in the file, as read by a node.

    Attributes
    ----------
    place : tuple of int
        The node that reads the constant, its input, and the position of the number. For an
        attribute, the input is -1.
    """

    place: Place

    def __new__(cls, value: int, place: Place) -> "Literal":
        """Return the number `value` at `place`."""
        made = super().__new__(cls, value)
        made.place = place
        return made

    def __deepcopy__(self, memo: Any) -> "Literal":
        return self


def literals(array: np.ndarray, node: int, number: int) -> Size:
    """Return a constant as read by input `number` of a node; whole numbers become literals."""
    found = np.empty(array.size, dtype=object)
    whole = array.dtype.kind in "iu"
    for place, value in enumerate(array.reshape(-1).tolist()):
        found[place] = Literal(value, (node, number, place)) if whole else value
    return found.reshape(array.shape)


def numbers(size: Size) -> list[Any]:
    """Return the numbers of a size, literals as plain ones."""
    return [plain(value) for value in size.reshape(-1)]


def plain(value: Any) -> Any:
    """Return a literal as a plain number; others are unchanged, symbols included."""
    return int(value) if isinstance(value, Literal) else value


def as_size(values: Any) -> Size:
    """Return an array of Python numbers."""
    if isinstance(values, np.ndarray) and values.dtype == object:
        return values
    if isinstance(values, np.ndarray):
        found = np.empty(values.size, dtype=object)
        found[:] = values.reshape(-1).tolist()
        return found.reshape(values.shape)
    found = np.empty(len(values), dtype=object)
    found[:] = list(values)
    return found


def check_elements(count: int, what: str) -> None:
    """Refuse a computed constant that is too large for memory."""
    if count > MAX_ELEMENTS:
        raise OnnxError(
            f"{what} computes a constant of {count:,} elements: export the network again for "
            "smaller inputs"
        )


Attributes = Mapping[str, Any]
SizeOperator = Callable[[Sequence[Any], Attributes], Any]


def _axes(given: Sequence[Any], attributes: Attributes) -> list[int]:
    if len(given) > 1 and given[1] is not None:
        return [int(axis) for axis in given[1].reshape(-1)]
    return list(attributes.get("axes", ()))


def _squeeze(given: Sequence[Any], attributes: Attributes) -> Size:
    axes = _axes(given, attributes)
    return np.squeeze(given[0], tuple(axes) if axes else None)


def _unsqueeze(given: Sequence[Any], attributes: Attributes) -> Size:
    return np.expand_dims(given[0], tuple(_axes(given, attributes)))


def _gather(given: Sequence[Any], attributes: Attributes) -> Size:
    picked = np.take(given[0], given[1].astype(np.int64), attributes.get("axis", 0))
    return _array(picked)


def _slice(given: Sequence[Any], attributes: Attributes) -> Size:
    starts, ends, axes, steps = slice_arguments(given, attributes, given[0].ndim)
    index: list[slice] = [slice(None)] * given[0].ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        index[axis] = slice(int(start), int(end), int(step))
    return given[0][tuple(index)]


def slice_arguments(
    given: Sequence[Any], attributes: Attributes, rank: int
) -> tuple[list[Any], list[Any], list[int], list[Any]]:
    """Return starts, ends, axes and steps of a Slice, from inputs or attributes."""
    if len(given) > 1:
        starts, ends, axes, steps = (
            None if value is None else list(value.reshape(-1))
            for value in (*given[1:], None, None, None)[:4]
        )
    else:
        starts, ends = list(attributes["starts"]), list(attributes["ends"])
        axes, steps = attributes.get("axes"), None
    assert starts is not None
    assert ends is not None
    found = [int(axis) % rank for axis in (range(len(starts)) if axes is None else axes)]
    return starts, ends, found, [1] * len(starts) if steps is None else steps


def _cast(given: Sequence[Any], attributes: Attributes) -> Size:
    kind = attributes.get("to")
    convert: Any = {1: float, 10: float, 11: float, 16: float, 9: bool}.get(kind or 7)
    if convert is None:
        convert = _to_int
    return _array(np.frompyfunc(convert, 1, 1)(given[0]))


def _to_int(value: Any) -> Any:
    return int(value) if isinstance(value, float | bool) else value


def _divide(a: Any, b: Any) -> Any:
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    return a // b if (a >= 0) == (b > 0) else -(-a // b)


def _reshape(given: Sequence[Any], attributes: Attributes) -> Size:
    shape = [int(size) for size in given[1].reshape(-1)]
    shape = [given[0].shape[k] if size == 0 else size for k, size in enumerate(shape)]
    return given[0].reshape(shape)


def _fill(given: Sequence[Any], attributes: Attributes) -> Size:
    shape = [int(size) for size in given[0].reshape(-1)]
    check_elements(math.prod(shape), "ConstantOfShape")
    value = attributes.get("value")
    return np.full(shape, 0.0 if value is None else value.reshape(-1)[0])


def _expand(given: Sequence[Any], attributes: Attributes) -> Size:
    shape = np.broadcast_shapes(given[0].shape, tuple(int(s) for s in given[1].reshape(-1)))
    check_elements(math.prod(shape), "Expand")
    return np.broadcast_to(given[0], shape)


def _tile(given: Sequence[Any], attributes: Attributes) -> Size:
    repeats = [int(count) for count in given[1].reshape(-1)]
    check_elements(given[0].size * math.prod(repeats), "Tile")
    return np.tile(given[0], repeats)


def _range(given: Sequence[Any], attributes: Attributes) -> Size:
    first, last, step = (value.reshape(-1)[0] for value in given)
    check_elements(math.ceil((last - first) / step), "Range")
    return as_size(np.arange(plain(first), plain(last), plain(step)))


def _reduce(function: Callable[..., Any]) -> SizeOperator:
    def reduce(given: Sequence[Any], attributes: Attributes) -> Size:
        axes, keep = _axes(given, attributes), bool(attributes.get("keepdims", 1))
        return _array(function(given[0], axis=tuple(axes) if axes else None, keepdims=keep))

    return reduce


def _elementwise(function: Callable[..., Any], count: int = 2) -> SizeOperator:
    made = np.frompyfunc(function, count, 1)

    def apply(given: Sequence[Any], attributes: Attributes) -> Size:
        return _array(made(*given))

    return apply


def _array(value: Any) -> Size:
    """Return the result of a NumPy function as an array; scalars have no dimensions."""
    if isinstance(value, np.ndarray):
        return value
    found = np.empty((), dtype=object)
    found[()] = value
    return found


SIZE_OPERATORS: dict[str, SizeOperator] = {
    "Identity": lambda given, _: given[0],
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": lambda given, attributes: np.concatenate(
        [np.atleast_1d(value) for value in given], attributes["axis"]
    ),
    "Cast": _cast,
    "CastLike": lambda given, _: given[0],
    "Reshape": _reshape,
    "Flatten": lambda given, _: given[0].reshape(1, -1),
    "Transpose": lambda given, attributes: given[0].transpose(attributes.get("perm")),
    "ConstantOfShape": _fill,
    "Expand": _expand,
    "Range": _range,
    "Tile": _tile,
    "Shape": lambda given, _: as_size(given[0].shape),
    "Size": lambda given, _: _array(given[0].size),
    "Add": _elementwise(operator.add),
    "Sub": _elementwise(operator.sub),
    "Mul": _elementwise(operator.mul),
    "Div": _elementwise(_divide),
    "Mod": _elementwise(operator.mod),
    "Max": _elementwise(max),
    "Min": _elementwise(min),
    "Pow": _elementwise(operator.pow),
    "Equal": _elementwise(operator.eq),
    "Greater": _elementwise(operator.gt),
    "GreaterOrEqual": _elementwise(operator.ge),
    "Less": _elementwise(operator.lt),
    "LessOrEqual": _elementwise(operator.le),
    "And": _elementwise(lambda a, b: bool(a and b)),
    "Or": _elementwise(lambda a, b: bool(a or b)),
    "Not": _elementwise(operator.not_, 1),
    "Where": _elementwise(lambda c, a, b: a if c else b, 3),
    "Floor": _elementwise(math.floor, 1),
    "Ceil": _elementwise(math.ceil, 1),
    "Round": _elementwise(round, 1),
    "Sqrt": _elementwise(math.sqrt, 1),
    "Neg": _elementwise(operator.neg, 1),
    "Abs": _elementwise(abs, 1),
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
}
"""Operator -> function of its inputs and attributes, for inputs that do not depend on images."""
