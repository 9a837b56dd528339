"""sparsify with a budget, and without a target."""

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import entrim
from entrim import results
from entrim.allocation import allocate
from entrim.allocation.latency import OperationTimes
from entrim.allocation.sensitivity import interpolate, measured_widths, output_change
from entrim.errors import (
    BudgetError,
    CalibrationWarning,
    LatencyWarning,
    NothingCutWarning,
)
from entrim.records import GroupRecord
from entrim.selection.base import ChannelRanking
from entrim.surgery.prune import prune
from tests.allocation.test_cost import BATCHED
from tests.callbacks import Recorder
from tests.pipeline.networks import chain, images, residual
from tests.surgery.kinds import Kind, shaken

X = images(100, 3, 8, 8)
ALL = entrim.Calibration(holdout=0)
"""No images are held out."""


@pytest.mark.parametrize("build", [chain, residual])
@pytest.mark.parametrize(
    "given", [{"params": 0.4}, {"macs": 0.5}, {"bytes": 3500}, {"params": 900}]
)
@pytest.mark.parametrize("round_to", [1, 4])
def test_a_network_meets_its_budget_and_uses_it(build: Any, given: Any, round_to: int) -> None:
    model = build()
    r = entrim.sparsify(model, X, entrim.Budget(**given, round_to=round_to))
    before, after = r.record.before, r.record.after
    graph = entrim.trace(model, X[:4])
    for size, value in given.items():
        limit = value if isinstance(value, int) else int(value * getattr(before, size))
        assert getattr(after, size) <= limit
        for group in r.record.groups:
            if len(group.kept) < group.channels:
                plan = wider(r, group, round_to)
                more = entrim.measure(
                    prune(model, plan, X[:4], graph=graph).model, X[:4], repeats=2
                )
                assert getattr(more, size) > limit
    assert all(len(g.kept) % round_to == 0 or len(g.kept) == g.channels for g in r.record.groups)


def wider(r: entrim.SparsifyResult, group: GroupRecord, step: int) -> entrim.Plan:
    """Return the plan with one group wider by one step."""
    more = [unit for unit in range(group.channels) if unit not in group.kept][:step]
    return entrim.Plan({**r.plan.kept, group.name: sorted((*group.kept, *more))})


