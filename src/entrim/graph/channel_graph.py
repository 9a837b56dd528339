"""Which channels of a network live and die together, as plain values."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

Indices = tuple[tuple[int, ...], ...]
"""For every unit of a group, the positions along one dimension that go with it."""


@dataclass(frozen=True, slots=True)
class Member:
    """One dimension of a parameter or buffer that follows a group."""

    tensor: str
    """Its name in the state dict (non-persistent buffers: as in `named_buffers`)."""
    dim: int
    indices: Indices


@dataclass(frozen=True, slots=True)
class Attribute:
    """A number written on a module, such as `out_channels`, that follows a group."""

    module: str
    name: str
    indices: Indices
    step: int = 1
    """The number falls by one for every `step` positions that go."""


@dataclass(frozen=True, slots=True)
class Group:
    """Channels that are chosen together: one choice of units shapes every member."""

    name: str
    """The first layer that produces these channels."""
    channels: int
    """The number of units, each of which can go without any other."""
    members: tuple[Member, ...]
    attributes: tuple[Attribute, ...]
    layers: tuple[str, ...]
    """Every layer that produces these channels."""

    def matches(self, pattern: str) -> bool:
        """Whether `pattern` matches the name of the group or of a layer that produces it."""
        return any(fnmatchcase(name, pattern) for name in (self.name, *self.layers))


@dataclass(frozen=True, slots=True)
class ConsumerLayer:
    """A layer that reads cuttable channels: the place of one regression."""

    layer: str
    weight: str
    dim: int
    """The dimension of the weight that runs over the inputs."""
    columns_per_channel: Mapping[str, int | None]
    """For every group that feeds it, the columns per unit (k*k for a k x k convolution, H*W for a
    Linear behind a Flatten); None where units differ in their number of columns."""
    intercept_target: str | None
    """Where an intercept goes: "bias", "batchnorm:<running mean>", or None for nowhere."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """Channels of a layer that stay, and why."""

    layer: str
    channels: int
    reason: str


@dataclass(frozen=True, slots=True)
class ChannelGraph:
    """Groups of channels, the layers that read them, and what is frozen with the reason.

    >>> import torch, entrim
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> graph = entrim.trace(net, torch.randn(3, 4))
    >>> graph.groups[0].name, graph.groups[0].channels, graph.consumers[0].layer
    ('0', 8, '2')
    """

    groups: tuple[Group, ...]
    consumers: tuple[ConsumerLayer, ...]
    frozen: tuple[Frozen, ...]
    shapes: Mapping[str, tuple[int, ...]]
    """The shape of every parameter and buffer of the network as it is."""

    def group(self, name: str) -> Group:
        """Return the group called `name`; KeyError when there is none."""
        for group in self.groups:
            if group.name == name:
                return group
        raise KeyError(name)

    def kept_indices(self, kept: Mapping[str, Sequence[int]]) -> dict[str, dict[int, list[int]]]:
        """Return, for every tensor that shrinks, the positions that stay along each dimension.

        Groups that `kept` does not name stay whole.
        """
        gone: dict[tuple[str, int], set[int]] = {}
        for group in self.groups:
            for unit in _removed(group, kept):
                for member in group.members:
                    place = gone.setdefault((member.tensor, member.dim), set())
                    place.update(member.indices[unit])
        stays: dict[str, dict[int, list[int]]] = {}
        for (tensor, dim), out in gone.items():
            if out:
                size = self.shapes[tensor][dim]
                stays.setdefault(tensor, {})[dim] = [i for i in range(size) if i not in out]
        return stays

    def attribute_deltas(self, kept: Mapping[str, Sequence[int]]) -> dict[tuple[str, str], int]:
        """Return by how much every (module, attribute) falls."""
        drops: dict[tuple[str, str], int] = {}
        for group in self.groups:
            gone = _removed(group, kept)
            for attribute in group.attributes:
                fall = sum(len(attribute.indices[unit]) for unit in gone)
                key = (attribute.module, attribute.name)
                drops[key] = drops.get(key, 0) + fall // attribute.step
        return {key: fall for key, fall in drops.items() if fall}

    def small_shape(self, tensor: str, kept: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
        """Return the shape that `tensor` has after the cut."""
        stays = self.kept_indices(kept).get(tensor, {})
        return tuple(
            len(stays[dim]) if dim in stays else size
            for dim, size in enumerate(self.shapes[tensor])
        )

    def freeze(self, names: Collection[str], reason: str) -> "ChannelGraph":
        """Return the graph with the groups called `names` frozen for `reason`."""
        frozen = tuple(
            Frozen(layer, group.channels, reason)
            for group in self.groups
            if group.name in names
            for layer in group.layers
        )
        sites = (
            replace(
                site,
                columns_per_channel={
                    name: columns
                    for name, columns in site.columns_per_channel.items()
                    if name not in names
                },
            )
            for site in self.consumers
        )
        return replace(
            self,
            groups=tuple(group for group in self.groups if group.name not in names),
            consumers=tuple(site for site in sites if site.columns_per_channel),
            frozen=self.frozen + frozen,
        )

    def __str__(self) -> str:
        sections = [
            ("group", "channels", "produced by", _group_rows(self)),
            ("site", "columns per channel", "intercept goes to", _site_rows(self)),
            ("frozen", "channels", "because", _frozen_rows(self)),
        ]
        return "\n\n".join(_table(*section) for section in sections if section[-1])


Row = tuple[str, str, str]


def _group_rows(graph: ChannelGraph) -> list[Row]:
    return [(g.name, str(g.channels), _shorten(g.layers)) for g in graph.groups]


def _site_rows(graph: ChannelGraph) -> list[Row]:
    return [
        (
            site.layer,
            ", ".join(
                f"{group}: {block or 'varies'}" for group, block in site.columns_per_channel.items()
            ),
            site.intercept_target or "nowhere",
        )
        for site in graph.consumers
    ]


def _frozen_rows(graph: ChannelGraph) -> list[Row]:
    return [(f.layer, str(f.channels), f.reason) for f in graph.frozen]


def _shorten(names: Sequence[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _table(first: str, second: str, third: str, rows: list[Row]) -> str:
    lines = [(first, second, third), *rows]
    widths = [max(len(line[column]) for line in lines) for column in (0, 1)]
    return "\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}".rstrip() for a, b, c in lines)


def _removed(group: Group, kept: Mapping[str, Sequence[int]]) -> list[int]:
    stay = set(kept.get(group.name, range(group.channels)))
    return [unit for unit in range(group.channels) if unit not in stay]
