"""Trace channels through the exported graph, from the inputs to the outputs of a network."""

import io
import itertools
import logging
import operator
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from entrim.errors import TraceError
from entrim.graph.eager import ExampleInputs, arguments, copy_without_hooks, samples, unwrap

_LOG = logging.getLogger("entrim")
Ids = Int[Tensor, "..."]
Vector = Int[Tensor, " _"]


@dataclass(frozen=True, slots=True, eq=False)
class ChannelLayout:
    """The channel ids of one activation: `ids` along `axis`, constant along every other axis.

    Attributes
    ----------
    shape : tuple of int
        Shape of the activation.
    axis : int or None
        The axis of the channels; None if all elements have the same id.
    ids : Tensor
        One id per position along `axis`, or a single id.
    """

    shape: tuple[int, ...]
    axis: int | None
    ids: Int[Tensor, " _"]


class ChannelIds:
    """A union-find over channel ids; a frozen id freezes all ids united with it."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._reason: dict[int, str] = {}

    def new_ids(self, count: int) -> Int[Tensor, " count"]:
        """Return `count` new ids."""
        start = len(self._parent)
        self._parent.extend(range(start, start + count))
        return torch.arange(start, start + count)

    def find(self, channel: int) -> int:
        """Return the representative of the set of `channel`."""
        parent = self._parent
        while parent[channel] != channel:
            parent[channel] = parent[parent[channel]]
            channel = parent[channel]
        return channel

    def roots(self, ids: Ids) -> Ids:
        """Return the representatives of `ids`, in the same shape."""
        distinct, inverse = torch.unique(ids, return_inverse=True)
        roots = torch.tensor([self.find(channel) for channel in distinct.tolist()])
        return roots.to(torch.int64)[inverse]

    def union(self, first: Ids, second: Ids) -> None:
        """Merge the ids of two tensors of the same shape, element by element."""
        for a, b in zip(first.flatten().tolist(), second.flatten().tolist(), strict=True):
            self.join(a, b)

    def unite_all(self, ids: Ids) -> None:
        """Merge all of `ids`."""
        distinct = torch.unique(ids)
        self.union(distinct[:-1], distinct[1:])

    def freeze(self, ids: Ids, reason: str) -> None:
        """Freeze `ids` for `reason`; an earlier reason is kept."""
        for channel in torch.unique(ids).tolist():
            self._reason.setdefault(self.find(channel), reason)

    def reason(self, channel: int) -> str | None:
        """Return the reason why `channel` is frozen, or None."""
        return self._reason.get(self.find(channel))

    def frozen_layout(self, shape: Iterable[int], reason: str) -> ChannelLayout:
        """Return a layout of `shape` whose channels are frozen."""
        ids = self.new_ids(1)
        self.freeze(ids, reason)
        return ChannelLayout(tuple(shape), None, ids)

    def ids_along(self, value: ChannelLayout, axis: int) -> Int[Tensor, " _"]:
        """Return one id per position along `axis`; ids that share a position are united."""
        axis %= max(len(value.shape), 1)
        if value.axis == axis:
            return self.roots(value.ids)
        self.unite_all(value.ids)
        return self.roots(value.ids[:1]).expand(value.shape[axis] if value.shape else 1)

    def broadcast(self, value: ChannelLayout) -> Ids:
        """Return the representatives in the shape of the activation, as an expanded view."""
        ids = self.roots(value.ids)
        if value.axis is None:
            return ids[0].expand(value.shape)
        rest = [1] * len(value.shape)
        rest[value.axis] = -1
        return ids.view(rest).expand(value.shape)

    def gather(self, full: Ids, prefer: int | None = None) -> ChannelLayout:
        """Return the layout of an activation whose elements have the ids `full`.

        Only slices along one axis can be removed. If ids vary along several axes, one of them is
        selected, and ids in the same slice are united: `prefer`, if ids vary along it; of two axes
        the one that leaves more channels (a split into groups and offsets keeps the offsets);
        otherwise the first (outputs of a linear layer viewed as channels, height and width).
        """
        if not full.numel():
            return self.frozen_layout(full.shape, "it is empty")
        axes = _varying(full)
        if not axes:
            return ChannelLayout(tuple(full.shape), None, full.reshape(-1)[:1].clone())
        if prefer in axes:
            axis = prefer
        elif len(axes) == 2:
            axis = max(axes, key=lambda a: (_classes(full, a), a))
        else:
            axis = axes[0]
        slices = full.movedim(axis, 0).reshape(full.shape[axis], -1)
        if len(axes) > 1:
            for row in slices:
                self.unite_all(row)
        return ChannelLayout(tuple(full.shape), axis, slices[:, 0].clone())

    def join(self, a: int, b: int) -> None:
        """Merge two ids."""
        a, b = self.find(a), self.find(b)
        if a == b:
            return
        a, b = min(a, b), max(a, b)
        self._parent[b] = a
        reason = self._reason.pop(b, None)
        if reason is not None:
            self._reason.setdefault(a, reason)


def _varying(full: Ids) -> list[int]:
    compact = full[tuple(slice(0, 1) if step == 0 else slice(None) for step in full.stride())]
    return [
        axis
        for axis, size in enumerate(compact.shape)
        if size > 1 and bool((compact != compact.narrow(axis, 0, 1)).any())
    ]


def _classes(full: Ids, axis: int) -> int:
    """Return the number of channels if all ids of a slice along `axis` are united."""
    local = ChannelIds()
    _, dense = torch.unique(full, return_inverse=True)
    local.new_ids(int(dense.max()) + 1)
    slices = dense.movedim(axis, 0).reshape(dense.shape[axis], -1)
    for row in slices:
        local.unite_all(row)
    return len(torch.unique(local.roots(slices[:, 0])))


Result = ChannelLayout | tuple[ChannelLayout | None, ...] | None


@dataclass(slots=True)
class TraceState:
    """The state of a trace, which the rules read and extend."""

    module: nn.Module
    names: Mapping[fx.Node, str]
    """Placeholder of a parameter or buffer -> its name."""
    shapes: Mapping[str, tuple[int, ...]]
    aliases: Mapping[str, tuple[str, ...]]
    """Parameter or buffer -> all its names, starting with the first."""
    idle: set[str] = field(default_factory=set)
    """Parameters and buffers that are not used in eval mode."""
    channels: ChannelIds = field(default_factory=ChannelIds)
    values: dict[fx.Node, Result] = field(default_factory=dict)
    bindings: dict[tuple[str, int], Vector] = field(default_factory=dict)
    """(tensor, dimension) -> ids along the dimension."""
    producers: dict[str, Vector] = field(default_factory=dict)
    """Layer -> ids of its outputs."""
    consumers: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    """Weight -> the dimension of its inputs, and the tensor of an intercept."""
    norms: dict[str, str] = field(default_factory=dict)
    """Weight of a normalization over channels -> its layer."""
    products: list[tuple[Vector, int]] = field(default_factory=list)
    """Ids of the heads of a product of activations, and its MACs for the example inputs."""
    images: int = 1
    """Number of images in the example inputs, if there are products."""
    first_names: dict[int, str] = field(default_factory=dict)
    """Id of a module -> its first name, filled on demand."""
    attributes: dict[tuple[str, str], tuple[Vector, int]] = field(default_factory=dict)
    """(module, attribute) -> the ids that it counts, and the number of ids per unit."""

    def bind(self, tensor: str, dim: int, ids: Vector) -> Vector:
        """Bind dimension `dim` of `tensor` to `ids`, and merge them with earlier ones."""
        before = self.bindings.setdefault((tensor, dim), ids)
        self.channels.union(before, ids)
        return before

    def produce(self, layer: str, tensor: str, dim: int, copies: int = 1) -> Vector:
        """Return the output ids of `layer`: new ones repeated `copies` times, or existing ones."""
        size = self.shapes[tensor][dim]
        if (tensor, dim) not in self.bindings:
            self.bindings[tensor, dim] = self.channels.new_ids(size // copies).repeat(copies)
        ids = self.bindings[tensor, dim]
        alike = ids.view(copies, -1)
        self.channels.union(alike[:-1], alike[1:])
        self.producers.setdefault(layer, ids)
        return ids

    def value(self, node: fx.Node) -> ChannelLayout:
        """Return the layout of a node with one tensor; ids of parameters are created on demand."""
        if node not in self.values:
            self.values[node] = self._stored_layout(self.names[node])
        value = self.values[node]
        if not isinstance(value, ChannelLayout):
            return self.channels.frozen_layout(_shape(node), f"{node} is not a tensor")
        return value

    def stored_along(self, node: fx.Node, dim: int) -> None:
        """Let the channels of a parameter with several dimensions, not used before, be along `dim`.

        An example is a position embedding, which is added to the activations.
        """
        name = self.names.get(node)
        if name is not None and node not in self.values:
            shape = self.shapes[name]
            if sum(size > 1 for size in shape) > 1 and shape[dim] > 1:
                ids = self.bind(name, dim, self.channels.new_ids(shape[dim]))
                self.values[node] = ChannelLayout(shape, dim, ids)

    def freeze_call(self, call: "OpCall", reason: str) -> Result:
        """Freeze all inputs and outputs of `call`."""
        operands = list(call.operands())
        if not operands:
            reason = f"{call.node.name} creates a tensor of fixed size"
        for value in operands:
            self.channels.freeze(value.ids, reason)
        return call.results(lambda shape: self.channels.frozen_layout(shape, reason))

    def modules_with(self, tensor: str) -> tuple[str, ...]:
        """Return the modules that own `tensor`, each by its first name."""
        owners = (name.rpartition(".")[0] for name in self.aliases[tensor])
        return tuple(dict.fromkeys(map(self.first_name, owners)))

    def first_name(self, module: str) -> str:
        """Return the first name under which a module is registered."""
        if not self.first_names:
            self.first_names = {id(found): name for name, found in self.module.named_modules()}
        return self.first_names[id(self.module.get_submodule(module))]

    def _stored_layout(self, name: str) -> ChannelLayout:
        shape = self.shapes[name]
        wide = [dim for dim, size in enumerate(shape) if size > 1]
        if len(wide) > 1:
            value = self.channels.frozen_layout(shape, f"{name} is not used by a known layer")
            for dim in wide:
                self.bind(name, dim, value.ids.expand(shape[dim]))
            return value
        if not wide:
            return self.channels.frozen_layout(shape, f"{name} has one element")
        return ChannelLayout(
            shape, wide[0], self.bind(name, wide[0], self.channels.new_ids(shape[wide[0]]))
        )


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of an operation by name, with the defaults of its schema."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {str(i): argument for i, argument in enumerate(node.args)}
    given = dict(zip((a.name for a in schema.arguments), node.args, strict=False))
    defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    return {**defaults, **given, **node.kwargs}


@dataclass(frozen=True, slots=True)
class OpCall:
    """One operation of the exported graph.

    Attributes
    ----------
    state : TraceState
        The state of the trace.
    node : torch.fx.Node
        The node of the operation.
    arguments : dict
        Arguments by their name in the schema of the operator.
    """

    state: TraceState
    node: fx.Node
    arguments: Mapping[str, Any]

    @classmethod
    def of(cls, state: TraceState, node: fx.Node) -> "OpCall":
        """Return the call of `node`."""
        return cls(state, node, arguments_of(node))

    def get(self, name: str) -> Any:
        """Return the argument called `name`, None if there is none."""
        return self.arguments.get(name)

    def value(self, name: str | None = None) -> ChannelLayout:
        """Return the layout of the tensor argument `name`, by default of the first argument."""
        node: Any = self.node.args[0] if name is None else self.arguments[name]
        return self.state.value(node)

    def tensor(self, name: str) -> str | None:
        """Return the name of the parameter or buffer passed as `name`, None for other tensors."""
        node = self.get(name)
        return self.state.names.get(node) if isinstance(node, fx.Node) else None

    def operands(self) -> Iterator[ChannelLayout]:
        """Yield the layouts of all input tensors."""
        for node in self.node.all_input_nodes:
            result = self.state.values.get(node)
            if isinstance(result, tuple):
                yield from (part for part in result if part is not None)
            elif result is not None or node in self.state.names:
                yield self.state.value(node)

    def attach(self, name: str, ids: Vector) -> None:
        """Bind the vector passed as `name`, if any, to `ids`."""
        node = self.get(name)
        if node is None:
            return
        tensor = self.state.names.get(node)
        if tensor is not None:
            self.state.bind(tensor, 0, ids)
        else:
            self.state.channels.union(self.state.channels.ids_along(self.state.value(node), 0), ids)

    def owners(self) -> tuple[str, ...]:
        """Return the modules that own the weight or statistics, else the calling module."""
        tensor = self.tensor("weight") or self.tensor("running_mean")
        if tensor is not None:
            return self.state.modules_with(tensor)
        stack = self.node.meta.get("nn_module_stack") or {"": ("", None)}
        return (self.state.first_name(list(stack.values())[-1][0]),)

    def count(self, name: str, ids: Vector, step: int = 1) -> None:
        """Record that the attribute `name` of the owning modules counts `ids`.

        Of a tuple, such as the shape that a LayerNorm normalizes, the last number counts them.
        """
        for owner in self.owners():
            value = getattr(self.state.module.get_submodule(owner), name, None)
            path = name
            if isinstance(value, tuple) and value:
                path, value = f"{name}.{len(value) - 1}", value[-1]
            if type(value) is int and value == len(ids) // step:
                before, _ = self.state.attributes.setdefault((owner, path), (ids, step))
                self.state.channels.union(before, ids)

    def layer(self) -> str:
        """Return the name of the layer: the module of its weight, or the tensor itself."""
        name = self.tensor("weight") or self.owners()[0] or self.node.name
        return name.removesuffix(".weight")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the output tensor."""
        return _shape(self.node)

    def results(self, make: Callable[[tuple[int, ...]], ChannelLayout]) -> Result:
        """Return `make(shape)` for every output tensor."""
        out = self.node.meta.get("val")
        if isinstance(out, Tensor):
            return make(tuple(out.shape))
        if isinstance(out, list | tuple):
            return tuple(make(tuple(o.shape)) if isinstance(o, Tensor) else None for o in out)
        return None


