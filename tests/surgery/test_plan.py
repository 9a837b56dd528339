"""A plan is plain data, checked against its network."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from entrim import ChannelGraph, Plan, trace
from entrim.errors import PlanError
from entrim.surgery.plan import FORMAT


@pytest.fixture(scope="module")
def graph() -> ChannelGraph:
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.Flatten(),
        nn.Linear(32, 3, bias=False),
    )
    return trace(net, torch.randn(2, 3, 6, 6))


@given(kept=st.dictionaries(st.text(), st.sets(st.integers(0, 99)).map(sorted)))
def test_the_kept_channels_are_saved_as_json(kept: dict[str, list[int]]) -> None:
    plan = Plan(kept)
    assert Plan.from_json(plan.to_json()).kept == plan.kept


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not JSON"),
        ("[]", 'no "format"'),
        ('{"kept": {}}', 'no "format"'),
        (json.dumps({"format": FORMAT + 1, "kept": {}}), f"format {FORMAT + 1}.*update entrim"),
        (json.dumps({"format": FORMAT, "kept": {}, "weights": 1}), r"unknown keys \['weights'\]"),
        (json.dumps({"format": FORMAT, "kept": {"a": "0"}}), "list of channel numbers"),
        (json.dumps({"format": FORMAT, "kept": {"a": [0.5]}}), "list of channel numbers"),
        (json.dumps({"format": FORMAT, "kept": {"a": [1, 0]}}), "ascending"),
        (json.dumps({"format": FORMAT, "kept": {"a": [1, 1]}}), "unique"),
    ],
)
def test_a_file_that_is_not_a_plan_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(PlanError, match=complaint):
        Plan.from_json(text)


@pytest.mark.parametrize(
    ("plan", "complaint"),
    [
        (Plan({"7": [0]}), "the groups are '0', '3'"),
        (Plan({"6": [0]}), "frozen, because it is an output"),
        (Plan({"0": [0, 6]}), "channels 0 to 5, not 6"),
        (Plan({"0": [-1, 0]}), "not -1"),
        (Plan({"0": []}), "keeps no channel of group 0: keep at least one"),
        (Plan({"0": [1]}, {"9.weight": torch.zeros(1)}), "no tensor '9.weight'"),
        (Plan({"0": [1]}, {"0.bias": torch.zeros(6)}), r"shape \(6,\).*needs \(1,\)"),
        (Plan({"0": [1]}, {"0.bias": torch.tensor([float("nan")])}), "NaN"),
    ],
)
def test_a_plan_of_another_network_is_refused_with_a_remedy(
    graph: ChannelGraph, plan: Plan, complaint: str
) -> None:
    with pytest.raises(PlanError, match=complaint):
        plan.validate(graph)


def test_the_minimum_width_applies_to_every_layer(graph: ChannelGraph) -> None:
    plan = Plan({"0": [1, 2]})
    plan.validate(graph, min_channels=2)
    with pytest.raises(PlanError, match="below min_channels=3"):
        plan.validate(graph, min_channels=3)
    Plan({"0": range(6)}).validate(graph, min_channels=100)
    with pytest.raises(PlanError, match="positive integer, got 0"):
        plan.validate(graph, min_channels=0)


def test_consumers_name_the_target_of_their_intercept(graph: ChannelGraph) -> None:
    conv, linear = graph.consumers
    assert (conv.columns_per_channel, conv.intercept_target) == (
        {"0": 9},
        "batchnorm:4.running_mean",
    )
    assert (linear.columns_per_channel, linear.intercept_target) == ({"3": 4}, None)


def test_a_graph_prints_groups_consumers_and_frozen_layers(graph: ChannelGraph) -> None:
    lines = str(graph).splitlines()
    assert lines[0].split() == ["group", "channels", "produced", "by"]
    assert any(line.split() == ["3", "0:", "9", "batchnorm:4.running_mean"] for line in lines)
    assert any(line.endswith("it is an output of the network") for line in lines)
