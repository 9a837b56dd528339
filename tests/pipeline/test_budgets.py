"""sparsify with a budget instead of eps, and with nothing at all."""

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import entrim
from entrim import budgeting, recording
from entrim.allocation.sensitivity import output_change
from entrim.errors import (
    BadSettingError,
    BudgetError,
    CalibrationWarning,
    LatencyWarning,
    NothingCutWarning,
)
from entrim.records import GroupRecord
from entrim.surgery.prune import prune
from tests.allocation.test_cost import BATCHED
from tests.pipeline.networks import chain, images, residual
from tests.surgery.kinds import Kind, shaken

X = images(100, 3, 8, 8)


@pytest.mark.parametrize("build", [chain, residual])
@pytest.mark.parametrize(
    "given", [{"params": 0.4}, {"macs": 0.5}, {"bytes": 3500}, {"params": 900}]
)
@pytest.mark.parametrize("round_to", [1, 4])
def test_a_network_keeps_its_budget_and_uses_it(build: Any, given: Any, round_to: int) -> None:
    model = build()
    r = entrim.sparsify(model, X, budget=entrim.Budget(**given), round_to=round_to)
    before, after = r.record.before, r.record.after
    graph = entrim.trace(model, X[:4])
    for kind, value in given.items():
        limit = value if isinstance(value, int) else int(value * getattr(before, kind))
        assert getattr(after, kind) <= limit
        for group in r.record.groups:
            if len(group.kept) < group.channels:
                plan = wider(r, group, round_to)
                more = entrim.measure(
                    prune(model, plan, X[:4], graph=graph).model, X[:4], repeats=2
                )
                assert getattr(more, kind) > limit
    assert all(len(g.kept) % round_to == 0 or len(g.kept) == g.channels for g in r.record.groups)


def wider(r: entrim.SparsifyResult, group: GroupRecord, step: int) -> entrim.Plan:
    """Return the plan with one step more in one group."""
    more = [unit for unit in range(group.channels) if unit not in group.kept][:step]
    return entrim.Plan({**r.plan.kept, group.name: sorted((*group.kept, *more))})


@pytest.mark.parametrize("kind", BATCHED.values(), ids=list(BATCHED))
def test_every_kind_of_network_keeps_a_budget_or_says_why_not(kind: Kind) -> None:
    torch.manual_seed(0)
    model, example = shaken(kind.build()), kind.example()
    if isinstance(example, tuple):
        pytest.skip("takes several positional inputs")
    batches: Any = example
    if isinstance(example, Tensor) and example.is_floating_point():
        batches = torch.randn(16, *example.shape[1:])
    budget = entrim.Budget(params=0.7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        if kind.frozen and _frozen_share(model, example) > 0.7:
            with pytest.raises(BudgetError, match="still has"):
                entrim.sparsify(model, batches, budget=budget)
            return
        r = entrim.sparsify(model, batches, budget=budget)
    assert r.record.after.params <= 0.7 * r.record.before.params
    assert r.record.proof["final"] <= r.record.proof["tolerance"]


def _frozen_share(model: nn.Module, example: Any) -> float:
    """Return the share of the parameters that no cut of the groups can take away."""
    graph = entrim.trace(model, example)
    narrow = entrim.Plan({group.name: [0] for group in graph.groups})
    small = entrim.apply_plan(model, narrow, example)
    return sum(p.numel() for p in small.parameters()) / sum(p.numel() for p in model.parameters())


def test_several_budgets_hold_at_once() -> None:
    r = entrim.sparsify(residual(), X, budget=entrim.Budget(params=0.6, macs=0.5, bytes=0.62))
    before, after = r.record.before, r.record.after
    assert after.params <= 0.6 * before.params
    assert after.macs <= 0.5 * before.macs
    assert after.bytes <= 0.62 * before.bytes


def test_an_allocation_hurts_the_outputs_less_than_the_same_fraction_everywhere() -> None:
    model = residual()
    r = entrim.sparsify(model, X, budget=entrim.Budget(params=0.5))
    lost = []
    for fraction in (0.65, 0.68, 0.71, 0.74):
        even = entrim.sparsify(model, X, widths={"*": fraction}, selector="greedy")
        if even.record.after.params >= r.record.after.params:
            with torch.no_grad():
                lost.append(output_change([[even.model(X)]], [[model(X)]], [len(X)]).divergence)
    with torch.no_grad():
        assert output_change([[r.model(X)]], [[model(X)]], [len(X)]).divergence < min(lost)


@pytest.mark.parametrize("most", [0.01, 0.1])
def test_an_error_alone_makes_the_network_as_small_as_it_allows(most: float) -> None:
    model = residual()
    r = entrim.sparsify(model, X, budget=entrim.Budget(max_error=most))
    with torch.no_grad():
        error = output_change([[r.model(X)]], [[model(X)]], [len(X)]).error
    assert 0 < error <= most
    way = [point.params for point in r.record.tradeoff]
    taken = next(n for n, point in enumerate(r.record.tradeoff) if point.selected)
    tighter = entrim.sparsify(model, X, budget=entrim.Budget(params=way[taken + 2]))
    with torch.no_grad():
        assert output_change([[tighter.model(X)]], [[model(X)]], [len(X)]).error > 0.7 * most


def test_an_error_that_the_size_does_not_allow_is_a_contradiction() -> None:
    with pytest.raises(BudgetError, match=r"max_error=0\.001 contradicts .* an error of 0\.\d+"):
        entrim.sparsify(residual(), X, budget=entrim.Budget(params=0.2, max_error=1e-3))
    r = entrim.sparsify(residual(), X, budget=entrim.Budget(params=0.9, max_error=0.5))
    assert r.record.after.params <= 0.9 * r.record.before.params


def clock(seconds: float, spread: float = 0.0) -> Any:
    """Return a `measure` on whose clock every MAC takes so many seconds."""

    def by_macs(model: nn.Module, example: Any, repeats: int = 2) -> entrim.Measurement:
        cost = entrim.measure(model, example, repeats=2)
        took = replace(cost.latency, median=seconds * cost.macs, spread=spread)
        return replace(cost, latency=took)

    return by_macs


def test_a_latency_is_reached_by_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgeting, "measure", clock(1e-9))
    monkeypatch.setattr(recording, "measure", clock(1e-9))
    model = residual()
    whole = entrim.measure(model, X[:4], repeats=2).macs
    for share in (0.7, 0.3):
        r = entrim.sparsify(model, X, budget=entrim.Budget(latency=1e-9 * share * whole))
        assert 0.9 * share * whole < r.record.after.macs <= share * whole
        assert " ms of " in r.record.groups[0].reason
    r = entrim.sparsify(model, X, budget=entrim.Budget(latency=1e-9 * whole, macs=0.5))
    assert r.record.after.macs <= 0.5 * whole


