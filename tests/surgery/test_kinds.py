"""One network of every kind, pruned by random plans."""

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

EVERY_KIND = pytest.mark.parametrize("case", KINDS.values(), ids=list(KINDS))


@functools.cache
def traced(case: Kind) -> tuple[nn.Module, ChannelGraph, ExampleInputs]:
    torch.manual_seed(0)
    model, example = shaken(case.build()), case.example_inputs()
    return model, trace(model, example), example


@EVERY_KIND
def test_the_channel_graph_is_the_expected_one(case: Kind) -> None:
    _, graph, _ = traced(case)
    assert {group.name: group.channels for group in graph.groups} == case.groups
    for layer, reason in case.frozen.items():
        assert any(reason in f.reason for f in graph.frozen if f.layer == layer), str(graph)


@EVERY_KIND
def test_the_sliced_network_equals_the_masked_one(case: Kind) -> None:
    model, graph, example = traced(case)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for seed in range(3):
        plan = random_plan(graph, seed)
        result = prune(model, plan, example, graph=graph)
        expected = masked_outputs(copy.deepcopy(model), graph, plan.kept, example)
        assert distance(outputs(copy.deepcopy(result.model), example), expected) < 1e-6
        assert result.rolled_back == ()
        assert max(result.proof.sliced, result.proof.final) <= result.proof.tolerance
        for name, tensor in result.model.state_dict().items():
            assert tuple(tensor.shape) == graph.small_shape(name, plan.kept)
    after = model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


@EVERY_KIND
def test_the_attributes_of_every_module_match_its_tensors(case: Kind) -> None:
    model, graph, example = traced(case)
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
