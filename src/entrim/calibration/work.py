"""The cost of a forward pass and of second moments, counted in operations before they run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from torch import Tensor, fx

from entrim.calibration.collect import Pass
from entrim.calibration.consumers import BoundConsumer
from entrim.calibration.executor import Program
from entrim.graph.tracer import arguments_of

ELEMENT, WINDOW = 10, 100
"""Multiplications that take as long as one element of another operation, and as one element in
the window of a pooling, on a CPU."""
DOUBLE = 2
"""Multiplications in single precision that take as long as one in double precision."""
_VIEWS = ("view", "reshape", "flatten", "permute", "transpose", "getitem", "slice", "select")
"""Operations that usually copy nothing."""


@dataclass(frozen=True, slots=True)
class Work:
    """Multiplications of a stage, by what determines their speed."""

    forward: int | float = 0.0
    """In operations of the network; an element of another operation counts `ELEMENT`."""
    double: int | float = 0.0
    """In products and factorizations of matrices in double precision."""

    def __add__(self, other: "Work") -> "Work":
        return Work(self.forward + other.forward, self.double + other.double)

    def __mul__(self, count: int | float) -> "Work":
        return Work(self.forward * count, self.double * count)

    @property
    def total(self) -> int | float:
        """All operations in one unit, for shares of a stage."""
        return self.forward + DOUBLE * self.double


@dataclass(frozen=True)
class PassWork:
    """The operations of one forward pass, by position in the program."""

    task: Pass

    @property
    def program(self) -> Program:
        """The program of the first batch; others have the same operations per image."""
        return self.task.programs[0]

    @cached_property
    def images(self) -> int:
        """The number of images."""
        return sum(self.task.batch_sizes)

    @cached_property
    def _ends(self) -> list[int | float]:
        """Operations of one image before each position."""
        images = self.task.batch_sizes[0]
        each = [_node_operations(node) / images for node in self.program.nodes]
        return list(accumulate(each, initial=0.0))

    def operations(self, start: int, stop: int | None = None) -> int | float:
        """Return the operations of one image from position `start` up to `stop`."""
        return self._ends[len(self.program.nodes) if stop is None else stop] - self._ends[start]

    def values(self, stop: int) -> int:
        """Return the bytes of one image in values before `stop` that are used from there on."""
        total = 0
        for place, node in enumerate(self.program.nodes[:stop]):
            last = max((self.program.place[user] for user in node.users), default=place)
            if last >= stop and node not in self.program.names:
                total += _bytes(node)
        return total // self.task.batch_sizes[0]

    @cached_property
    def largest_value(self) -> int:
        """The bytes of the largest value of one image."""
        named = self.program.names
        sizes = [_bytes(node) for node in self.program.nodes if node not in named]
        return max(sizes, default=0) // self.task.batch_sizes[0]

    def rows(self, reader: BoundConsumer, columns: int | None = None) -> int:
        """Return the number of rows of a layer with this number of columns, by default all."""
        return self.task.n_rows(reader, reader.columns if columns is None else columns)

    def gram(self, reader: BoundConsumer, columns: int | None = None) -> Work:
        """Return the cost of the Gram matrices of a layer with this number of columns."""
        n = reader.columns if columns is None else columns
        geometry, total = reader.geometry, 0.0
        if self.task.keeps_rows(reader, n):
            return Work(forward=ELEMENT * self.task.n_rows(reader, n) * n * geometry.groups)
        for used, every in self.task.positions_per_image(reader, n):
            products = n * n / 2
            if used == every and math.prod(geometry.kernel) > 1 and set(geometry.stride) == {1}:
                shifts = math.prod(2 * size - 1 for size in geometry.kernel)
                products = (n / math.prod(geometry.kernel)) ** 2 * (shifts + 1) / 2
            total += used * products * geometry.groups
        return Work(double=total * self.images)


def _node_operations(node: fx.Node) -> int | float:
    """Return the number of operations of one node, for its whole batch."""
    out, kind = node.meta.get("val"), str(node.target)
    values = out if isinstance(out, Sequence) else [out]
    elements = sum(value.numel() for value in values if isinstance(value, Tensor))
    if node.op != "call_function" or any(f".{view}" in kind for view in _VIEWS):
        return 0.0
    call = arguments_of(node)
    weight, source = call.get("weight"), call.get("input")
    if isinstance(weight, fx.Node) and isinstance(source, fx.Node) and "norm" not in kind:
        shape, moved = weight.meta["val"].shape, elements
        if "transpose" in kind:
            moved = source.meta["val"].numel()
        return moved * math.prod(shape[1:]) + ELEMENT * elements
    if "pool" in kind:
        window = call.get("kernel_size", 1)
        area = math.prod(window) if isinstance(window, Sequence) else int(str(window)) ** 2
        return WINDOW * elements * area
    return ELEMENT * elements + _inner_products(node, elements)


def _inner_products(node: fx.Node, elements: int) -> int | float:
    """Return the multiplications of a matrix product or an attention without weights."""
    sources = [n.meta.get("val") for n in node.all_input_nodes]
    shapes = [value.shape for value in sources if isinstance(value, Tensor) and value.dim() > 1]
    if any(name in str(node.target) for name in ("matmul", ".mm", "bmm")) and shapes:
        return float(elements * shapes[0][-1])
    if "attention" in str(node.target) and len(shapes) > 1:
        return 2.0 * elements * shapes[1][-2]
    return 0.0


def _bytes(node: fx.Node) -> int:
    value = node.meta.get("val")
    values = value if isinstance(value, Sequence) else [value]
    return sum(v.numel() * v.element_size() for v in values if isinstance(v, Tensor))
