"""Build the channel graph from the channel ids of a trace."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

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
from entrim.graph.channel_ids import ChannelIds
from entrim.graph.residual_blocks import find_residual_blocks
from entrim.graph.sizes import find_sizes
from entrim.graph.tracer import TraceState, Vector

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
