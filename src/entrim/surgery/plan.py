"""Plans: kept channels and new weights as plain data; parts of tensors at kept positions."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from entrim.errors import PlanError
from entrim.graph.channel_graph import ChannelGraph

FORMAT = 2
"""The format of plans with removed blocks; others are written in the first."""
Dims = Mapping[int, Sequence[int]]
"""Kept positions, for every dimension that shrinks."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The kept channels of every group, and new tensors for the pruned network.

    Parameters
    ----------
    kept : dict
        `{group: channels}` in ascending order. Other groups keep all channels.
    weights : dict, optional
        Tensors by name in the state dict, in the shapes of the pruned network.
    removed_blocks : sequence of str, optional
        Residual blocks that are replaced by an identity, by the name of their module.

    Examples
    --------
    >>> import entrim
    >>> plan = entrim.Plan({"conv1": [0, 2, 5]})
    >>> entrim.Plan.from_json(plan.to_json()).kept
    {'conv1': (0, 2, 5)}
    """

    kept: Mapping[str, Sequence[int]]
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    removed_blocks: Sequence[str] = ()

    def __repr__(self) -> str:
        return f"<Plan for {len(self.kept)} groups, with {len(self.weights)} new tensors>"

    def __post_init__(self) -> None:
        kept = {name: _ascending(name, units) for name, units in self.kept.items()}
        object.__setattr__(self, "kept", kept)
        object.__setattr__(self, "weights", dict(self.weights))
        object.__setattr__(self, "removed_blocks", _names_of(self.removed_blocks))

    def validate(self, graph: ChannelGraph, min_channels: int = 1) -> None:
        """Raise a PlanError if the plan does not fit `graph`."""
        if min_channels < 1:
            raise PlanError(f"min_channels must be a positive integer, got {min_channels}")
        _check_removed_blocks(graph, self)
        for name, units in self.kept.items():
            _check_group(graph, name, units)
        _check_min_channels(graph, self, min_channels)
        for name, tensor in self.weights.items():
            _check_weight(graph, self, name, tensor)

    def to_json(self) -> str:
        """Return the kept channels and removed blocks as JSON, without the weights."""
        if not self.removed_blocks:
            return json.dumps({"format": 1, "kept": self.kept})
        removed = list(self.removed_blocks)
        return json.dumps({"format": FORMAT, "kept": self.kept, "removed_blocks": removed})

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Return the plan written by `to_json`; raise a PlanError for other data."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise PlanError(f"the plan is not JSON ({error}): write it with to_json()") from error
        return cls(_kept_of(data), removed_blocks=data.get("removed_blocks", ()))


def _ascending(name: str, units: Sequence[int]) -> tuple[int, ...]:
    numbers = tuple(int(unit) for unit in units)
    if any(a >= b for a, b in pairwise(numbers)):
        raise PlanError(
            f"the kept channels of {name} must be ascending and unique: pass sorted(set(...))"
        )
    return numbers


def _names_of(blocks: Any) -> tuple[str, ...]:
    is_list = isinstance(blocks, Sequence) and not isinstance(blocks, str)
    if not is_list or not all(isinstance(name, str) for name in blocks):
        raise PlanError(f"removed_blocks must be a list of names of modules, got {blocks!r}")
    return tuple(dict.fromkeys(blocks))


def _check_removed_blocks(graph: ChannelGraph, plan: Plan) -> None:
    for name in plan.removed_blocks:
        blocks = {block.name: block for block in graph.blocks}
        if name not in blocks:
            known = ", ".join(blocks) or "none"
            raise PlanError(
                f"{name!r} is not a residual block x + f(x) that can be removed: choose among "
                f"those of trace() ({known})"
            )
        inside = [group for group in blocks[name].groups if group in plan.kept]
        inside += [tensor for tensor in blocks[name].tensors if tensor in plan.weights]
        if inside:
            raise PlanError(
                f"the plan removes the block {name} and also changes {inside[0]} inside of it: "
                "leave one of them out"
            )


def _check_group(graph: ChannelGraph, name: str, units: Sequence[int]) -> None:
    known = {group.name: group.channels for group in graph.groups}
    if name not in known:
        raise PlanError(f"there is no group {name!r} to prune: {_why_not(graph, name)}")
    outside = [unit for unit in units if not 0 <= unit < known[name]]
    if outside:
        raise PlanError(f"group {name} has channels 0 to {known[name] - 1}, not {outside[0]}")
    if not units:
        raise PlanError(
            f"the plan keeps no channel of group {name}: keep at least one of its {known[name]} "
            "channels, or remove the layer from the network"
        )


def _check_min_channels(graph: ChannelGraph, plan: Plan, min_channels: int) -> None:
    for tensor, dims in graph.kept_indices(plan.kept).items():
        for dim, stay in dims.items():
            if len(stay) < min(min_channels, graph.shapes[tensor][dim]):
                raise PlanError(
                    f"{len(stay)} channels along dimension {dim} of {tensor} are below "
                    f"min_channels={min_channels}: keep more channels in its groups"
                    + (", or lower min_channels" if stay else "")
                )


def _why_not(graph: ChannelGraph, name: str) -> str:
    for frozen in graph.frozen:
        if frozen.layer == name:
            return f"it is frozen, because {frozen.reason}"
    for group in graph.groups:
        if name in group.layers:
            return f"{name} is part of group {group.name!r}"
    return "the groups are " + ", ".join(repr(group.name) for group in graph.groups)


def _check_weight(graph: ChannelGraph, plan: Plan, name: str, tensor: Tensor) -> None:
    if name not in graph.shapes:
        raise PlanError(f"the network has no tensor {name!r}: use the names of its state_dict()")
    shape = graph.small_shape(name, plan.kept)
    if tuple(tensor.shape) != shape:
        raise PlanError(
            f"the new {name} has shape {tuple(tensor.shape)}, the smaller network needs {shape}: "
            "keep only the columns and rows of the kept channels"
        )
    if not bool(torch.isfinite(tensor).all()):
        raise PlanError(f"the new {name} contains NaN or infinity: solve the layer again")


def _kept_of(data: Any) -> dict[str, Sequence[int]]:
    if not isinstance(data, dict) or not isinstance(data.get("format"), int):
        raise PlanError('the plan has no "format": write it with to_json()')
    if data["format"] > FORMAT:
        raise PlanError(
            f"the plan has format {data['format']}, above {FORMAT} of this version: update entrim"
        )
    unknown = sorted(set(data) - {"format", "kept", "removed_blocks"})
    if unknown:
        raise PlanError(f"the plan has unknown keys {unknown}: remove them, or update entrim")
    kept = data.get("kept")
    if not isinstance(kept, dict) or not all(_is_units(units) for units in kept.values()):
        raise PlanError('"kept" must map the name of a group to a list of channel numbers')
    return kept


def _is_units(units: Any) -> bool:
    return isinstance(units, list) and all(type(unit) is int for unit in units)


def part_of(tensor: Tensor, dims: Dims) -> Tensor:
    """Return the kept part of `tensor`."""
    for dim, positions in dims.items():
        tensor = tensor.index_select(dim, torch.tensor(positions, device=tensor.device))
    return tensor


def write_part(tensor: Tensor, dims: Dims, part: Tensor) -> None:
    """Write `part` to the kept positions of `tensor`."""
    where = [
        torch.tensor(dims.get(dim, range(size)), device=tensor.device)
        for dim, size in enumerate(tensor.shape)
    ]
    tensor[torch.meshgrid(*where, indexing="ij") if where else ...] = part.to(tensor)


def zero_removed(tensor: Tensor, dim: int, dims: Dims) -> None:
    """Set the removed positions along `dim` to zero."""
    kept = dims.get(dim, range(tensor.shape[dim]))
    removed = sorted(set(range(tensor.shape[dim])).difference(kept))
    tensor.index_fill_(dim, torch.tensor(removed, device=tensor.device).long(), 0)
