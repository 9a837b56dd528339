"""Build the channel graph from the channel ids of a trace: groups, sizes, residual blocks.

Modules also store sizes as attributes, such as `num_features`, and pruning changes them. Layers of
PyTorch are known: their rules count `in_channels` and similar attributes. Other modules store
widths under any name. An attribute is taken for a width if its name is one of a width, and if all
dimensions of this size in the module have the same channels. A trial verifies these guesses where
the network uses them; where it does not, they keep its metadata correct.

A residual block is found on the exported graph: a module that is called once with one tensor x,
whose only result is x + f(x), or an activation of this sum that leaves x unchanged. Its branch f is
zero if the tensors `zeroed` are, those of the last layer of f. It may be replaced by an identity.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import fx, nn

from entrim.graph.channel_graph import (
    Attribute,
    ChannelGraph,
    ConsumerLayer,
    Frozen,
    Group,
    Indices,
    Member,
    ResidualBlock,
    is_inside,
)
from entrim.graph.tracer import ChannelIds, ChannelLayout, TraceState, Vector, arguments_of

_WIDTHS = re.compile(
    r"chan|chs|dim|feat|width|plane|hidden|filters|shape|^inp|^oup|^in_|^out_|head_size|intermediate|^groups$"
)
_HEADS = re.compile(r"heads$")
_OF_ONE_HEAD = re.compile(r"^(head_dim|key_dim|attention_head_size)$")
_OF_ALL_HEADS = re.compile(r"attn|all_head|inner")
_INPUTS, _OUTPUTS = re.compile(r"^in"), re.compile(r"^ou")
_OF_LAST_LAYERS = re.compile(r"feature|head_hidden")
"""Of a network: the inputs of its last layer with this width."""
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
Counted = tuple[Vector, int]
Bindings = Mapping[str, list[tuple[str, int]]]
"""Module -> the dimensions of the tensors in it, as (tensor, dimension)."""
Place = dict[int, tuple[str, int]]
"""Representative id -> (group, channel)."""


def channel_graph(state: TraceState) -> ChannelGraph:
    """Return the channel graph of a trace."""
    layers = _layers_by_group(state)
    units = {name: _units(state, vectors) for name, vectors in layers.items()}
    sizes = {name: len(roots) for name, roots in units.items() if len(roots) > 1}
    place = {root: (name, unit) for name in sizes for unit, root in enumerate(units[name])}
    members, attributes = _members(state, place, sizes), _attributes(state, place, sizes)
    groups = tuple(
        Group(name, size, tuple(members[name]), tuple(attributes[name]), tuple(layers[name]))
        for name, size in sizes.items()
    )
    consumers = (_consumer(state, weight, groups) for weight in state.consumers)
    return ChannelGraph(
        groups=groups,
        consumers=tuple(layer for layer in consumers if layer is not None),
        frozen=tuple(_frozen_layers(state, place)),
        shapes=state.shapes,
        blocks=tuple(_with_groups(block, groups) for block in find_residual_blocks(state)),
        norms=_prunable_norms(state, groups),
        products=_products(state, place, sizes),
    )


def _products(state: TraceState, place: Place, sizes: Mapping[str, int]) -> dict[str, float]:
    """Return, by group, the MACs of products of activations for one channel and image."""
    found: dict[str, float] = {}
    for ids, macs in state.products:
        for name, positions in _indices(state, ids, place, sizes).items():
            share = sum(map(len, positions)) / len(ids)
            each = macs * share / sizes[name] / state.images
            found[name] = found.get(name, 0.0) + each
    return found


def _prunable_norms(state: TraceState, groups: Sequence[Group]) -> dict[str, str]:
    """Return the normalizations over channels of which some can be pruned."""
    touched = {member.tensor for group in groups for member in group.members}
    return {weight: layer for weight, layer in state.norms.items() if weight in touched}


def _with_groups(block: ResidualBlock, groups: Sequence[Group]) -> ResidualBlock:
    """Return `block` with the groups all of whose channels are inside of it."""
    inner = [
        group.name
        for group in groups
        if all(is_inside(member.tensor, block.name) for member in group.members)
    ]
    return replace(block, groups=tuple(inner))


def _layers_by_group(state: TraceState) -> dict[str, dict[str, Vector]]:
    """Return {group: {layer: ids}}: layers that share a live channel belong to one group."""
    vectors = dict(state.producers)
    produced = _live(state, vectors.values())
    for (tensor, _), ids in state.bindings.items():
        if not produced.issuperset(_live(state, [ids])) and tensor not in vectors:
            vectors[tensor] = ids
    coupled = ChannelIds()
    coupled.new_ids(len(vectors))
    first_producer: dict[int, int] = {}
    for number, ids in enumerate(vectors.values()):
        for root in _live(state, [ids]):
            coupled.join(number, first_producer.setdefault(root, number))
    groups: dict[str, dict[str, Vector]] = {}
    names = list(vectors)
    for number, layer in enumerate(names):
        groups.setdefault(names[coupled.find(number)], {})[layer] = vectors[layer]
    return groups


def _live(state: TraceState, vectors: Iterable[Vector]) -> set[int]:
    roots = {root for ids in vectors for root in state.channels.roots(ids).tolist()}
    return {root for root in roots if state.channels.reason(root) is None}


def _units(state: TraceState, vectors: dict[str, Vector]) -> list[int]:
    """Return the live channels of a group, in the order of its layers."""
    roots = (root for ids in vectors.values() for root in state.channels.roots(ids).tolist())
    return [root for root in dict.fromkeys(roots) if state.channels.reason(root) is None]


def _members(state: TraceState, place: Place, sizes: Mapping[str, int]) -> dict[str, list[Member]]:
    members: dict[str, list[Member]] = {name: [] for name in sizes}
    for (tensor, dim), ids in state.bindings.items():
        for name, positions in _indices(state, ids, place, sizes).items():
            members[name] += [Member(alias, dim, positions) for alias in state.aliases[tensor]]
    return members


def _attributes(
    state: TraceState, place: Place, sizes: Mapping[str, int]
) -> dict[str, list[Attribute]]:
    attributes: dict[str, list[Attribute]] = {name: [] for name in sizes}
    for counted, is_guess in ((state.attributes, False), (find_sizes(state), True)):
        for (module, attribute), (ids, step) in counted.items():
            for name, positions in _indices(state, ids, place, sizes).items():
                attributes[name].append(Attribute(module, attribute, positions, step, is_guess))
    return attributes


def _indices(
    state: TraceState, ids: Vector, place: Place, sizes: Mapping[str, int]
) -> dict[str, Indices]:
    """Return the positions of the channels of every group that occurs in `ids`."""
    found: dict[str, list[list[int]]] = {}
    for position, root in enumerate(state.channels.roots(ids).tolist()):
        if root in place:
            name, unit = place[root]
            if name not in found:
                found[name] = [[] for _ in range(sizes[name])]
            found[name][unit].append(position)
    return {name: tuple(map(tuple, positions)) for name, positions in found.items()}


def _consumer(state: TraceState, weight: str, groups: tuple[Group, ...]) -> ConsumerLayer | None:
    dim, intercept_target = state.consumers[weight]
    kernel = math.prod(state.shapes[weight][2:])
    columns = {}
    for group in groups:
        for member in group.members:
            if (member.tensor, member.dim) == (weight, dim):
                counts = {len(found) for found in member.indices}
                columns[group.name] = counts.pop() * kernel if len(counts) == 1 else None
    if not columns:
        return None
    return ConsumerLayer(weight.removesuffix(".weight"), weight, dim, columns, intercept_target)


def _frozen_layers(state: TraceState, place: Place) -> Iterable[Frozen]:
    for layer, ids in state.producers.items():
        roots = [root for root in state.channels.roots(ids).tolist() if root not in place]
        reasons = Counter(state.channels.reason(root) or _ALONE for root in roots)
        for reason, count in reasons.items():
            yield Frozen(layer, count, reason)
    for tensor in sorted(state.idle):
        if tensor.endswith(".weight") and len(state.shapes[tensor]) > 1:
            yield Frozen(tensor.removesuffix(".weight"), state.shapes[tensor][0], _IDLE)


_IDLE = "it is not used in eval mode; if training uses it, it may not fit the pruned network"
_ALONE = "all its channels are coupled to each other"


def find_sizes(state: TraceState) -> dict[tuple[str, str], Counted]:
    """Return (module, attribute) -> the ids that it counts, and the number of ids per unit.

    An item of a container is named by a path, such as `feature_info.0.num_chs`.
    """
    inside = _bindings_by_module(state)
    found = {
        (module, attribute): counted
        for module, attribute, size in _stored_sizes(state.module, inside)
        if (module, attribute) not in state.attributes
        and (counted := _counted(state, inside[module], module, attribute, size)) is not None
    }
    return {**found, **_features(state)}


def _bindings_by_module(state: TraceState) -> dict[str, list[tuple[str, int]]]:
    inside: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for tensor, dim in state.bindings:
        module = tensor
        while module:
            module = module.rpartition(".")[0]
            inside[module].append((tensor, dim))
    return inside


def _stored_sizes(model: nn.Module, inside: Bindings) -> Iterator[tuple[str, str, int]]:
    """Yield (module, path, value) of every attribute with the name of a width."""
    for module, owner in model.named_modules():
        if module not in inside:
            continue
        for name, value in vars(owner).items():
            if name.startswith("_") or not (_WIDTHS.search(name) or _HEADS.search(name)):
                continue
            if type(value) is int:
                yield module, name, value
            elif isinstance(value, tuple) and all(type(size) is int for size in value):
                yield from ((module, f"{name}.{i}", v) for i, v in enumerate(value))


def _counted(
    state: TraceState, dims: list[tuple[str, int]], module: str, name: str, size: int
) -> Counted | None:
    """Return what an attribute counts if it is unambiguous, else None."""
    if size < 2 or _OF_ONE_HEAD.search(name):
        return None
    if _HEADS.search(name):
        return _heads(state, dims, size)
    fitting = [(tensor, dim) for tensor, dim in dims if state.shapes[tensor][dim] == size]
    inputs = [at for at in fitting if _is_input(state, *at)]
    if not module and _OF_LAST_LAYERS.search(name):
        fitting = inputs[-1:]
    elif _INPUTS.search(name):
        fitting = inputs or fitting
    elif _OUTPUTS.search(name):
        fitting = [at for at in fitting if at not in inputs]
    vectors = [state.channels.roots(state.bindings[at]) for at in fitting]
    if not fitting:  # inputs of a depthwise convolution with several outputs for each of them
        vectors = [
            state.channels.roots(ids)
            for (owner, _), (ids, step) in state.attributes.items()
            if step == 1 and len(ids) == size and owner.startswith(f"{module}.")
        ]
    of_heads = [ids for ids in vectors if len(ids.unique()) < len(ids)]
    if of_heads and len(of_heads) < len(vectors):
        apart = bool(_OF_ALL_HEADS.search(name))
        vectors = [ids for ids in vectors if (len(ids.unique()) < len(ids)) == apart]
    if len({tuple(sorted(ids.tolist())) for ids in vectors}) != 1:
        return None
    return vectors[0], 1


def _heads(state: TraceState, dims: list[tuple[str, int]], heads: int) -> Counted | None:
    """Return the ids of a dimension that consists of as many channels as there are heads."""
    for at in dims:
        ids = state.channels.roots(state.bindings[at])
        if len(ids) > heads and len(ids.unique()) == heads and len(ids) % heads == 0:
            return ids, len(ids) // heads
    return None


def _is_input(state: TraceState, tensor: str, dim: int) -> bool:
    return state.consumers.get(tensor, (None, None))[0] == dim


def _features(state: TraceState) -> dict[tuple[str, str], Counted]:
    """Return the sizes in `feature_info`, by which timm lists the outputs of some modules."""
    listed = getattr(state.module, "feature_info", None)
    last: dict[str, fx.Node] = {}
    for node in state.values if isinstance(listed, list) else ():
        for name, _ in node.meta.get("nn_module_stack", {}).values():
            last[name] = node
    found = {}
    for number, entry in enumerate(listed if isinstance(listed, list) else ()):
        node = last.get(entry.get("module", "")) if isinstance(entry, dict) else None
        value = None if node is None else state.values[node]
        if isinstance(value, ChannelLayout) and entry.get("num_chs") == len(value.ids):
            found["", f"feature_info.{number}.num_chs"] = (value.ids, 1)
    return found


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
