"""Layers that consume channels, bound to their calls in the exported network.

A layer is a linear map at every output position: `matrices` returns its weight as one matrix for
each group of the convolution, with columns in channel-major order as in `Moments`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, fx

from entrim.calibration.executor import Program
from entrim.calibration.patch_gram import Geometry
from entrim.graph.channel_graph import ChannelGraph, ConsumerLayer, Group
from entrim.graph.tracer import arguments_of

KeptIndices = Mapping[str, Mapping[int, Sequence[int]]]


@dataclass(frozen=True, slots=True)
class BoundConsumer:
    """One layer of the exported network that consumes prunable channels."""

    spec: ConsumerLayer
    geometry: Geometry
    call_sites: tuple[int, ...]
    """Positions of its calls; several if the weight is shared."""
    inputs: tuple[int, ...]
    """Positions of its inputs, one per call."""
    bias: str | None
    """Name of the bias, if there is one."""
    shape: tuple[int, ...]
    """Shape of the weight."""

    @property
    def channels(self) -> int:
        """Number of input channels, over all groups of the convolution."""
        return self.shape[self.spec.dim] * (1 if self.geometry.transposed else self.geometry.groups)

    @property
    def columns(self) -> int:
        """Number of columns of one matrix."""
        return self.channels // self.geometry.groups * math.prod(self.geometry.kernel)

    @property
    def outputs(self) -> int:
        """Number of output channels."""
        size = self.shape[1 - self.spec.dim]
        return size * (self.geometry.groups if self.geometry.transposed else 1)

    def matrices(self, weight: Tensor) -> Float[Tensor, "groups M n"]:
        """Return the weight of this layer, or of its pruned version, as matrices."""
        groups = self.geometry.groups
        if self.geometry.transposed:
            split = weight.unflatten(0, (groups, -1)).flatten(3)
            return split.transpose(1, 2).flatten(2)
        return weight.unflatten(0, (groups, -1)).flatten(2)

    def weight(self, matrices: Float[Tensor, "groups M n"]) -> Tensor:
        """Return the weight of these `matrices`: the inverse of `matrices`."""
        kernel = self.geometry.kernel
        split = matrices.unflatten(2, (-1, *kernel))
        if self.geometry.transposed:
            return split.transpose(1, 2).flatten(0, 1)
        return split.flatten(0, 1)

    def of_group(self, group: Group) -> list[Int[Tensor, "units block"]]:
        """Return the columns of each channel of `group`, for each matrix, padded with -1."""
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

    def batch_first(self, x: Tensor, images: int) -> Tensor:
        """Return an input or output on `images` images with the images in the first dimension.

        Unbatched calls lack this dimension. For a linear layer, other dimensions are positions:
        the images may be one of them, or be merged with the first.
        """
        if x.dim() == len(self.geometry.kernel) + 1:
            return x[None]
        if self.geometry.kernel or len(x) == images:
            return x
        fitting = [axis for axis in range(1, x.dim() - 1) if x.shape[axis] == images]
        if fitting:
            return x.movedim(fitting[0], 0)
        return x.unflatten(0, (images, -1)) if len(x) % images == 0 else x

    def n_positions(self, x: Tensor) -> int:
        """Return the number of output positions per image for the input `x`."""
        rank = len(self.geometry.kernel)
        return self.geometry.outputs(tuple(x.shape[2:]) if rank else (math.prod(x.shape[1:-1]),))

    def _is_input(self, tensor: str, dim: int) -> bool:
        return (tensor, dim) == (self.spec.weight, self.spec.dim)

    def kept_channels(
        self, kept_indices: KeptIndices
    ) -> tuple[Int[Tensor, " D"], Int[Tensor, " M"]]:
        """Return the kept input and output channels."""
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
    """Return the consumers of `graph` that `program` calls, by name of the layer.

    Weights that are called with different geometries, such as two dilations, are excluded, because
    their calls have no common patches.
    """
    layers = {layer.weight: layer for layer in graph.consumers}
    found: dict[str, BoundConsumer] = {}
    mixed: set[str] = set()
    for place, node in enumerate(program.nodes):
        call = arguments_of(node) if node.op == "call_function" else {}
        weight = _name(program, call.get("weight"))
        if weight not in layers or not isinstance(call.get("input"), fx.Node):
            continue
        spec, source = layers[weight], program.place[call["input"]]
        shape = graph.shapes[weight]
        geometry, bias = _geometry(node, call, shape), _name(program, call.get("bias"))
        consumer = BoundConsumer(spec, geometry, (place,), (source,), bias, shape)
        first = found.setdefault(spec.layer, consumer)
        if first.geometry != geometry:
            mixed.add(spec.layer)
        elif first is not consumer:
            places, inputs = (*first.call_sites, place), (*first.inputs, source)
            found[spec.layer] = replace(first, call_sites=places, inputs=inputs)
    return {layer: consumer for layer, consumer in found.items() if layer not in mixed}


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
    """Return one number per axis; a single number applies to all."""
    sizes = [int(size) for size in value] if isinstance(value, Sequence) else [int(str(value))]
    return tuple(sizes * rank if len(sizes) == 1 else sizes)
