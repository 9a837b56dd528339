"""The formula of the costs equals what is measured on the network that was really cut."""

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


@pytest.mark.parametrize("kind", BATCHED.values(), ids=list(BATCHED))
def test_sizes_at_any_widths_are_those_of_the_cut_network(kind: Kind) -> None:
    torch.manual_seed(0)
    model, example = kind.build().eval(), kind.example()
    graph = entrim.trace(model, example)
    whole = {group.name: group.channels for group in graph.groups}
    before = entrim.measure(model, example, repeats=2)
    costs = Costs.of(model, graph, Program.of(model, example), before.macs, samples(example))
    assert costs.at(whole) == sizes(before)
    for seed in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RolledBackWarning)
            done = prune(model, random_plan(graph, seed), example, graph=graph)
        widths = {**whole, **{name: len(kept) for name, kept in done.plan.kept.items()}}
        after = entrim.measure(done.model, example, repeats=2)
        assert costs.at(widths) == pytest.approx(sizes(after), rel=1e-9)


def test_the_part_of_a_group_is_what_changes_with_it() -> None:
    model, example = KINDS["residual"].build().eval(), KINDS["residual"].example()
    graph = entrim.trace(model, example)
    macs = entrim.measure(model, example, repeats=2).macs
    costs = Costs.of(model, graph, Program.of(model, example), macs, samples(example))
    whole = {group.name: group.channels for group in graph.groups}
    for name in whole:
        fewer = {**whole, name: whole[name] - 1}
        all_in_all = {k: v - costs.at(fewer)[k] for k, v in costs.at(whole).items()}
        its_own = {
            k: v - costs.of_group(name, fewer)[k] for k, v in costs.of_group(name, whole).items()
        }
        assert its_own == pytest.approx(all_in_all)
        assert its_own["params"] > 0


def sizes(cost: entrim.Measurement) -> dict[str, float]:
    return {"params": cost.params, "macs": cost.macs, "bytes": cost.bytes}