def _shape(node: fx.Node) -> tuple[int, ...]:
    out = node.meta.get("val")
    return tuple(out.shape) if isinstance(out, torch.Tensor) else ()


Rule = Callable[["OpCall"], Result]
RULES: dict[str, Rule] = {}
"""Qualified operator -> rule. The module `rules` registers those of PyTorch."""
OUTPUT = "it is an output of the network"
POINTWISE = "pointwise"
"""Name of the rule for all operators that PyTorch tags as element-wise."""
_SILENT = {"_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_size", "sym_numel"}


def trace_ops(model: nn.Module, example_inputs: ExampleInputs) -> TraceState:
    """Return the state after tracing `model` in eval mode; the model is not modified."""
    still = copy_without_hooks(unwrap(model)).eval()
    program = export_program(still, example_inputs)
    shapes, aliases = named_tensors(still)
    names = placeholders(program, aliases)
    walk = TraceState(still, names, shapes, aliases)
    used = {name for node, name in names.items() if node.users}
    walk.idle.update(name for name in names.values() if name not in used)
    for node in program.graph.nodes:
        if node.op == "output":
            _freeze_outputs(walk, node)
        elif node.op == "placeholder" and node not in names:
            walk.values[node] = _input_layout(walk, node, program)
        elif node not in names:
            walk.values[node] = _step(walk, node)
    if walk.products:
        walk.images = samples(example_inputs)
    return walk


