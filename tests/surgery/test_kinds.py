"""Cut or frozen, never wrong: one network for every kind, under random plans."""

import copy
import functools

import pytest
import torch
from torch import Tensor, nn

from entrim.graph.channel_graph import ChannelGraph
from entrim.graph.eager import ExampleInputs
from entrim.surgery.prune import prune
from entrim.surgery.trace import trace
from tests.surgery.kinds import KINDS, Kind, shaken
from tests.surgery.oracle import distance, masked_outputs, outputs, random_plan

EVERY_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))


@functools.cache
def traced(kind: Kind) -> tuple[nn.Module, ChannelGraph, ExampleInputs]:
    torch.manual_seed(0)
    model, example = shaken(kind.build()), kind.example()
    return model, trace(model, example), example


@EVERY_KIND
def test_the_channel_graph_is_the_one_worked_out_by_hand(kind: Kind) -> None:
    _, graph, _ = traced(kind)
    assert {group.name: group.channels for group in graph.groups} == kind.groups
    for layer, reason in kind.frozen.items():
        assert any(reason in f.reason for f in graph.frozen if f.layer == layer), str(graph)


@EVERY_KIND
def test_the_sliced_network_equals_the_masked_one(kind: Kind) -> None:
    model, graph, example = traced(kind)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for seed in range(3):
        plan = random_plan(graph, seed)
        result = prune(model, plan, example, graph=graph)
        wanted = masked_outputs(copy.deepcopy(model), graph, plan.kept, example)
        assert distance(outputs(copy.deepcopy(result.model), example), wanted) < 1e-6
        assert result.rolled_back == ()
        assert max(result.proof.sliced, result.proof.final) <= result.proof.tolerance
        for name, tensor in result.model.state_dict().items():
            assert tuple(tensor.shape) == graph.small_shape(name, plan.kept)
    after = model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


@EVERY_KIND
def test_the_attributes_of_every_module_are_those_of_one_built_small(kind: Kind) -> None:
    model, graph, example = traced(kind)
    small = prune(model, random_plan(graph, 1), example, graph=graph).model
    for module in small.modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            weight: Tensor = module.weight
            assert weight.shape[:2] == (module.out_channels, module.in_channels // module.groups)
        if isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d):
            weight = module.weight
            assert weight.shape[:2] == (module.in_channels, module.out_channels // module.groups)
        if isinstance(module, nn.Linear):
            assert module.weight.shape == (module.out_features, module.in_features)
        if isinstance(module, nn.BatchNorm2d | nn.InstanceNorm2d) and module.weight is not None:
            assert module.weight.shape == (module.num_features,)
        if isinstance(module, nn.GroupNorm):
            assert module.num_channels % module.num_groups == 0
        if isinstance(module, nn.PReLU):
            assert module.weight.shape == (module.num_parameters,)
