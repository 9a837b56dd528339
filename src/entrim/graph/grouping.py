"""Build the channel graph from the channel ids of a trace.

Modules also store sizes as attributes, such as `num_features`, and pruning changes them. Layers of
PyTorch are known: their rules count `in_channels` and similar attributes. Other modules store
widths under any name. An attribute is taken for a width if its name is one of a width, and if all
dimensions of this size in the module have the same channels. A trial verifies these guesses where
the network uses them; where it does not, they keep its metadata correct.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

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
from entrim.graph.channel_ids import ChannelIds, ChannelLayout
from entrim.graph.residual_blocks import find_residual_blocks
from entrim.graph.tracer import TraceState, Vector

_WIDTHS = re.compile(
    r"chan|chs|dim|feat|width|plane|hidden|filters|shape|^inp|^oup|^in_|^out_|head_size|intermediate|^groups$"
)
_HEADS = re.compile(r"heads$")
_OF_ONE_HEAD = re.compile(r"^(head_dim|key_dim|attention_head_size)$")
_OF_ALL_HEADS = re.compile(r"attn|all_head|inner")
_INPUTS, _OUTPUTS = re.compile(r"^in"), re.compile(r"^ou")
_OF_LAST_LAYERS = re.compile(r"feature|head_hidden")
"""Of a network: the inputs of its last layer with this width."""
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