def export_program(
    model: nn.Module, example_inputs: ExampleInputs, dynamic_shapes: tuple[Any, ...] | None = None
) -> ExportedProgram:
    """Return the program of `model` for `example_inputs` from torch.export."""
    args, kwargs = arguments(example_inputs)
    for name, _ in model.named_modules():
        if not name.isprintable() or '"' in name or "\\" in name:
            raise TraceError(
                f"the name {name!r} of a layer contains a quote, a backslash or a control "
                "character, which torch.export does not support: rename the layer"
            )
    try:
        with torch.no_grad(), warnings.catch_warnings(), log_diagnostics("torch.export"):
            warnings.simplefilter("ignore")
            return torch.export.export(
                model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False
            )
    except Exception as error:
        first = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise TraceError(
            f"torch.export cannot trace {type(model).__name__} on these example inputs ({first}): "
            "check that the network runs on them, and that no `if` in its forward depends on the "
            "values of a tensor"
        ) from error


def named_tensors(
    model: nn.Module,
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[str, ...]]]:
    """Return the shape of every tensor, and all names of each tensor by its first name."""
    shapes, aliases, first = {}, {}, {}
    every = itertools.chain(
        model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    )
    for name, tensor in every:
        first_name = first.setdefault(id(tensor), name)
        shapes[name] = tuple(tensor.shape)
        aliases[first_name] = (*aliases.get(first_name, ()), name)
    return shapes, aliases


