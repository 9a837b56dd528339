"""The channel graph: groups of coupled channels, their consumers, and frozen channels."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

Indices = tuple[tuple[int, ...], ...]
"""For each channel of a group, its positions along one dimension."""


@dataclass(frozen=True, slots=True)
class Member:
    """One dimension of a parameter or buffer that contains channels of a group."""

    tensor: str
    """Name in the state dict (of a non-persistent buffer: in `named_buffers`)."""
    dim: int
    indices: Indices


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of a module, such as `out_channels`, that depends on the width of a group."""

    module: str
    name: str
    """Its name, or the path of an item of it, such as `normalized_shape.0`."""
    indices: Indices
    step: int = 1
    """The attribute decreases by one for every `step` removed positions."""
    is_guess: bool = False
    """Whether its name and value show what it counts, not the rule of a layer."""


@dataclass(frozen=True, slots=True)
class Group:
    """Coupled channels: one selection applies to all members."""

    name: str
    """Name of the first layer that produces the channels."""
    channels: int
    """Number of channels that can be removed independently."""
    members: tuple[Member, ...]
    attributes: tuple[Attribute, ...]
    layers: tuple[str, ...]
    """All layers that produce the channels."""

    @property
    def slices(self) -> list[set[int]]:
        """The channels in each member tensor; one may contain a part of the group only."""
        found = [{unit for unit, at in enumerate(m.indices) if at} for m in self.members]
        return [units for units in found if units]

    def matches(self, pattern: str) -> bool:
        """Whether `pattern` matches the name of the group or of a layer that produces it."""
        return any(fnmatchcase(name, pattern) for name in (self.name, *self.layers))


