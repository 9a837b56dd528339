"""Pruning by another method: the original, with zeros as the inputs from removed channels."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from entrim.errors import PlanError
from entrim.graph.channel_graph import ChannelGraph
from entrim.graph.eager import ExampleInputs, arguments
from entrim.surgery.plan import Plan


def random_plan(graph: ChannelGraph, seed: int) -> Plan:
    """Return a plan that keeps a random, non-empty part of every group."""
    draw = random.Random(seed)
    while True:
        plan = Plan({group.name: _some(draw, group.channels) for group in graph.groups})
        try:
            plan.validate(graph)
        except PlanError:
            continue
        return plan


def _some(draw: random.Random, channels: int) -> list[int]:
    return sorted(draw.sample(range(channels), draw.randint(1, channels)))


def outputs(model: nn.Module, example_inputs: ExampleInputs) -> list[Tensor]:
    """Return the outputs of `model` in eval mode, in double precision."""
    model = model.eval().double()
    args, kwargs = pytree.tree_map_only(
        Tensor, lambda t: t.double() if t.is_floating_point() else t, arguments(example_inputs)
    )
    args, kwargs = pytree.tree_map_only(Tensor, torch.clone, (args, kwargs))
    with torch.no_grad():
        return flat(model(*args, **kwargs))


def flat(output: Any) -> list[Tensor]:
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, list | tuple):
        return [leaf for part in output for leaf in flat(part)]
    return [torch.as_tensor(output)] if output is not None else []


def masked_outputs(
    model: nn.Module,
    graph: ChannelGraph,
    kept: Mapping[str, Sequence[int]],
    example_inputs: ExampleInputs,
) -> list[Tensor]:
    """Return the outputs of the original when the *inputs* from removed channels are zero.

    Activations are masked here, by hooks on the layers; `entrim` itself masks weights. The
    statistics of normalizations over channels are computed here from the kept ones.
    """
    hooks = _restrict_norms(model, graph, kept)
    for site in graph.consumers:
        removed = sorted(
            position
            for group in graph.groups
            for member in group.members
            if (member.tensor, member.dim) == (site.weight, site.dim)
            for unit, positions in enumerate(member.indices)
            if unit not in kept.get(group.name, range(group.channels))
            for position in positions
        )
        weight = dict(model.named_parameters())[site.weight]
        layers = [m for m in model.modules() if getattr(m, "weight", None) is weight]
        hooks += [layer.register_forward_pre_hook(_mask_inputs(layer, removed)) for layer in layers]
        if not layers:
            index = torch.tensor(removed, dtype=torch.int64)
            weight.data.index_fill_(site.dim, index, 0)
    try:
        return outputs(model, example_inputs)
    finally:
        for hook in hooks:
            hook.remove()


def _restrict_norms(
    model: nn.Module, graph: ChannelGraph, kept: Mapping[str, Sequence[int]]
) -> list[Any]:
    hooks = []
    parameters = dict(model.named_parameters())
    for name in graph.norms:
        removed = {
            position
            for group in graph.groups
            for member in group.members
            if (member.tensor, member.dim) == (name, 0)
            for unit, positions in enumerate(member.indices)
            if unit not in kept.get(group.name, range(group.channels))
            for position in positions
        }
        stay = torch.tensor([i for i in range(len(parameters[name])) if i not in removed])
        hooks += [
            module.register_forward_hook(_normalize(stay))
            for module in model.modules()
            if getattr(module, "weight", None) is parameters[name]
        ]
    return hooks


def _normalize(stay: Tensor) -> Callable[..., Tensor]:
    """Return a hook that normalizes with the statistics of the channels in `stay`."""

    def normalize(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        norm: Any = layer
        first = getattr(layer, "data_format", None) == "channels_first"
        axis = 1 if first or isinstance(layer, nn.GroupNorm) else -1
        x = inputs[0].movedim(axis, -1)
        over = tuple(range(1, x.dim())) if isinstance(layer, nn.GroupNorm) else (-1,)
        some = x[..., stay]
        if not isinstance(layer, nn.RMSNorm):
            x = x - some.mean(over, keepdim=True)
            some = x[..., stay]
        eps = torch.finfo(x.dtype).eps if norm.eps is None else norm.eps
        y = x / (some.square().mean(over, keepdim=True) + eps).sqrt() * norm.weight
        bias = getattr(norm, "bias", None)
        return (y if bias is None else y + bias).movedim(-1, axis).contiguous()

    return normalize


def _mask_inputs(layer: nn.Module, removed: list[int]) -> Callable[..., Any]:
    groups = int(getattr(layer, "groups", 1))
    transposed = bool(getattr(layer, "transposed", False))
    axis = -1 if isinstance(layer, nn.Linear) else 1 - cast("Tensor", layer.weight).dim()

    def mask(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x = inputs[0].clone()
        width = x.shape[axis] // groups
        places = (
            removed
            if transposed or axis == -1
            else [group * width + place for group in range(groups) for place in removed]
        )
        return (x.index_fill(axis, torch.tensor(places, dtype=torch.int64), 0), *inputs[1:])

    return mask


def distance(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest difference relative to the largest expected value, over all outputs."""
    assert [leaf.shape for leaf in found] == [leaf.shape for leaf in expected]
    gaps = [
        float((a - b).abs().max() / b.abs().max().clamp_min(1e-30))
        for a, b in zip(found, expected, strict=True)
        if a.numel()
    ]
    return max(gaps)
