"""Execute an exported network on several batches, one operation at a time."""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export._tree_utils import reorder_kwargs
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from entrim.calibration.tensor_store import TensorStore
from entrim.errors import TraceError
from entrim.graph.eager import ExampleInputs, arguments, copy_without_hooks, samples
from entrim.graph.restricted import RESTRICTED
from entrim.graph.tracer import export_program, named_tensors, placeholders


@dataclass(frozen=True, slots=True)
class Program:
    """The operations of one network for inputs of one shape, without side effects."""

    nodes: tuple[fx.Node, ...]
    """All nodes in the order of execution, including inputs and outputs."""
    place: Mapping[fx.Node, int]
    """Position of every node in this order."""
    names: Mapping[fx.Node, str]
    """Placeholder of a parameter or buffer -> its name."""
    inputs: tuple[str, ...]
    """Placeholders of the inputs of the network, in the order of their leaves."""
    in_spec: Any
    """The tree of positional and keyword inputs."""
    outputs: tuple[int, ...]
    """Results of the last node that the network returns; others are modified buffers."""
    constants: Mapping[str, Any]
    """Placeholder of a constant tensor -> the tensor."""
    module: fx.GraphModule
    last_use: tuple[tuple[int, ...], ...]
    """For every operation, the values that are not used after it."""

    @classmethod
    def of(cls, model: nn.Module, example_inputs: ExampleInputs) -> "Program":
        """Return the operations of `model` in eval mode for `example_inputs`."""
        program = export_program(copy_without_hooks(model).eval(), example_inputs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = program.run_decompositions({})  # only functionalizes in-place operations
        _, aliases = named_tensors(model)
        nodes = tuple(program.graph.nodes)
        return cls(
            nodes=nodes,
            place={node: place for place, node in enumerate(nodes)},
            names=placeholders(program, aliases),
            inputs=_user_inputs(program),
            in_spec=program.call_spec.in_spec,
            outputs=_user_outputs(program),
            constants=_constants(program),
            module=program.graph_module,
            last_use=_last_use(nodes),
        )

    def last_place(self, place: int) -> int:
        """Return the position of the last operation that uses the value at `place`."""
        return max((self.place[user] for user in self.nodes[place].users), default=place)

    def live_bytes(self, stop: int) -> int:
        """Return the bytes of the values before `stop` that are used from there on."""
        return sum(
            value_bytes(node)
            for place, node in enumerate(self.nodes[:stop])
            if node not in self.names and self.last_place(place) >= stop
        )

    def same_walk(self, other: "Program") -> bool:
        """Whether both programs have the same operations, except for sizes."""
        own, others = (
            [(node.op, node.target if node.op == "call_function" else "") for node in program.nodes]
            for program in (self, other)
        )
        return own == others


def value_bytes(node: fx.Node) -> int:
    """Return the bytes of the value of a node."""
    value = node.meta.get("val")
    values = value if isinstance(value, Sequence) else [value]
    return sum(v.numel() * v.element_size() for v in values if isinstance(v, Tensor))


def programs(model: nn.Module, batches: Sequence[ExampleInputs]) -> list[Program]:
    """Return the program of every batch: one export for each shape among them."""
    by_shape: dict[Any, Program] = {}
    found = []
    for batch in batches:
        shapes = pytree.tree_map_only(Tensor, lambda t: tuple(t.shape), arguments(batch))
        key = str(shapes)
        if key not in by_shape:
            by_shape[key] = Program.of(model, batch)
        found.append(by_shape[key])
    first = found[0]
    if not all(program.same_walk(first) for program in by_shape.values()):
        raise TraceError(
            "the network executes different operations for batches of different sizes: pass "
            "batches of one size"
        )
    return found


@dataclass(slots=True)
class Execution:
    """The values of a network on several batches, computed operation by operation."""

    programs: Sequence[Program]
    batches: Sequence[ExampleInputs]
    tensors: dict[str, Tensor]
    """Parameters and buffers by name; may be modified during the execution."""
    store: TensorStore
    label: str = ""
    """Distinguishes the values of several executions in one store."""
    base: "Execution | None" = None
    """An execution of the same batches that is ahead; unchanged values are read from it."""
    changed: set[str] = field(default_factory=set)
    """Names of the tensors that differ from those of the base."""
    changed_nodes: set[int] = field(default_factory=set)
    """Positions whose values differ from those of the base."""

    @property
    def program(self) -> Program:
        """The program of the first batch; others differ in sizes only."""
        return self.programs[0]

    @property
    def n_batches(self) -> int:
        """The number of batches."""
        return len(self.programs)

    def batch_size(self, batch: int) -> int:
        """Return the number of images in a batch."""
        return samples(self.batches[batch])

    def first(self, batches: int | None) -> "Execution":
        """Return the execution of the first batches; None for all."""
        return replace(self, programs=self.programs[:batches], batches=self.batches[:batches])

    def by_batch(self, batches: Iterable[int] | None = None) -> Iterator["Execution"]:
        """Yield one execution per batch; its activations stay in memory and are freed after it."""
        for batch in range(self.n_batches) if batches is None else batches:
            own, program = TensorStore(math.inf), self.programs[batch]
            yield replace(self, programs=[program], batches=[self.batches[batch]], store=own)

    def branch(
        self,
        tensors: Mapping[str, Tensor],
        *,
        changed: Iterable[str] = (),
        changed_nodes: Iterable[int] = (),
    ) -> "Execution":
        """Return an execution with other `tensors` that reads unchanged values from this one."""
        return replace(
            self,
            tensors=dict(tensors),
            label=f"{self.label} changed",
            base=self,
            changed=set(changed),
            changed_nodes=set(changed_nodes),
        )

    def run(self, place: int, batch: int, stop: int = 0) -> None:
        """Run the operation at `place` on one batch and keep its value, unless it is known.

        If nothing uses the value from `stop` on, it counts as freed soon.
        """
        if (self.label, place, batch) in self.store.values:
            return
        if self.base is not None:
            if place not in self.changed_nodes and not self.differs(place):
                return
            self.changed_nodes.add(place)
        value = self.compute(place, batch)
        if value is not _NOT_KEPT:
            passing = self.program.last_place(place) < stop
            self.store.put((self.label, place, batch), value, passing=passing)

    def differs(self, place: int) -> bool:
        """Whether an input of the operation at `place` differs from the base."""
        program = self.program
        return any(
            program.place[node] in self.changed_nodes or program.names.get(node) in self.changed
            for node in program.nodes[place].all_input_nodes
        )

    def free(self, place: int, batch: int) -> None:
        """Drop the values of one batch that nothing reads after the operation at `place`."""
        for dead in self.program.last_use[place]:
            self.store.drop((self.label, dead, batch))

    def value(self, node: fx.Node, batch: int) -> Any:
        """Return the value of `node`, a node of the program of `batch`."""
        program = self.programs[batch]
        if node in program.names:
            return self.tensors[program.names[node]]
        place = program.place[node]
        if self.base is not None and place not in self.changed_nodes:
            return self.base.value(node, batch)
        return self.store.get((self.label, place, batch))

    def at(self, place: int, batch: int) -> Any:
        """Return the value at `place`."""
        return self.value(self.programs[batch].nodes[place], batch)

    def ahead(self, place: int, batch: int) -> Any:
        """Return the value at `place`; what was not computed yet is computed but not stored."""
        program = self.programs[batch]
        node = program.nodes[place]
        if node in program.names or self._holds(place, batch):
            return self.value(node, batch)
        args, kwargs = map_arg(
            (node.args, node.kwargs), lambda one: self.ahead(program.place[one], batch)
        )
        operation = _WITHOUT_STRIDES.get(node.target, node.target)
        assert callable(operation)
        return operation(*args, **kwargs)

    def _holds(self, place: int, batch: int) -> bool:
        """Whether the value at `place` is stored."""
        if self.base is not None and place not in self.changed_nodes:
            return self.base._holds(place, batch)
        return (self.label, place, batch) in self.store.values

    def outputs(self, batch: int) -> list[Tensor]:
        """Return the output tensors of the network, after all operations."""
        program = self.programs[batch]
        results = program.nodes[-1].args[0]
        assert isinstance(results, tuple | list)
        returned = [results[number] for number in program.outputs]
        values = map_arg(returned, lambda node: self.value(node, batch))
        return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]

    def finish(self, place: int) -> list[list[Tensor]]:
        """Run all operations from `place` on, and return the outputs of every batch."""
        last = len(self.program.nodes) - 1
        advance([self], place, last)
        found = [self.outputs(batch) for batch in range(self.n_batches)]
        for batch in range(self.n_batches):
            self.free(last, batch)
        return found

    def compute(self, place: int, batch: int) -> Any:
        """Return the result of the operation at `place` without storing it."""
        program = self.programs[batch]
        node = program.nodes[place]
        if node.op == "placeholder":
            if node in program.names or not node.users:  # flags are written into the program
                return _NOT_KEPT
            if node.name in program.constants:
                return program.constants[node.name]
            return _bind_inputs(program, self.batches[batch])[node.name]
        if node.op == "get_attr":
            return getattr(program.module, str(node.target))
        if node.op == "output":
            return _NOT_KEPT
        args, kwargs = map_arg((node.args, node.kwargs), lambda node: self.value(node, batch))
        operation = RESTRICTED.get(node.target) or _WITHOUT_STRIDES.get(node.target, node.target)
        assert callable(operation)
        return operation(*args, **kwargs)