@pytest.mark.parametrize(("spread", "word"), [(0.4, "within"), (0.1, "beyond")])
def test_a_latency_that_is_missed_in_the_end_is_a_warning_with_both_figures(
    spread: float, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = residual()
    limit = 1e-9 * 0.5 * entrim.measure(model, X[:4], repeats=2).macs
    monkeypatch.setattr(budgeting, "measure", clock(1e-9))
    monkeypatch.setattr(recording, "measure", clock(1.2e-9, spread * limit))
    with pytest.warns(LatencyWarning, match=f"is {word} the noise") as heard:
        r = entrim.sparsify(model, X, budget=entrim.Budget(latency=limit))
    (note,) = r.record.notes
    assert [str(warning.message) for warning in heard] == [note]
    after = r.record.after
    figures = (limit, after.latency, after.deviation / 2, 1e-9 * after.macs)
    assert all(f"{1e3 * figure:.3g} ms" in note for figure in figures)
    assert 1e-9 * after.macs <= limit < after.latency


def test_a_latency_that_holds_in_the_end_is_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    model = residual()
    whole = 1e-9 * entrim.measure(model, X[:4], repeats=2).macs
    monkeypatch.setattr(budgeting, "measure", clock(1e-9))
    monkeypatch.setattr(recording, "measure", clock(0.9e-9))
    r = entrim.sparsify(model, X, budget=entrim.Budget(latency=0.5 * whole))
    assert r.record.notes == ()


def test_a_latency_beyond_reach_names_the_least() -> None:
    with pytest.raises(BudgetError, match=r"the narrowest network still takes .* ms here"):
        entrim.sparsify(chain(), X, budget=entrim.Budget(latency=1e-9))


def test_without_any_wish_the_knee_is_taken_and_named() -> None:
    model = residual()
    r = entrim.sparsify(model, X)
    taken = [point for point in r.record.tradeoff if point.selected]
    assert [point.params for point in taken] == [r.record.after.params]
    assert [point.macs for point in taken] == [r.record.after.macs]
    assert all("at the knee: " in group.reason for group in r.record.groups)
    assert 0 < r.record.after.params < r.record.before.params
    sizes = [point.params for point in r.record.tradeoff]
    assert sizes == sorted(sizes, reverse=True)


def test_the_tradeoff_leads_to_the_same_network_again() -> None:
    model = residual()
    knee = entrim.sparsify(model, X)
    point = next(point for point in knee.record.tradeoff if point.selected)
    again = entrim.sparsify(model, X, budget=entrim.Budget(params=point.params, macs=point.macs))
    assert again.record.after.params <= point.params
    assert again.record.after.params > 0.9 * point.params


def test_another_selector_chooses_at_the_allocated_widths() -> None:
    model = residual()
    budget = entrim.Budget(params=0.5)
    greedy = entrim.sparsify(model, X, budget=budget)
    g = torch.Generator().manual_seed(0)
    drawn = entrim.sparsify(model, X, budget=budget, selector="random", generator=g)
    assert {g.name: len(g.kept) for g in drawn.record.groups} == {
        g.name: len(g.kept) for g in greedy.record.groups
    }
    assert drawn.plan.kept != greedy.plan.kept
    with torch.no_grad():
        apart = [
            output_change([[r.model(X)]], [[model(X)]], [len(X)]).divergence
            for r in (greedy, drawn)
        ]
    assert apart[0] < apart[1]


def test_scores_of_ones_own_decide_which_channels_stay_but_not_how_many() -> None:
    model = residual()
    scores = {"conv1": torch.arange(model.get_parameter("conv1.weight").shape[0])}
    fixed = entrim.sparsify(model, X, widths={"conv1": 3}, scores=scores)
    assert fixed.plan.kept["conv1"] == (11, 12, 13)
    within = entrim.sparsify(model, X, budget=entrim.Budget(params=0.5), scores=scores)
    groups = {group.name: group for group in within.record.groups}
    kept = groups["conv1"].kept
    assert len(kept) < 14
    assert kept == tuple(range(14 - len(kept), 14))
    assert groups["conv1"].reason.startswith("the scores handed over")
    assert groups["stem"].reason.startswith("greedy")


def test_a_budget_of_everything_cuts_nothing_and_says_so() -> None:
    with pytest.warns(NothingCutWarning, match="the whole network keeps the budget"):
        r = entrim.sparsify(residual(), X, budget=entrim.Budget(params=1.0))
    assert r.record.after == r.record.before


def test_a_size_out_of_reach_is_refused_before_the_long_look() -> None:
    steps: list[entrim.ProgressEvent] = []
    with pytest.raises(BudgetError, match="still has"):
        entrim.sparsify(residual(), X, budget=entrim.Budget(params=3), on_step=steps.append)
    assert {step.stage for step in steps} == {"trace", "collect", "choose"}


def test_layers_that_may_not_be_cut_bound_the_budget() -> None:
    with pytest.raises(BudgetError, match=r"of [\d,]+ parameters cannot be kept"):
        entrim.sparsify(residual(), X, layers="conv1", budget=entrim.Budget(params=0.3))
    r = entrim.sparsify(residual(), X, skip="stem", budget=entrim.Budget(params=0.5))
    assert "stem" not in r.plan.kept


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"eps_w": -1e-4}, "leave eps_w= out"),
        ({"eps": {"*": (-1e-4, 1e-4)}}, "leave eps= out"),
        ({"widths": {"*": 0.5}}, "leave widths= out"),
        ({"preset": "paper"}, "leave refit=False and the paper's preset out"),
    ],
)
def test_a_budget_beside_eps_or_widths_is_refused(options: Any, sentence: str) -> None:
    with pytest.raises(BadSettingError, match=sentence):
        entrim.sparsify(chain(), X, budget=entrim.Budget(params=0.5), **options)