def placeholders(
    program: ExportedProgram, aliases: Mapping[str, tuple[str, ...]]
) -> dict[fx.Node, str]:
    """Return the parameter or buffer of each placeholder; shared tensors by one name."""
    first = {alias: name for name, others in aliases.items() for alias in others}
    signature = program.graph_signature
    targets = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    return {
        node: first[targets[node.name]]
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in targets
    }


def _input_layout(state: TraceState, node: fx.Node, program: ExportedProgram) -> Result:
    is_input = node.name in program.graph_signature.user_inputs
    what = "an input of the network" if is_input else "a tensor of fixed size"
    return OpCall.of(state, node).results(
        lambda s: state.channels.frozen_layout(s, f"{node} is {what}")
    )


def _step(state: TraceState, node: fx.Node) -> Result:
    call = OpCall.of(state, node)
    if node.target is operator.getitem:
        parts = state.values[node.all_input_nodes[0]]
        index = node.args[1]
        return parts[index] if isinstance(parts, tuple) and isinstance(index, int) else None
    name = getattr(getattr(node.target, "_schema", None), "name", str(node.target))
    namespace, _, name = name.rpartition("::")
    if namespace == "aten" and name in _SILENT:
        return None
    operator_name = f"{namespace or node.op}::{name}"
    plain = operator_name.removesuffix("_") if _in_place(call) else operator_name
    rule = RULES.get(plain)
    if rule is None and node.op == "call_function" and _is_pointwise(node.target):
        rule = RULES[POINTWISE]
    if rule is not None:
        return apply_rule(rule, call)
    return state.freeze_call(call, f"no rule for the operation {operator_name}")