_NOT_KEPT = object()
_WITHOUT_STRIDES: dict[Any, Any] = {torch.ops.aten.view.default: torch.ops.aten.reshape.default}
"""Operations that fail on channels-last tensors -> the same without conditions on strides."""


def advance(
    executions: Sequence[Execution], start: int, stop: int, batches: Iterable[int] | None = None
) -> None:
    """Run the operations from `start` up to `stop` in executions of the same batches.

    One batch after the other, by default all: only values that are read after `stop` are kept for
    all of them, and written to disk beyond the memory limit.
    """
    for batch in range(executions[0].n_batches) if batches is None else batches:
        for place in range(start, stop):
            for execution in executions:
                execution.run(place, batch, stop)
            for execution in executions:
                execution.free(place, batch)


def _bind_inputs(program: Program, batch: ExampleInputs) -> dict[str, Any]:
    """Return the inputs of the network by name of their placeholder.

    On the CPU, images are in channels-last format, which all operations behind them preserve:
    convolutions need no conversions then, and those of size 1 are two to four times faster.
    """
    args, kwargs = arguments(batch)
    leaves = pytree.tree_leaves((args, reorder_kwargs(kwargs, program.in_spec)))
    return dict(zip(program.inputs, map(_channels_last, leaves), strict=True))


def _channels_last(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dim() == 4 and value.device.type == "cpu":
        return value.contiguous(memory_format=torch.channels_last)
    return value


def _user_inputs(program: ExportedProgram) -> tuple[str, ...]:
    specs = program.graph_signature.input_specs
    return tuple(spec.arg.name for spec in specs if spec.kind is InputKind.USER_INPUT)


def _user_outputs(program: ExportedProgram) -> tuple[int, ...]:
    specs = program.graph_signature.output_specs
    return tuple(k for k, spec in enumerate(specs) if spec.kind is OutputKind.USER_OUTPUT)


def _constants(program: ExportedProgram) -> dict[str, Any]:
    signature = program.graph_signature
    lifted = signature.inputs_to_lifted_tensor_constants
    return {name: program.constants[target] for name, target in lifted.items()}


def _last_use(nodes: Sequence[fx.Node]) -> tuple[tuple[int, ...], ...]:
    place = {node: number for number, node in enumerate(nodes)}
    unused_after: list[list[int]] = [[] for _ in nodes]
    for node, number in place.items():
        last = max((place[user] for user in node.users), default=number)
        unused_after[last].append(number)
    return tuple(map(tuple, unused_after))