@pytest.mark.parametrize("case", BATCHED.values(), ids=list(BATCHED))
def test_every_kind_of_network_meets_a_budget_or_is_refused(case: Kind) -> None:
    torch.manual_seed(0)
    model, example = shaken(case.build()), case.example_inputs()
    if isinstance(example, tuple):
        pytest.skip("takes several positional inputs")
    batches: Any = example
    if isinstance(example, Tensor) and example.is_floating_point():
        batches = torch.randn(16, *example.shape[1:])
    budget = entrim.Budget(params=0.7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        if case.frozen and _frozen_share(model, example) > 0.7:
            with pytest.raises(BudgetError, match="still has"):
                entrim.sparsify(model, batches, budget)
            return
        r = entrim.sparsify(model, batches, budget)
    assert r.record.after.params <= 0.7 * r.record.before.params
    assert r.record.proof["final"] <= r.record.proof["tolerance"]


def _frozen_share(model: nn.Module, example_inputs: Any) -> float:
    """Return the share of the parameters that remains with one channel per group."""
    graph = entrim.trace(model, example_inputs)
    narrow = entrim.Plan({group.name: [0] for group in graph.groups})
    small = entrim.apply_plan(model, narrow, example_inputs)
    return sum(p.numel() for p in small.parameters()) / sum(p.numel() for p in model.parameters())


def test_several_budgets_hold_at_once() -> None:
    r = entrim.sparsify(residual(), X, entrim.Budget(params=0.6, macs=0.5, bytes=0.62))
    before, after = r.record.before, r.record.after
    assert after.params <= 0.6 * before.params
    assert after.macs <= 0.5 * before.macs
    assert after.bytes <= 0.62 * before.bytes


def test_an_allocation_changes_the_outputs_less_than_uniform_widths() -> None:
    model = residual()
    r = entrim.sparsify(model, X, entrim.Budget(params=0.5))
    lost = []
    for fraction in (0.65, 0.68, 0.71, 0.74):
        even = entrim.sparsify(model, X, entrim.Widths(fraction), selector="greedy")
        if even.record.after.params >= r.record.after.params:
            with torch.no_grad():
                lost.append(output_change([[even.model(X)]], [[model(X)]], [len(X)]).divergence)
    with torch.no_grad():
        assert output_change([[r.model(X)]], [[model(X)]], [len(X)]).divergence < min(lost)


@pytest.mark.parametrize("most", [0.01, 0.1])
def test_an_error_alone_makes_the_network_as_small_as_it_allows(most: float) -> None:
    model = residual()
    r = entrim.sparsify(model, X, entrim.Budget(max_error=most), calibration=ALL)
    with torch.no_grad():
        error = output_change([[r.model(X)]], [[model(X)]], [len(X)]).error
    assert 0 < error <= most
    path = [point.params for point in r.record.tradeoff]
    selected = next(n for n, point in enumerate(r.record.tradeoff) if point.selected)
    budget = entrim.Budget(params=path[selected + 2])
    tighter = entrim.sparsify(model, X, budget, calibration=ALL)
    with torch.no_grad():
        assert output_change([[tighter.model(X)]], [[model(X)]], [len(X)]).error > 0.7 * most


def test_an_error_that_the_size_does_not_allow_is_refused() -> None:
    with pytest.raises(BudgetError, match=r"max_error=0\.001 contradicts .* an error of 0\.\d+"):
        entrim.sparsify(residual(), X, entrim.Budget(params=0.2, max_error=1e-3), calibration=ALL)
    budget = entrim.Budget(params=0.9, max_error=0.5)
    r = entrim.sparsify(residual(), X, budget, calibration=ALL)
    assert r.record.after.params <= 0.9 * r.record.before.params


def fake_measure(seconds: float, deviation: float = 0.0) -> Any:
    """Return a `measure` for which every MAC takes this many seconds."""

    def by_macs(model: nn.Module, example_inputs: Any, repeats: int = 2) -> entrim.Measurement:
        cost = entrim.measure(model, example_inputs, repeats=2)
        latency = replace(cost.latency, median=seconds * cost.macs, deviation=deviation)
        return replace(cost, latency=latency)

    return by_macs


def fake_times(model: nn.Module, example_inputs: Any) -> OperationTimes:
    """Return operation times for which every element of a weight takes a microsecond."""
    return OperationTimes({name: 1e-6 * p.numel() for name, p in model.named_parameters()}, {})


def test_a_latency_is_reached_by_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OperationTimes, "of", fake_times)
    monkeypatch.setattr(allocate, "measure", fake_measure(1e-9))
    monkeypatch.setattr(results, "measure", fake_measure(1e-9))
    model = residual()
    full = entrim.measure(model, X[:4], repeats=2).macs
    for share in (0.7, 0.3):
        budget = entrim.Budget(latency=1e-9 * share * full, depth=False)
        r = entrim.sparsify(model, X, budget)
        assert 0.9 * share * full < r.record.after.macs <= share * full
        assert " ms of " in r.record.groups[0].reason
    r = entrim.sparsify(model, X, entrim.Budget(latency=1e-9 * full, macs=0.5))
    assert r.record.after.macs <= 0.5 * full


