"""Residual blocks that may be replaced by an identity: modules that compute x + f(x).

A block is found on the exported graph: a module that is called once with one tensor x, whose only
result is x + f(x), or an activation of this sum that leaves x unchanged. Its branch f is zero if
the tensors `zeroed` are, those of the last layer of f.
"""

import re
from collections.abc import Mapping, Sequence

import torch
from torch import fx

from entrim.graph.channel_graph import ResidualBlock, is_inside
from entrim.graph.tracer import TraceState, arguments_of

_AFFINE = ("batch_norm", "layer_norm", "group_norm", "conv", "linear")
"""Operations whose outputs are zero if their weight and bias are."""
_ACTIVATIONS = ("relu", "relu6", "silu", "gelu", "tanh", "hardswish", "leaky_relu", "elu", "mish")
_COPIES = ("dropout", "feature_dropout", "clone", "contiguous", "alias", "detach")
_ZERO_PRESERVING = frozenset((*_ACTIVATIONS, *_COPIES))
_IDEMPOTENT = frozenset(("relu", "relu6", "hardtanh", "clamp"))
_NON_NEGATIVE = frozenset(("relu", "relu6", "sigmoid", "hardsigmoid", "softplus", "abs"))
_KEEPS_SIGN = frozenset(
    ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "dropout", "clone", "contiguous")
)
_REPEATED = re.compile(r"@\d+$")
"""End of the key of a module in the stack of a node if this is not its first call."""


def find_residual_blocks(state: TraceState) -> list[ResidualBlock]:
    """Return the blocks of a trace that may be replaced by an identity; innermost ones only."""
    names = [name for name, _ in state.module.named_modules(remove_duplicate=False) if name]
    modules = [state.module.get_submodule(name) for name in names]
    single = [n for n, module in zip(names, modules, strict=True) if modules.count(module) == 1]
    nodes = _nodes_by_module(state)
    found = [_find_block(state, name, nodes[name]) for name in single if name in nodes]
    blocks = [block for block in found if block is not None]
    return [
        block
        for block in blocks
        if not any(is_inside(other.name, block.name) for other in blocks if other is not block)
    ]


def _nodes_by_module(state: TraceState) -> dict[str, list[fx.Node]]:
    """Return the operations of every module that is called exactly once."""
    found: dict[str, list[fx.Node]] = {}
    repeated: set[str] = set()
    for node in state.values:
        if node.op != "call_function":
            continue
        for key, (name, _) in node.meta.get("nn_module_stack", {}).items():
            found.setdefault(name, []).append(node)
            if _REPEATED.search(key):
                repeated.add(name)
    return {name: nodes for name, nodes in found.items() if name not in repeated}


def _find_block(state: TraceState, name: str, nodes: Sequence[fx.Node]) -> ResidualBlock | None:
    """Return the block of the module `name`, None if it does not match exactly."""
    inner = set(nodes)
    sources = {
        source
        for node in nodes
        for source in node.all_input_nodes
        if source not in inner and source not in state.names
    }
    results = [node for node in nodes if not inner.issuperset(node.users)]
    tensors = tuple(tensor for tensor in state.shapes if is_inside(tensor, name))
    if len(sources) != 1 or len(results) != 1 or not _is_private(state, tensors, inner):
        return None
    source, total = sources.pop(), _sum_of(results[0])
    if any(_writes_into(node, source) for node in nodes) or total is None:
        return None
    if total is not results[0] and not _is_unchanged_by(results[0], source):
        return None
    branch = _other_operand(total, source)
    last = None if branch is None or branch not in inner else _last_layer(state, branch)
    if last is None:
        return None
    return ResidualBlock(name, tensors, last)


def _is_private(state: TraceState, tensors: Sequence[str], inner: set[fx.Node]) -> bool:
    """Whether nothing outside of a module uses its tensors."""
    shared = any(len(state.aliases.get(tensor, ())) != 1 for tensor in tensors)
    used = (user for node, name in state.names.items() if name in tensors for user in node.users)
    return not shared and inner.issuperset(used)


def _sum_of(result: fx.Node) -> fx.Node | None:
    """Return the sum that a module returns, directly or through an activation."""
    if _operator_name(result) == "add":
        return result
    source = result.args[0] if result.args else None
    if (
        _operator_name(result) in _IDEMPOTENT
        and isinstance(source, fx.Node)
        and _operator_name(source) == "add"
    ):
        return source if len(source.users) == 1 else None
    return None


def _other_operand(total: fx.Node, source: fx.Node) -> fx.Node | None:
    """Return f if `total` is the plain sum of `source` and f, both of the same shape."""
    if arguments_of(total).get("alpha", 1) != 1 or len(total.args) < 2 or total.kwargs:
        return None
    one, other = total.args[:2]
    if (one is source) == (other is source):
        return None
    branch = other if one is source else one
    if not isinstance(branch, fx.Node) or _layout(branch) != _layout(source):
        return None
    return branch if len(branch.users) == 1 else None


def _is_unchanged_by(activation: fx.Node, source: fx.Node) -> bool:
    """Whether an activation leaves all values of `source` unchanged."""
    same = _operator_name(activation) == _operator_name(source) and _settings(
        activation
    ) == _settings(source)
    return same or (_operator_name(activation) == "relu" and _is_non_negative(source))


def _is_non_negative(node: fx.Node) -> bool:
    while _operator_name(node) in _KEEPS_SIGN and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    if _operator_name(node) == "hardtanh":
        return arguments_of(node)["min_val"] >= 0
    return _operator_name(node) in _NON_NEGATIVE


def _settings(node: fx.Node) -> list[object]:
    return [value for name, value in arguments_of(node).items() if name not in ("self", "input")]


def _last_layer(state: TraceState, node: fx.Node) -> tuple[str, ...] | None:
    """Return the parameters whose zeros make `node` zero, None if there are none."""
    while len(node.users) == 1:
        given = arguments_of(node)
        if any(kind in _operator_name(node) for kind in _AFFINE):
            return _affine_tensors(state, given)
        operands = [operand for operand in node.args if isinstance(operand, fx.Node)]
        if _operator_name(node) == "mul":
            scales = [operand for operand in operands if operand in state.names]
            if scales:
                return (state.names[scales[0]],)
        elif _operator_name(node) not in _ZERO_PRESERVING:
            return None
        if not operands:
            return None
        node = operands[0]
    return None


def _affine_tensors(state: TraceState, given: Mapping[str, object]) -> tuple[str, ...] | None:
    """Return the weight and the bias of a layer, None if one of them is computed."""
    nodes = [given.get(key) for key in ("weight", "bias")]
    found = [state.names.get(n) for n in nodes if isinstance(n, fx.Node)]
    names = tuple(name for name in found if name is not None)
    is_complete = nodes[0] is not None and len(names) == len(found)
    return names if is_complete else None


def _writes_into(node: fx.Node, source: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable and bool(node.args) and node.args[0] is source


def _operator_name(node: fx.Node) -> str:
    """Return the name of an operator without its namespace and the mark of in-place operators."""
    schema = getattr(node.target, "_schema", None)
    name = str(getattr(schema, "name", "")).rpartition("::")[2]
    return name.removesuffix("_")


def _layout(node: fx.Node) -> tuple[object, ...]:
    value = node.meta.get("val")
    return (value.shape, value.dtype) if isinstance(value, torch.Tensor) else ()
