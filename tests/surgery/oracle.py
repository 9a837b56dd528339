"""The tests' own idea of a cut: the original, whose layers are shown zeros for what is gone."""

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


def outputs(model: nn.Module, example: ExampleInputs) -> list[Tensor]:
    """Return the tensors that `model` puts out in eval mode, in double precision."""
    model = model.eval().double()
    args, kwargs = pytree.tree_map_only(
        Tensor, lambda t: t.double() if t.is_floating_point() else t, arguments(example)
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
    model: nn.Module, graph: ChannelGraph, kept: Mapping[str, Sequence[int]], example: ExampleInputs
) -> list[Tensor]:
    """Return what the original puts out when the *inputs* of its layers are zero where cut.

    Activations are masked here, by hooks on the layers; `entrim` itself zeroes weights.
    """
    hooks = []
    for site in graph.consumers:
        gone = sorted(
            position
            for group in graph.groups
            for member in group.members
            if (member.tensor, member.dim) == (site.weight, site.dim)
            for unit, positions in enumerate(member.indices)
            if unit not in kept.get(group.name, range(group.channels))
            for position in positions
        )
        weight = dict(model.named_parameters())[site.weight]
        readers = [m for m in model.modules() if getattr(m, "weight", None) is weight]
        hooks += [layer.register_forward_pre_hook(_hiding(layer, gone)) for layer in readers]
        if not readers:
            index = torch.tensor(gone, dtype=torch.int64)
            weight.data.index_fill_(site.dim, index, 0)
    try:
        return outputs(model, example)
    finally:
        for hook in hooks:
            hook.remove()


def _hiding(layer: nn.Module, gone: list[int]) -> Callable[..., Any]:
    groups = int(getattr(layer, "groups", 1))
    transposed = bool(getattr(layer, "transposed", False))
    axis = -1 if isinstance(layer, nn.Linear) else 1 - cast("Tensor", layer.weight).dim()

    def hide(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x = inputs[0].clone()
        width = x.shape[axis] // groups
        places = (
            gone
            if transposed or axis == -1
            else [group * width + place for group in range(groups) for place in gone]
        )
        return (x.index_fill(axis, torch.tensor(places, dtype=torch.int64), 0), *inputs[1:])

    return hide


def distance(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """Return the largest difference relative to the largest wanted value, over all outputs."""
    assert [leaf.shape for leaf in found] == [leaf.shape for leaf in wanted]
    gaps = [
        float((a - b).abs().max() / b.abs().max().clamp_min(1e-30))
        for a, b in zip(found, wanted, strict=True)
        if a.numel()
    ]
    return max(gaps)
