"""Budgets that may remove entire residual blocks."""

from pathlib import Path

import pytest
import torch
from torch import nn

import entrim
from entrim.allocation.allocate import AllocationProblem, RemovableBlock, SensitivityCurve
from entrim.allocation.costs import Costs, Length, Term
from entrim.allocation.latency import OperationTimes, with_latency
from entrim.records import Record
from entrim.report import html, read
from entrim.surgery.plan import Plan
from tests.report.runs import visible_text
from tests.surgery.test_residual_blocks import Bottleneck
from tests.surgery.test_residual_blocks import network as random_network

IMAGES = torch.randn(120, 3, 8, 8, generator=torch.Generator().manual_seed(3))
WITHOUT_BLOCK = 0.66
"""Share of the MACs that a network of two bottlenecks exceeds if one has one channel per group."""


def network(*blocks: nn.Module) -> nn.Sequential:
    """Return a network of `blocks` whose running statistics are those of the images."""
    net = random_network(*blocks)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        net.train()(IMAGES)
    return net.eval()


@pytest.fixture(scope="module")
def result() -> entrim.SparsifyResult:
    net = network(Bottleneck(6), Bottleneck(6))
    with torch.no_grad():  # the first block does almost nothing
        for name in ("weight", "bias"):
            getattr(net.get_submodule("3.bn3"), name).mul_(1e-3)
    return entrim.sparsify(net, IMAGES, entrim.Budget(macs=WITHOUT_BLOCK, depth=True))


def test_a_block_that_does_almost_nothing_is_removed_first(result: entrim.SparsifyResult) -> None:
    assert result.plan.removed_blocks == ("3",)
    assert result.record.removed_blocks == ("3",)
    assert result.record.after.macs <= WITHOUT_BLOCK * result.record.before.macs
    assert "removed residual blocks: 3" in str(result.record)
    kept = {group.name: len(group.kept) for group in result.record.groups}
    assert kept["3.conv1"] == kept["3.conv2"] == 0


def test_the_predicted_sizes_without_a_block_are_exact() -> None:
    net = network(Bottleneck(6), Bottleneck(6))
    with entrim.Pruner(net, IMAGES) as pruner:
        widths = {group.name: group.channels for group in pruner.graph.groups}
        widths |= {"3.conv1": 0, "3.conv2": 0}
        plan = Plan({}, removed_blocks=["3"])
        cost = entrim.measure(entrim.apply_plan(net, plan, IMAGES[:4]), IMAGES[:4])
        found = pruner.allocator.costs.at(widths)
    assert {kind: round(found[kind]) for kind in ("params", "macs", "bytes")} == {
        "params": cost.params,
        "macs": cost.macs,
        "bytes": cost.bytes,
    }


def test_the_report_names_removed_blocks(result: entrim.SparsifyResult, tmp_path: Path) -> None:
    result.save(tmp_path)
    text = visible_text(html(read(tmp_path)))
    assert "Removed residual blocks, replaced by an identity: 3." in text
    assert "0 of 4 channels" in text


def test_a_result_without_a_block_survives_saving_and_its_record_json(
    result: entrim.SparsifyResult, tmp_path: Path
) -> None:
    result.save(tmp_path)
    again = entrim.SparsifyResult.load(result.original, tmp_path)
    assert again.plan.removed_blocks == ("3",)
    assert again.record == result.record
    assert torch.equal(again.model(IMAGES), result.model(IMAGES))
    data = result.record.to_json().replace(', "removed_blocks": ["3"]', "")
    assert Record.from_json(data).removed_blocks == ()


def test_a_network_without_a_block_can_be_exported(result: entrim.SparsifyResult) -> None:
    program = torch.export.export(result.model.eval(), (IMAGES[:4],))
    torch.testing.assert_close(program.module()(IMAGES[:4]), result.model(IMAGES[:4]))


