"""Layers that read channels, as the exported network calls them: where, how, with which weights.

A layer is a linear map at every output position: `matrices` shows its weight as one matrix for each
group of the convolution, columns channel-major as in `Moments`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, fx

from entrim.calibration.conv_geometry import Geometry
from entrim.calibration.executor import Program
from entrim.graph.channel_graph import ChannelGraph, ConsumerLayer, Group
from entrim.graph.tracer import arguments_of

KeptIndices = Mapping[str, Mapping[int, Sequence[int]]]


@dataclass(frozen=True, slots=True)
class BoundConsumer:
    """One layer of the exported network that reads cuttable channels."""

    spec: ConsumerLayer
    geometry: Geometry
    call_sites: tuple[int, ...]
    """Where it is called; more than once when its weight is shared."""
    inputs: tuple[int, ...]
    """The places of what it reads there."""
    bias: str | None
    """Its bias in the state dict, if it has one."""
    shape: tuple[int, ...]
    """Of the weight."""

    @property
    def channels(self) -> int:
        """The channels that it reads, all groups of the convolution together."""
        return self.shape[self.spec.dim] * (1 if self.geometry.transposed else self.geometry.groups)

    @property
    def columns(self) -> int:
        """The columns of one matrix."""
        return self.channels // self.geometry.groups * math.prod(self.geometry.kernel)

    @property
    def outputs(self) -> int:
        """The channels that it puts out."""
        size = self.shape[1 - self.spec.dim]
        return size * (self.geometry.groups if self.geometry.transposed else 1)

    def matrices(self, weight: Tensor) -> Float[Tensor, "groups M n"]:
        """Return the weight of this layer, or of a narrower one, as matrices."""
        groups = self.geometry.groups
        if self.geometry.transposed:
            split = weight.unflatten(0, (groups, -1)).flatten(3)
            return split.transpose(1, 2).flatten(2)
        return weight.unflatten(0, (groups, -1)).flatten(2)

    def weight(self, matrices: Float[Tensor, "groups M n"]) -> Tensor:
        """Return the weight that `matrices` shows: the way back."""
        kernel = self.geometry.kernel
        split = matrices.unflatten(2, (-1, *kernel))
        if self.geometry.transposed:
            return split.transpose(1, 2).flatten(0, 1)
        return split.flatten(0, 1)

    def of_group(self, group: Group) -> list[Int[Tensor, "units block"]]:
        """Return the columns of every unit of `group`, for each matrix; -1 fills up short units."""
        found = [m.indices for m in group.members if self._is_input(m.tensor, m.dim)]
        kernel = math.prod(self.geometry.kernel)
        per_matrix = self.columns // kernel
        tables = []
        for number in range(self.geometry.groups):
            first = number * per_matrix if self.geometry.transposed else 0
            units = [
                [at - first for at in places if first <= at < first + per_matrix]
                for places in found[0]
            ]
            most = max(map(len, units))
            places = torch.tensor([unit + [-1] * (most - len(unit)) for unit in units])
            columns = places[:, :, None] * kernel + torch.arange(kernel)
            tables.append(torch.where(places[:, :, None] >= 0, columns, -1).flatten(1))
        return tables

    def reads_only(self, group: Group) -> bool:
        """Whether every column belongs to `group`."""
        return all(int((table >= 0).sum()) == self.columns for table in self.of_group(group))

    def merge_batch(self, x: Tensor) -> Tensor:
        """Return an input or output with a batch dimension; a layer may be called without one."""
        return x[None] if x.dim() == len(self.geometry.kernel) + 1 else x

    def _is_input(self, tensor: str, dim: int) -> bool:
        return (tensor, dim) == (self.spec.weight, self.spec.dim)

    def kept_channels(
        self, kept_indices: KeptIndices
    ) -> tuple[Int[Tensor, " D"], Int[Tensor, " M"]]:
        """Return the input and output channels that stay."""
        dim = self.spec.dim
        inputs, outputs = (
            torch.tensor(list(kept_indices.get(self.spec.weight, {}).get(d, range(self.shape[d]))))
            for d in (dim, 1 - dim)
        )
        copies = torch.arange(self.geometry.groups)[:, None]
        if self.geometry.transposed:
            return inputs, (copies * self.shape[1 - dim] + outputs).flatten()
        return (copies * self.shape[dim] + inputs).flatten(), outputs


def bind_consumers(program: Program, graph: ChannelGraph) -> dict[str, BoundConsumer]:
    """Return the reader at every site of `graph` that `program` calls, by the name of its layer.

    Left out is a weight that is called in several ways, with two dilations for example: its calls
    have no common patches.
    """
    sites = {site.weight: site for site in graph.consumers}
    found: dict[str, BoundConsumer] = {}
    mixed: set[str] = set()
    for place, node in enumerate(program.nodes):
        call = arguments_of(node) if node.op == "call_function" else {}
        weight = _name(program, call.get("weight"))
        if weight not in sites or not isinstance(call.get("input"), fx.Node):
            continue
        site, source = sites[weight], program.place[call["input"]]
        shape = graph.shapes[weight]
        geometry, bias = _geometry(node, call, shape), _name(program, call.get("bias"))
        reader = BoundConsumer(site, geometry, (place,), (source,), bias, shape)
        known = found.setdefault(site.layer, reader)
        if known.geometry != geometry:
            mixed.add(site.layer)
        elif known is not reader:
            places, inputs = (*known.call_sites, place), (*known.inputs, source)
            found[site.layer] = replace(known, call_sites=places, inputs=inputs)
    return {layer: reader for layer, reader in found.items() if layer not in mixed}


def _name(program: Program, node: object) -> str | None:
    return program.names.get(node) if isinstance(node, fx.Node) else None


def _geometry(node: fx.Node, call: Mapping[str, object], shape: tuple[int, ...]) -> Geometry:
    kernel = shape[2:]
    if not kernel and "stride" not in call:
        return Geometry(kernel=(), stride=(), dilation=(), padding=())
    rank = len(kernel)
    stride, dilation = (_broadcast(call[name], rank) for name in ("stride", "dilation"))
    transposed = "transpose" in str(node.target)
    return Geometry(
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        padding=_padding(call["padding"], kernel, dilation),
        groups=int(str(call["groups"])),
        transposed=transposed,
        output_padding=_broadcast(call.get("output_padding") or 0, rank) if transposed else (),
    )


def _padding(
    padding: object, kernel: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    if padding == "valid":
        return tuple((0, 0) for _ in kernel)
    if padding == "same":
        totals = [step * (size - 1) for size, step in zip(kernel, dilation, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)
    return tuple((size, size) for size in _broadcast(padding, len(kernel)))


def _broadcast(value: object, rank: int) -> tuple[int, ...]:
    """Return one number for each axis; a single one holds for all."""
    sizes = [int(size) for size in value] if isinstance(value, Sequence) else [int(str(value))]
    return tuple(sizes * rank if len(sizes) == 1 else sizes)
