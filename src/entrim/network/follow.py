"""The walk through the exported graph, from the network's inputs to its outputs."""

import itertools
import operator
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from entrim.errors import TraceError
from entrim.network import elementwise, layers, movement
from entrim.network.eager import Example, arguments, copy_without_hooks, unwrap
from entrim.network.walk import Call, Result, Walk

_RULES = {**elementwise.RULES, **movement.RULES, **layers.RULES}
_SILENT = {"_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_size", "sym_numel"}


def follow(model: nn.Module, example: Example) -> Walk:
    """Return what a walk through `model` in eval mode finds; the model is not touched."""
    still = copy_without_hooks(unwrap(model)).eval()
    program = exported(still, example)
    shapes, aliases = named_tensors(still)
    names = placeholders(program, aliases)
    walk = Walk(still, names, shapes, aliases)
    used = {name for node, name in names.items() if node.users}
    walk.idle.update(name for name in names.values() if name not in used)
    for node in program.graph.nodes:
        if node.op == "output":
            _freeze_outputs(walk, node)
        elif node.op == "placeholder" and node not in names:
            walk.values[node] = _given(walk, node, program)
        elif node not in names:
            walk.values[node] = _step(walk, node)
    return walk


def exported(
    model: nn.Module, example: Example, dynamic_shapes: tuple[Any, ...] | None = None
) -> ExportedProgram:
    """Return the operations of `model` on `example`, as torch.export sees them."""
    args, kwargs = arguments(example)
    for name, _ in model.named_modules():
        if not name.isprintable() or '"' in name or "\\" in name:
            raise TraceError(
                f"the name {name!r} of a layer holds a quote, a backslash or a control character, "
                "and torch.export writes names into code: rename the layer"
            )
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(
                model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False
            )
    except Exception as error:
        first = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise TraceError(
            f"torch.export cannot follow {type(model).__name__} on this example ({first}): check "
            "that the network runs on the example, and that no `if` in its forward depends on the "
            "values of a tensor"
        ) from error


def named_tensors(
    model: nn.Module,
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[str, ...]]]:
    """Return the shape of every tensor, and all names of each by its first."""
    shapes, aliases, first = {}, {}, {}
    every = itertools.chain(
        model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    )
    for name, tensor in every:
        stand = first.setdefault(id(tensor), name)
        shapes[name] = tuple(tensor.shape)
        aliases[stand] = (*aliases.get(stand, ()), name)
    return shapes, aliases


def placeholders(
    program: ExportedProgram, aliases: Mapping[str, tuple[str, ...]]
) -> dict[fx.Node, str]:
    """Return the parameter or buffer behind each placeholder; shared tensors by one name."""
    first = {alias: name for name, others in aliases.items() for alias in others}
    signature = program.graph_signature
    targets = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    return {
        node: first[targets[node.name]]
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in targets
    }


def _given(walk: Walk, node: fx.Node, program: ExportedProgram) -> Result:
    is_input = node.name in program.graph_signature.user_inputs
    what = "an input of the network" if is_input else "a tensor of fixed size"
    return Call.of(walk, node).results(lambda s: walk.channels.frozen(s, f"{node} is {what}"))


def _step(walk: Walk, node: fx.Node) -> Result:
    call = Call.of(walk, node)
    if node.target is operator.getitem:
        parts = walk.values[node.all_input_nodes[0]]
        index = node.args[1]
        return parts[index] if isinstance(parts, tuple) and isinstance(index, int) else None
    name = getattr(getattr(node.target, "_schema", None), "name", str(node.target))
    namespace, _, name = name.rpartition("::")
    if node.op == "call_function" and namespace == "aten":
        if name in _SILENT:
            return None
        if elementwise.is_pointwise(node.target):
            return _obey(elementwise.pointwise, call)
        rule = _RULES.get(name.removesuffix("_") if _in_place(call) else name)
        if rule is not None:
            return _obey(rule, call)
    return walk.refuse(call, f"no rule for the operation {namespace or node.op}::{name}")


def _obey(rule: Callable[[Call], Result], call: Call) -> Result:
    """Return what `rule` says; a call that it was not made for is frozen and named."""
    try:
        return rule(call)
    except Exception as error:
        reason = f"{call.node.name} could not be followed ({type(error).__name__}: {error})"
        return call.walk.refuse(call, reason)


def _in_place(call: Call) -> bool:
    schema = getattr(call.node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _freeze_outputs(walk: Walk, node: fx.Node) -> None:
    for value in Call.of(walk, node).operands():
        walk.channels.freeze(value.ids, "it is an output of the network")