@pytest.mark.parametrize(("deviation", "word"), [(0.4, "within"), (0.1, "beyond")])
def test_a_finished_network_above_the_latency_is_reported_with_both_measurements(
    deviation: float, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = residual()
    limit = 1e-9 * 0.5 * entrim.measure(model, X[:4], repeats=2).macs
    monkeypatch.setattr(allocate, "measure", fake_measure(1e-9))
    monkeypatch.setattr(results, "measure", fake_measure(1.2e-9, deviation * limit))
    with pytest.warns(LatencyWarning, match=f"is {word} the noise") as caught:
        r = entrim.sparsify(model, X, entrim.Budget(latency=limit))
    (note,) = r.record.notes
    assert [str(warning.message) for warning in caught] == [note]
    after = r.record.after
    figures = (limit, after.latency, after.deviation / 2, 1e-9 * after.macs)
    assert all(f"{1e3 * figure:.3g} ms" in note for figure in figures)
    assert 1e-9 * after.macs <= limit < after.latency


def test_a_finished_network_within_the_latency_is_not_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = residual()
    full = 1e-9 * entrim.measure(model, X[:4], repeats=2).macs
    monkeypatch.setattr(allocate, "measure", fake_measure(1e-9))
    monkeypatch.setattr(results, "measure", fake_measure(0.9e-9))
    r = entrim.sparsify(model, X, entrim.Budget(latency=0.5 * full))
    assert r.record.notes == ()


def test_a_latency_that_cannot_be_reached_names_the_lowest() -> None:
    with pytest.raises(
        BudgetError, match=r"the narrowest network still takes .* ms on this machine"
    ):
        entrim.sparsify(chain(), X, entrim.Budget(latency=1e-9))


def test_without_a_target_the_knee_is_selected_and_named() -> None:
    model = residual()
    r = entrim.sparsify(model, X)
    selected = [point for point in r.record.tradeoff if point.selected]
    assert [point.params for point in selected] == [r.record.after.params]
    assert [point.macs for point in selected] == [r.record.after.macs]
    assert all("at the knee: " in group.reason for group in r.record.groups)
    assert 0 < r.record.after.params < r.record.before.params
    sizes = [point.params for point in r.record.tradeoff]
    assert sizes == sorted(sizes, reverse=True)


def test_a_point_of_the_tradeoff_can_be_requested_as_a_budget() -> None:
    model = residual()
    knee = entrim.sparsify(model, X)
    point = next(point for point in knee.record.tradeoff if point.selected)
    again = entrim.sparsify(model, X, entrim.Budget(params=point.params, macs=point.macs))
    assert again.record.after.params <= point.params
    assert again.record.after.params > 0.9 * point.params


def test_another_selector_selects_at_the_allocated_widths() -> None:
    model = residual()
    budget = entrim.Budget(params=0.5)
    greedy = entrim.sparsify(model, X, budget)
    drawn = entrim.sparsify(model, X, budget, selector="random", seed=0)
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


def test_scores_decide_which_channels_are_kept_but_not_how_many() -> None:
    model = residual()
    conv1 = entrim.Scores({"conv1": torch.arange(14)})
    fixed = entrim.sparsify(model, X, entrim.Widths({"conv1": 3}), selector=conv1)
    assert fixed.plan.kept["conv1"] == (11, 12, 13)
    both = entrim.Scores({"conv1": torch.arange(14), "conv3": range(14)})
    budget = entrim.Budget(params=0.4)
    within = entrim.sparsify(model, X, budget, selector=both, include="conv[13]")
    groups = {group.name: group for group in within.record.groups}
    assert set(groups) == {"conv1", "conv3"}
    for group in groups.values():
        assert len(group.kept) < 14
        assert group.kept == tuple(range(14 - len(group.kept), 14))
        assert group.reason.startswith("scores, at most")


def test_a_budget_that_the_original_meets_prunes_nothing_and_warns() -> None:
    with pytest.warns(
        NothingCutWarning, match="the original network is within the budget"
    ) as found:
        r = entrim.sparsify(residual(), X, entrim.Budget(params=1.0))
    assert found[0].filename == __file__  # the line of the user, not one of entrim
    assert r.record.after == r.record.before


def test_a_size_that_cannot_be_reached_is_refused_before_the_sensitivity_is_measured() -> None:
    recorder = Recorder()
    with pytest.raises(BudgetError, match="still has"):
        entrim.sparsify(residual(), X, entrim.Budget(params=3), callbacks=[recorder])
    assert recorder.stages == {"trace", "collect", "select"}


def test_excluded_layers_limit_the_budget() -> None:
    with pytest.raises(BudgetError, match=r"of [\d,]+ parameters cannot be met"):
        entrim.sparsify(residual(), X, entrim.Budget(params=0.3), include="conv1")
    r = entrim.sparsify(residual(), X, entrim.Budget(params=0.5), exclude="stem")
    assert "stem" not in r.plan.kept


def test_the_sensitivity_is_reported_for_every_group_and_timed() -> None:
    recorder = Recorder()
    r = entrim.sparsify(residual(), X, entrim.Budget(params=0.5), callbacks=[recorder])
    reported = [event.name for event in recorder.in_stage("sensitivity")]
    assert sorted(reported) == sorted(group.name for group in r.record.groups)
    stages = {"collect", "select", "sensitivity", "allocate", "reconstruct", "prune"}
    assert stages <= set(r.record.seconds)


def test_sensitivity_is_measured_down_to_one_channel() -> None:
    group = entrim.trace(chain(), X[:4]).group("7")
    ranking = ChannelRanking.of(group, list(range(group.channels)))
    widths = measured_widths(ranking, (0.5, 0.01))
    assert widths == [1, group.channels // 2]


def test_interpolated_divergences_pass_through_the_measured_ones_and_decrease() -> None:
    measured = {1: 2.0, 4: 0.5, 10: 1e-3}
    found = interpolate(measured, 16)
    assert {width: found[width] for width in measured} == pytest.approx(measured)
    assert sorted(found) == list(range(1, 17))
    assert [found[width] for width in range(1, 17)] == sorted(found.values(), reverse=True)
    assert found[16] == 0.0
    assert found[7] == pytest.approx((0.5 * 1e-3) ** 0.5)
    assert interpolate({}, 16) == {16: 0.0}


def test_a_wide_layer_keeps_the_few_channels_that_matter() -> None:
    g = torch.Generator().manual_seed(0)
    first, last = nn.Linear(6, 200), nn.Linear(200, 3)
    with torch.no_grad():
        basis = torch.randn(6, 6, generator=g)
        first.weight.copy_(torch.randn(200, 6, generator=g) @ basis)
        last.weight.copy_(torch.randn(3, 200, generator=g))
    x = torch.randn(400, 6, generator=g)
    r = entrim.sparsify(nn.Sequential(first, last), x, entrim.Budget(max_error=1e-6))
    assert 6 <= len(r.plan.kept["0"]) <= 8  # the path removes three channels at a time
