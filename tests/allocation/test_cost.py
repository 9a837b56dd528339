"""The predicted costs equal those that are measured on the pruned network."""

import warnings

import pytest
import torch

import entrim
from entrim.allocation.costs import Costs
from entrim.calibration.executor import Program
from entrim.errors import RolledBackWarning
from entrim.graph.eager import samples
from entrim.surgery.prune import prune
from tests.surgery.kinds import KINDS, Kind
from tests.surgery.oracle import random_plan

BATCHED = {name: kind for name, kind in KINDS.items() if name != "unbatched Conv2d"}


@pytest.mark.parametrize("case", BATCHED.values(), ids=list(BATCHED))
def test_sizes_at_any_widths_are_those_of_the_pruned_network(case: Kind) -> None:
    torch.manual_seed(0)
    model, example = case.build().eval(), case.example_inputs()
    graph = entrim.trace(model, example)
    full = {group.name: group.channels for group in graph.groups}
    before = entrim.measure(model, example, repeats=2)
    costs = Costs.of(model, graph, Program.of(model, example), before.macs, samples(example))
    assert costs.at(full) == sizes(before)
    for seed in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RolledBackWarning)
            done = prune(model, random_plan(graph, seed), example, graph=graph)
        widths = {**full, **{name: len(kept) for name, kept in done.plan.kept.items()}}
        after = entrim.measure(done.model, example, repeats=2)
        assert costs.at(widths) == pytest.approx(sizes(after), rel=1e-9)


def test_the_costs_of_one_group_are_those_that_change_with_it() -> None:
    model, example = KINDS["residual"].build().eval(), KINDS["residual"].example_inputs()
    graph = entrim.trace(model, example)
    macs = entrim.measure(model, example, repeats=2).macs
    costs = Costs.of(model, graph, Program.of(model, example), macs, samples(example))
    full = {group.name: group.channels for group in graph.groups}
    for name in full:
        fewer = {**full, name: full[name] - 1}
        total = {k: v - costs.at(fewer)[k] for k, v in costs.at(full).items()}
        own = {
            k: v - costs.of_groups([name], fewer)[k]
            for k, v in costs.of_groups([name], full).items()
        }
        assert own == pytest.approx(total)
        assert own["params"] > 0


def sizes(cost: entrim.Measurement) -> dict[str, float]:
    return {"params": cost.params, "macs": cost.macs, "bytes": cost.bytes}