def test_the_reconstruction_compensates_for_a_removed_block() -> None:
    net = network(Bottleneck(6), Bottleneck(6), Bottleneck(6))
    with entrim.Pruner(net, IMAGES, calibration=entrim.Calibration(holdout=0)) as pruner:
        fitted = pruner.allocator.removable_blocks["4"].divergence
    plain = entrim.Pruner(
        net, IMAGES, reconstruction=None, calibration=entrim.Calibration(holdout=0)
    )
    with plain:
        assert fitted < plain.allocator.removable_blocks["4"].divergence


def problem(divergence: float) -> AllocationProblem:
    """Return two groups of ten channels of equal cost, the first inside of a block."""
    each = {"params": 1.0, "macs": 1.0, "bytes": 4.0}
    terms = [Term(each, (Length(0, {name: 1}),), block) for name, block in BLOCKS.items()]
    curve = SensitivityCurve.of({k: float((10 - k) ** 2) for k in range(1, 11)})
    return AllocationProblem(
        costs=Costs((*terms, Term(each, (Length(5),), "a")), {}),
        curves={"a": curve, "b": curve},
        full_widths={"a": 10, "b": 10},
        blocks={"block": RemovableBlock(("a",), divergence)},
    )


BLOCKS = {"a": "a", "b": None}


@pytest.mark.parametrize(("divergence", "removed"), [(0.5, True), (1e6, False)])
def test_a_block_is_removed_if_its_divergence_per_saved_cost_is_the_least(
    divergence: float, removed: bool
) -> None:
    point = problem(divergence).greedy_path({"params": 16})[-1]
    assert (point.widths["a"] == 0) == removed
    assert point.costs["params"] == point.widths["b"] + (0 if removed else 5 + point.widths["a"])


def test_slack_does_not_widen_a_removed_block() -> None:
    some = problem(0.5)
    point = some.fill_slack(some.greedy_path({"params": 9})[-1], {"params": 9})
    assert (point.widths["a"], point.widths["b"]) == (0, 9)


def test_the_smallest_network_has_no_blocks() -> None:
    problem(0.5).check_feasible({"params": 1})
    with pytest.raises(entrim.errors.BudgetError):
        problem(0.5).check_feasible({"params": 0})


def test_seconds_of_a_layer_are_linear_in_its_weight_and_vanish_with_its_block() -> None:
    net = network(Bottleneck(6))
    graph = entrim.trace(net, IMAGES[:4])
    full = {group.name: group.channels for group in graph.groups}
    narrow = {**full, "3.conv1": 1}
    with entrim.Pruner(net, IMAGES) as pruner:
        times = [OperationTimes({"3.conv1.weight": s}, {"3": 0.5, "": 2.0}) for s in (4.0, 1.0)]
        costs = with_latency(pruner.allocator.costs, graph, times[0], times[1], narrow)
    assert costs.at(full)["seconds"] == pytest.approx(6.5)
    assert costs.at(narrow)["seconds"] == pytest.approx(3.5)
    assert costs.at({**full, "3.conv1": 0, "3.conv2": 0})["seconds"] == pytest.approx(2.0)


def test_the_times_of_operations_name_weights_and_modules() -> None:
    times = OperationTimes.of(network(Bottleneck(6)), IMAGES[:4])
    assert {"3.conv1.weight", "3.bn3.weight"} <= set(times.layers)
    assert "3" in times.modules
    assert all(0 < seconds < 60 for seconds in times.layers.values())


def test_without_depth_no_block_is_removed() -> None:
    net: nn.Module = network(Bottleneck(6), Bottleneck(6))
    assert entrim.sparsify(net, IMAGES, entrim.Budget(macs=0.7)).plan.removed_blocks == ()


def test_blocks_may_be_removed_by_default_if_the_latency_is_limited() -> None:
    assert entrim.Budget(latency=1.0, macs=0.5).removes_blocks
    assert not entrim.Budget(latency=1.0, depth=False).removes_blocks
    assert not entrim.Budget(macs=0.5).removes_blocks
    assert entrim.Budget(macs=0.5, depth=True).removes_blocks
