"""From ids to values: which channels form a group, who reads it, and what is frozen."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from entrim.graph.channel_graph import (
    Attribute,
    ChannelGraph,
    Frozen,
    Group,
    Member,
    Positions,
    Site,
)
from entrim.graph.channel_ids import Channels
from entrim.graph.tracer import Vector, Walk

Place = dict[int, tuple[str, int]]
"""Standing id -> (group, unit)."""


def channel_graph(walk: Walk) -> ChannelGraph:
    """Return what the walk found, as plain values."""
    families = _families(walk)
    units = {name: _units(walk, vectors) for name, vectors in families.items()}
    sizes = {name: len(roots) for name, roots in units.items() if len(roots) > 1}
    place = {root: (name, unit) for name in sizes for unit, root in enumerate(units[name])}
    members, attributes = _members(walk, place, sizes), _attributes(walk, place, sizes)
    groups = tuple(
        Group(name, size, tuple(members[name]), tuple(attributes[name]), tuple(families[name]))
        for name, size in sizes.items()
    )
    sites = (_site(walk, weight, groups) for weight in walk.sites)
    return ChannelGraph(
        groups=groups,
        sites=tuple(site for site in sites if site is not None),
        frozen=tuple(_frozen(walk, place)),
        shapes=walk.shapes,
    )


def _families(walk: Walk) -> dict[str, dict[str, Vector]]:
    """Return {group: {layer: ids}}: layers that share a live channel are one family."""
    vectors = dict(walk.producers)
    produced = _live(walk, vectors.values())
    for (tensor, _), ids in walk.bindings.items():
        if not produced.issuperset(_live(walk, [ids])) and tensor not in vectors:
            vectors[tensor] = ids
    kin = Channels()
    kin.fresh(len(vectors))
    home: dict[int, int] = {}
    for number, ids in enumerate(vectors.values()):
        for root in _live(walk, [ids]):
            other = home.setdefault(root, number)
            kin.join(number, other)
    families: dict[str, dict[str, Vector]] = {}
    names = list(vectors)
    for number, layer in enumerate(names):
        families.setdefault(names[kin.root(number)], {})[layer] = vectors[layer]
    return families


def _live(walk: Walk, vectors: Iterable[Vector]) -> set[int]:
    roots = {root for ids in vectors for root in walk.channels.roots(ids).tolist()}
    return {root for root in roots if walk.channels.reason(root) is None}


def _units(walk: Walk, vectors: dict[str, Vector]) -> list[int]:
    """Return the live channels of a family, in the order of its layers."""
    roots = (root for ids in vectors.values() for root in walk.channels.roots(ids).tolist())
    return [root for root in dict.fromkeys(roots) if walk.channels.reason(root) is None]


def _members(walk: Walk, place: Place, sizes: Mapping[str, int]) -> dict[str, list[Member]]:
    members: dict[str, list[Member]] = {name: [] for name in sizes}
    for (tensor, dim), ids in walk.bindings.items():
        for name, positions in _positions(walk, ids, place, sizes).items():
            members[name] += [Member(alias, dim, positions) for alias in walk.aliases[tensor]]
    return members


def _attributes(walk: Walk, place: Place, sizes: Mapping[str, int]) -> dict[str, list[Attribute]]:
    attributes: dict[str, list[Attribute]] = {name: [] for name in sizes}
    for (module, attribute), (ids, step) in walk.attributes.items():
        for name, positions in _positions(walk, ids, place, sizes).items():
            attributes[name].append(Attribute(module, attribute, positions, step))
    return attributes


def _positions(
    walk: Walk, ids: Vector, place: Place, sizes: Mapping[str, int]
) -> dict[str, Positions]:
    """Return, for every group found along `ids`, where its units are."""
    found: dict[str, list[list[int]]] = {}
    for position, root in enumerate(walk.channels.roots(ids).tolist()):
        if root in place:
            name, unit = place[root]
            if name not in found:
                found[name] = [[] for _ in range(sizes[name])]
            found[name][unit].append(position)
    return {name: tuple(map(tuple, positions)) for name, positions in found.items()}


def _site(walk: Walk, weight: str, groups: tuple[Group, ...]) -> Site | None:
    dim, home = walk.sites[weight]
    kernel = math.prod(walk.shapes[weight][2:])
    feeds = {}
    for group in groups:
        for member in group.members:
            if (member.tensor, member.dim) == (weight, dim):
                counts = {len(found) for found in member.positions}
                feeds[group.name] = counts.pop() * kernel if len(counts) == 1 else None
    if not feeds:
        return None
    return Site(weight.removesuffix(".weight"), weight, dim, feeds, home)


def _frozen(walk: Walk, place: Place) -> Iterable[Frozen]:
    for layer, ids in walk.producers.items():
        roots = [root for root in walk.channels.roots(ids).tolist() if root not in place]
        reasons = Counter(walk.channels.reason(root) or _ALONE for root in roots)
        for reason, count in reasons.items():
            yield Frozen(layer, count, reason)
    for tensor in sorted(walk.idle):
        if tensor.endswith(".weight") and len(walk.shapes[tensor]) > 1:
            yield Frozen(tensor.removesuffix(".weight"), walk.shapes[tensor][0], _IDLE)


_IDLE = "it is not used in eval mode; where training uses it, it may not fit the cut network"
_ALONE = "all its channels live and die together"
