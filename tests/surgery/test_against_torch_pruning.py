"""torch-pruning removes the same channels: where both apply they must agree."""

import copy
import functools
import warnings
from importlib.metadata import version
from typing import Any

import pytest
import torch
from torch import nn

from entrim.graph.channel_graph import ChannelGraph, Group
from entrim.graph.eager import ExampleInputs
from entrim.surgery.trace import trace
from tests.surgery.kinds import KINDS, shaken
from tests.surgery.oracle import distance, masked_outputs, outputs

tp = pytest.importorskip("torch_pruning")

DOCUMENTED = "1.6.1"
BREAKS = {
    "grouped and transposed": "does not couple the groups of a transposed convolution",
    "depthwise with a multiplier": "removes the one input column that each of its kernels has",
    "InstanceNorm": "does not prune its running statistics",
    "GroupNorm": "leaves num_groups as it was",
    "a GroupNorm without parameters, used twice": "leaves num_groups as it was",
    "RMSNorm, shared by two calls": "leaves normalized_shape as it was",
    "LayerNorm over positions": "prunes the parameters that belong to positions",
    "concat": "counts wrongly where the input of the network is concatenated too",
    "concat of positions": "treats it as a concatenation of channels",
    "chunk": "does not know tensor_split",
    "slice": "does not follow slices of channels",
    "uneven slices": "does not follow slices of channels",
    "pixel shuffle": "removes as many channels behind it as before it",
    "padded shortcut": "does not follow padding",
    "functional convolution": "prunes the kernel instead of its channels",
    "attention": "leaves num_heads as it was",
    "attention with a bias for each head": "leaves num_heads as it was",
    "attention by products": "leaves num_heads as it was",
    "attention by products with a bias": "leaves num_heads as it was",
    "dict in, dict out": "refuses outputs that are not tensors, such as None",
    "frozen parameters": "finds no layer",
}
"""Pruning raises, or the smaller network does not run."""
SILENTLY_WRONG = {
    "Linear behind an NHWC Flatten": "removes the columns of an NCHW Flatten",
    "permute and flip": "ignores the flip",
    "channel shuffle": "ignores the shuffle",
}
"""The smaller network runs and computes something else."""

NAMES = [name for name, kind in KINDS.items() if any(g != "kernel" for g in kind.groups)]


def first_channels(layer: Any, graph: ChannelGraph, group: Group) -> list[int]:
    """Return the outputs of `layer` that go with the first unit of `group`."""
    dim = 1 if getattr(layer, "transposed", False) else 0
    (member,) = (m for m in group.members if (m.tensor, m.dim) == (f"{group.name}.weight", dim))
    copies = layer.groups if dim == 1 else 1
    width = graph.shapes[member.tensor][dim]
    return [copy * width + place for copy in range(copies) for place in member.indices[0]]


def compare(
    model: nn.Module, graph: ChannelGraph, group: Group, example_inputs: ExampleInputs
) -> str:
    """Return how torch-pruning removes the first unit of `group`: agrees, wrong or breaks."""
    expected = masked_outputs(
        copy.deepcopy(model), graph, {group.name: range(1, group.channels)}, example_inputs
    )
    theirs = copy.deepcopy(model)
    layer = theirs.get_submodule(group.name)
    linear = isinstance(layer, nn.Linear)
    prune = tp.prune_linear_out_channels if linear else tp.prune_conv_out_channels
    try:
        dependencies = tp.DependencyGraph().build_dependency(theirs, example_inputs=example_inputs)
        channels = first_channels(layer, graph, group)
        dependencies.get_pruning_group(layer, prune, idxs=channels).prune()
        found = outputs(theirs, example_inputs)
    except (RuntimeError, ValueError, TypeError):
        return "breaks"
    return "agrees" if distance(found, expected) < 1e-6 else "wrong"


@functools.cache
def comparisons(name: str) -> frozenset[str]:
    torch.manual_seed(0)
    model, example = shaken(KINDS[name].build()).eval(), KINDS[name].example_inputs()
    graph = trace(model, example)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return frozenset(
            compare(model, graph, group, example)
            for group in graph.groups
            if group.name in dict(model.named_modules())
        )


@pytest.mark.parametrize("name", [n for n in NAMES if n not in BREAKS and n not in SILENTLY_WRONG])
def test_both_produce_the_same_network(name: str) -> None:
    assert comparisons(name) == {"agrees"}


@pytest.mark.skipif(version("torch-pruning") != DOCUMENTED, reason=f"documented for {DOCUMENTED}")
@pytest.mark.parametrize("name", [*BREAKS, *SILENTLY_WRONG])
def test_the_differences_to_torch_pruning_are_documented(name: str) -> None:
    assert ("breaks" if name in BREAKS else "wrong") in comparisons(name)