@dataclass(frozen=True, slots=True)
class ConsumerLayer:
    """A layer that consumes prunable channels; each is one regression problem."""

    layer: str
    weight: str
    dim: int
    """The dimension of the weight that corresponds to the inputs."""
    columns_per_channel: Mapping[str, int | None]
    """For each consumed group, the columns per channel (k*k for a k x k convolution, H*W for a
    linear layer after a flatten); None if channels differ in their number of columns."""
    intercept_target: str | None
    """The tensor of an intercept: "bias", "batchnorm:<running mean>", or None."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """Channels of a layer that cannot be pruned, and the reason."""

    layer: str
    channels: int
    reason: str


@dataclass(frozen=True, slots=True)
class ResidualBlock:
    """A module that computes x + f(x), possibly with an activation that leaves x unchanged."""

    name: str
    """Name of the module."""
    tensors: tuple[str, ...]
    """Its parameters and buffers."""
    zeroed: tuple[str, ...]
    """Parameters of the last layer of f: f is zero if they are."""
    groups: tuple[str, ...] = ()
    """Groups all of whose channels are inside of f."""


@dataclass(frozen=True, slots=True)
class ChannelGraph:
    """Groups of coupled channels, the layers that consume them, and frozen channels.

    Attributes
    ----------
    groups : tuple of Group
        Channels that must be removed together.
    consumers : tuple of ConsumerLayer
        Layers that consume channels of the groups.
    frozen : tuple of Frozen
        Channels that cannot be pruned, with the reason.
    shapes : dict
        Shape of every parameter and buffer of the network.
    blocks : tuple of ResidualBlock
        Residual blocks that can be replaced by an identity.
    norms : dict
        Weight -> layer of every normalization over prunable channels, such as a LayerNorm. Its
        statistics change: in the pruned network they are those of the kept channels.
    products : dict
        Group -> MACs per image of products of activations, for each channel: those of one head
        of an attention.

    Examples
    --------
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
    blocks: tuple[ResidualBlock, ...] = ()
    norms: Mapping[str, str] = field(default_factory=dict)
    products: Mapping[str, float] = field(default_factory=dict)

    def restricted_norms(self, kept: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
        """Return, by weight, the kept channels of every normalization that loses channels."""
        indices = self.kept_indices(kept)
        return {weight: indices[weight][0] for weight in self.norms if weight in indices}

    def block(self, name: str) -> ResidualBlock:
        """Return the residual block called `name`; raise a KeyError if there is none."""
        for block in self.blocks:
            if block.name == name:
                return block
        raise KeyError(name)

    def blocks_within(self, names: Collection[str]) -> list[ResidualBlock]:
        """Return the residual blocks whose inner groups are all in `names`."""
        return [b for b in self.blocks if b.groups and set(b.groups) <= set(names)]

    def emptied_blocks(self, widths: Mapping[str, int]) -> tuple[str, ...]:
        """Return the residual blocks whose inner groups all have the width 0."""
        return tuple(
            block.name
            for block in self.blocks
            if block.groups and all(widths.get(name) == 0 for name in block.groups)
        )

    def group(self, name: str) -> Group:
        """Return the group called `name`; raise a KeyError if there is none."""
        for group in self.groups:
            if group.name == name:
                return group
        raise KeyError(name)

    def kept_indices(self, kept: Mapping[str, Sequence[int]]) -> dict[str, dict[int, list[int]]]:
        """Return, for every tensor that shrinks, the kept positions along each dimension.

        Groups that are not in `kept` keep all channels.
        """
        removed: dict[tuple[str, int], set[int]] = {}
        for group in self.groups:
            for channel in _removed(group, kept):
                for member in group.members:
                    positions = removed.setdefault((member.tensor, member.dim), set())
                    positions.update(member.indices[channel])
        indices: dict[str, dict[int, list[int]]] = {}
        for (tensor, dim), positions in removed.items():
            if positions:
                size = self.shapes[tensor][dim]
                indices.setdefault(tensor, {})[dim] = [i for i in range(size) if i not in positions]
        return indices

    def attribute_deltas(self, kept: Mapping[str, Sequence[int]]) -> dict[tuple[str, str], int]:
        """Return by how much every (module, attribute) decreases."""
        deltas: dict[tuple[str, str], int] = {}
        for group in self.groups:
            removed = _removed(group, kept)
            for attribute in group.attributes:
                count = sum(len(attribute.indices[channel]) for channel in removed)
                key = (attribute.module, attribute.name)
                deltas[key] = deltas.get(key, 0) + count // attribute.step
        return {key: delta for key, delta in deltas.items() if delta}

    def without_guesses(self, names: Collection[str]) -> "ChannelGraph":
        """Return the graph without the guessed attributes of the groups called `names`."""
        groups = (
            replace(g, attributes=tuple(a for a in g.attributes if not a.is_guess))
            if g.name in names
            else g
            for g in self.groups
        )
        return replace(self, groups=tuple(groups))

    def small_shape(self, tensor: str, kept: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
        """Return the shape of `tensor` after pruning to `kept`."""
        indices = self.kept_indices(kept).get(tensor, {})
        return tuple(
            len(indices[dim]) if dim in indices else size
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
        consumers = (
            replace(
                consumer,
                columns_per_channel={
                    name: columns
                    for name, columns in consumer.columns_per_channel.items()
                    if name not in names
                },
            )
            for consumer in self.consumers
        )
        groups = tuple(group for group in self.groups if group.name not in names)
        touched = {member.tensor for group in groups for member in group.members}
        return replace(
            self,
            groups=groups,
            consumers=tuple(layer for layer in consumers if layer.columns_per_channel),
            frozen=self.frozen + frozen,
            norms={weight: layer for weight, layer in self.norms.items() if weight in touched},
        )

    def __repr__(self) -> str:
        return (
            f"<ChannelGraph of {len(self.groups)} groups, {len(self.consumers)} layers that read "
            "them: print it for a table>"
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the table in IPython and notebooks."""
        printer.text(str(self))

    def __str__(self) -> str:
        sections = [
            ("group", "channels", "produced by", _group_rows(self)),
            ("layer", "columns per channel", "intercept goes to", _consumer_rows(self)),
            ("frozen", "channels", "because", _frozen_rows(self)),
            ("block", "groups", "can be replaced by", _block_rows(self)),
            ("normalization", "channels", "of which the kept ones give", _norm_rows(self)),
        ]
        return "\n\n".join(_table(*section) for section in sections if section[-1])


def is_inside(name: str, module: str) -> bool:
    """Whether a tensor or module called `name` belongs to `module`."""
    return name.startswith(f"{module}.")


def tensors_in(blocks: Iterable[ResidualBlock]) -> set[str]:
    """Return the tensors of all `blocks`."""
    return {name for block in blocks for name in block.tensors}


Row = tuple[str, str, str]


def _group_rows(graph: ChannelGraph) -> list[Row]:
    return [(g.name, str(g.channels), _shorten(g.layers)) for g in graph.groups]


def _consumer_rows(graph: ChannelGraph) -> list[Row]:
    return [
        (
            layer.layer,
            ", ".join(
                f"{group}: {columns or 'varies'}"
                for group, columns in layer.columns_per_channel.items()
            ),
            layer.intercept_target or "nowhere",
        )
        for layer in graph.consumers
    ]


def _frozen_rows(graph: ChannelGraph) -> list[Row]:
    return [(f.layer, str(f.channels), f.reason) for f in graph.frozen]


def _block_rows(graph: ChannelGraph) -> list[Row]:
    return [(b.name, str(len(b.groups)), "an identity") for b in graph.blocks]


def _norm_rows(graph: ChannelGraph) -> list[Row]:
    return [
        (layer, str(graph.shapes[weight][0]), "its statistics")
        for weight, layer in graph.norms.items()
    ]


def _shorten(names: Sequence[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _table(first: str, second: str, third: str, rows: list[Row]) -> str:
    lines = [(first, second, third), *rows]
    widths = [max(len(line[column]) for line in lines) for column in (0, 1)]
    return "\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}".rstrip() for a, b, c in lines)


def _removed(group: Group, kept: Mapping[str, Sequence[int]]) -> list[int]:
    own = set(kept.get(group.name, range(group.channels)))
    return [channel for channel in range(group.channels) if channel not in own]