def _is_pointwise(target: object) -> bool:
    """Whether PyTorch tags an operation as element-wise and deterministic."""
    tags = getattr(target, "tags", ())
    return torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags


def register_rule(operator_name: str, rule: Rule) -> None:
    """Register the rule by which channels are traced through an operator.

    Parameters
    ----------
    operator_name : str
        Qualified name of a PyTorch operator, such as `"mylib::scale"`.
    rule : callable
        Takes the `OpCall` and returns the `ChannelLayout` of its output, or a tuple with one per
        output. `call.value()` is the layout of the first argument.

    Examples
    --------
    >>> import entrim
    >>> from entrim.graph.rules import pointwise
    >>> entrim.register_rule("mylib::gate", pointwise)
    """
    RULES[operator_name] = rule


def apply_rule(rule: Callable[[OpCall], Result], call: OpCall) -> Result:
    """Return the result of `rule`; if it raises an error, freeze the call with the reason."""
    try:
        return rule(call)
    except Exception as error:
        reason = f"{call.node.name} cannot be traced ({type(error).__name__}: {error})"
        return call.state.freeze_call(call, reason)


def _in_place(call: OpCall) -> bool:
    schema = getattr(call.node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _freeze_outputs(state: TraceState, node: fx.Node) -> None:
    for value in OpCall.of(state, node).operands():
        state.channels.freeze(value.ids, OUTPUT)


class _Capture(logging.Filter):
    """Writes the records of a handler to `stream` instead."""

    def __init__(self, stream: io.StringIO) -> None:
        super().__init__()
        self.stream = stream

    def filter(self, record: logging.LogRecord) -> bool:
        """Write the message, and omit it from the handler; structured traces have none."""
        if "__" in record.name:
            return True
        self.stream.write(f"{record.name}: {record.getMessage()}\n")
        return False


@contextmanager
def log_diagnostics(what: str) -> Iterator[None]:
    """Log at level DEBUG what the block prints, if it fails; otherwise print it afterwards."""
    out, err, begin = io.StringIO(), io.StringIO(), (sys.stdout, sys.stderr)
    try:
        with redirect_stdout(out), redirect_stderr(err), _capture_torch_logs(err):
            yield
    except BaseException:
        if text := (out.getvalue() + err.getvalue()).strip():
            _LOG.debug("%s printed:\n%s", what, text)
        raise
    for stream, text in zip(begin, (out, err), strict=True):
        if stream is not None and text.getvalue():
            stream.write(text.getvalue())


@contextmanager
def _capture_torch_logs(stream: io.StringIO) -> Iterator[None]:
    """Write the messages of PyTorch's loggers to `stream`; their handlers keep the first stderr."""
    known = logging.root.manager.loggerDict
    names = [name for name in known if name.startswith("torch") and "__" not in name]
    handlers = {handler for name in names for handler in logging.getLogger(name).handlers}
    capture = _Capture(stream)
    with ExitStack() as stack:
        for handler in handlers:
            handler.addFilter(capture)
            stack.callback(handler.removeFilter, capture)
        yield