def test_the_sensing_is_told_group_by_group_and_timed() -> None:
    steps: list[entrim.ProgressEvent] = []
    r = entrim.sparsify(residual(), X, budget=entrim.Budget(params=0.5), on_step=steps.append)
    told = [step.name for step in steps if step.stage == "sense"]
    assert sorted(told) == sorted(group.name for group in r.record.groups)
    assert {"collect", "choose", "sense", "allocate", "rebuild", "cut"} <= set(r.record.seconds)


def test_damage_is_measured_down_to_one_channel_not_guessed() -> None:
    group = entrim.trace(chain(), X[:4]).group("7")
    widths = budgeting.ChannelRanking.of(group, list(range(group.channels))).widths
    assert widths[0] == 1
    assert widths[-1] == group.channels


def test_a_wide_layer_of_which_little_matters_keeps_what_matters() -> None:
    g = torch.Generator().manual_seed(0)
    first, last = nn.Linear(6, 200), nn.Linear(200, 3)
    with torch.no_grad():
        basis = torch.randn(6, 6, generator=g)
        first.weight.copy_(torch.randn(200, 6, generator=g) @ basis)
        last.weight.copy_(torch.randn(3, 200, generator=g))
    x = torch.randn(400, 6, generator=g)
    r = entrim.sparsify(nn.Sequential(first, last), x, budget=entrim.Budget(max_error=1e-6))
    assert 6 <= len(r.plan.kept["0"]) <= 8  # the way goes down three channels at a time
