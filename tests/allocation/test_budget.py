"""Budgets, and the allocation of widths under them."""

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import entrim
from entrim.allocation.allocate import (
    AGREEMENT_POINTS,
    MAX_ERROR_POINTS,
    AllocationPoint,
    AllocationProblem,
    SelectedPoint,
    SensitivityCurve,
    exceeded,
    select_point,
)
from entrim.allocation.costs import Costs, Length, Term
from entrim.errors import BadSettingError, BudgetError
from entrim.metrics import AgreementBound, lower_bound


def chain(widths: list[int], maps: list[int]) -> Costs:
    """Return the costs of a chain of layers, each consuming the group before it."""
    names = [f"g{n}" for n in range(len(widths))]
    lengths = [Length(3), *(Length(0, {name: 1}) for name in names), Length(10)]
    terms = [
        Term({"params": 1, "macs": positions, "bytes": 4}, (after, before))
        for positions, (before, after) in zip(maps, itertools.pairwise(lengths), strict=True)
    ]
    return Costs(tuple(terms), {"params": 7, "macs": 0, "bytes": 28})


def problem_of(widths: list[int], slopes: list[float], round_to: int = 1) -> AllocationProblem:
    """Return a problem in which every further channel of a group is more sensitive."""
    names = [f"g{n}" for n in range(len(widths))]
    return AllocationProblem(
        costs=chain(widths, [16 >> n for n in range(len(widths) + 1)]),
        curves={
            name: SensitivityCurve.of({k: slope * (width - k) ** 2 for k in range(1, width + 1)})
            for name, width, slope in zip(names, widths, slopes, strict=True)
        },
        full_widths=dict(zip(names, widths, strict=True)),
        round_to=round_to,
    )


GROUPS = st.lists(st.tuples(st.integers(1, 130), st.floats(0.01, 10)), min_size=1, max_size=4)
SIZES = st.sampled_from(["params", "macs", "bytes"])


@given(st.dictionaries(st.integers(1, 60), st.floats(0, 5), min_size=1))
def test_a_sensitivity_curve_is_the_largest_convex_function_below_the_points(
    points: dict[int, float],
) -> None:
    curve = SensitivityCurve.of(points)
    assert all(curve.at(width) <= value + 1e-9 for width, value in points.items())
    assert all(points[w] == v for w, v in zip(curve.widths, curve.values, strict=True))
    slopes = [
        (d - b) / (c - a)
        for (a, b), (c, d) in itertools.pairwise(zip(curve.widths, curve.values, strict=True))
    ]
    assert slopes == sorted(slopes)


@settings(max_examples=50)
@given(GROUPS, st.floats(0.02, 1), SIZES, st.sampled_from([1, 4, 8]))
def test_a_budget_is_met_and_used_up_to_less_than_one_step(
    groups: list[tuple[int, float]], share: float, size: str, round_to: int
) -> None:
    some = problem_of([width for width, _ in groups], [slope for _, slope in groups], round_to)
    lowest = some.costs.at({name: some.min_width(name) for name in some.full_widths})[size]
    limits = {size: max(round(lowest), int(share * some.sizes[size]))}
    at = some.fill_slack(some.greedy_path(limits)[-1], limits)
    assert not exceeded(at.costs, limits)
    for name, width in at.widths.items():
        assert width % round_to == 0 or width == some.full_widths[name]
        if width < some.full_widths[name]:
            wider = {**at.widths, name: some.wider(name, width)}
            assert exceeded(some.costs.at(wider), limits)


def test_the_path_is_close_to_the_best_of_all_widths() -> None:
    some = problem_of([50, 40], [1.0, 0.3])
    for share in (0.3, 0.5, 0.8):
        limits = {"params": int(share * some.sizes["params"])}
        at = some.fill_slack(some.greedy_path(limits)[-1], limits)
        best = min(
            some.curves["g0"].at(a) + some.curves["g1"].at(b)
            for a in range(1, 51)
            for b in range(1, 41)
            if not exceeded(some.costs.at({"g0": a, "g1": b}), limits)
        )
        assert best <= at.divergence <= 1.1 * best


def test_several_limits_hold_together() -> None:
    some = problem_of([60, 80, 40], [0.1, 1.0, 0.5])
    limits = {size: some.sizes[size] // 3 for size in ("params", "macs", "bytes")}
    at = some.fill_slack(some.greedy_path(limits)[-1], limits)
    assert all(at.costs[size] <= limit for size, limit in limits.items())


def test_groups_without_a_sensitivity_curve_keep_all_channels() -> None:
    some = problem_of([60, 80], [1.0, 1.0])
    frozen = AllocationProblem(
        costs=some.costs, curves={"g0": some.curves["g0"]}, full_widths=some.full_widths
    )
    assert {point.widths["g1"] for point in frozen.greedy_path({}, then=["params"])} == {80}


def test_the_path_ends_at_the_narrowest_network_with_increasing_divergence() -> None:
    path = problem_of([60, 80], [1.0, 2.0]).greedy_path({}, then=["params", "macs"])
    assert path[0].widths == {"g0": 60, "g1": 80}
    assert path[-1].widths == {"g0": 1, "g1": 1}
    for before, after in itertools.pairwise(path):
        assert after.costs["params"] < before.costs["params"]
        assert after.divergence > before.divergence


def test_a_budget_below_the_narrowest_network_names_its_size() -> None:
    some = problem_of([60, 80], [1.0, 2.0])
    lowest = round(some.costs.at({"g0": 1, "g1": 1})["params"])
    with pytest.raises(BudgetError, match=f"still has {lowest:,}; allow at least that"):
        some.greedy_path({"params": lowest - 1})
    assert some.greedy_path({"params": lowest})[-1].widths == {"g0": 1, "g1": 1}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "the budget is empty: pass params="),
        ({"params": 0.0}, "params must be a fraction above 0.0 .* got 0.0"),
        ({"params": 1.5}, "params must be a fraction .* got 1.5"),
        ({"macs": 0}, "macs must be a fraction .* or a positive integer, got 0"),
        ({"bytes": -4}, "bytes must be a fraction .* got -4"),
        ({"bytes": math.nan}, "bytes must be a fraction .* got nan"),
        ({"latency": 0.0}, r"latency must be positive \(seconds\), got 0.0"),
        ({"latency": math.inf}, "latency must be positive .* got inf"),
        ({"max_error": -0.1}, r"max_error must be positive \(a share of the variance\), got -0.1"),
        ({"params": 0.5, "round_to": 0}, "round_to must be a positive integer, got 0"),
    ],
)
def test_budgets_out_of_range_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadSettingError, match=sentence):
        entrim.Budget(**given)


def test_a_fraction_is_relative_to_the_original_and_an_integer_is_absolute() -> None:
    full = {"params": 999, "macs": 50, "bytes": 10}
    costs = {"energy": (lambda widths: 1.0, 2.5)}
    budget = entrim.Budget(params=0.5, macs=70, latency=1.0, costs=costs)
    assert budget.limits(full) == {"params": 499, "macs": 70, "energy": 2.5}


PROBLEM = problem_of([60, 80], [1.0, 2.0])
HALF = PROBLEM.sizes["params"] // 2
Measure = Callable[[AllocationPoint], float]
ALL_AGREE = AgreementBound(share=1.0, images=100, low=0.97)


def select(
    budget: entrim.Budget,
    *,
    latency_of: Measure = lambda point: 0.0,
    error_of: Measure = lambda point: 0.0,
    agreement_of: Callable[[AllocationPoint], AgreementBound] = lambda point: ALL_AGREE,
    problem: AllocationProblem = PROBLEM,
) -> SelectedPoint:
    limits = budget.limits(problem.sizes)
    return select_point(
        problem,
        budget,
        limits,
        1.0,
        latency_of=latency_of,
        error_of=error_of,
        agreement_of=agreement_of,
    )


def by_params(function: Callable[[float], float]) -> Measure:
    """Return a measure that depends on the share of the parameters."""
    return lambda point: function(point.costs["params"] / PROBLEM.sizes["params"])


def test_the_first_point_is_selected_where_it_meets_all_limits() -> None:
    plain = select(entrim.Budget(params=0.5))
    both = select(
        entrim.Budget(params=0.5, latency=1.0, max_error=0.3),
        latency_of=lambda _: 0.9,
        error_of=lambda _: 0.2,
    )
    assert both.at == plain.at
    assert both.seconds == 0.9
    assert both.reason == f"at most {HALF:,} parameters; error 0.2 of 0.3"


def test_a_later_point_is_selected_where_the_error_decreases_along_the_path() -> None:
    error = by_params(lambda share: 0.9 if share > 0.3 else 0.05)
    found = select(entrim.Budget(params=0.5, max_error=0.1), error_of=error)
    assert error(found.at) <= 0.1
    assert found.at.costs["params"] <= 0.3 * PROBLEM.sizes["params"]
    assert found.at in found.path
    assert "error 0.05 of 0.1" in found.reason


def test_the_error_is_evaluated_at_a_bounded_number_of_points() -> None:
    evaluated: list[AllocationPoint] = []

    def error(point: AllocationPoint) -> float:
        evaluated.append(point)
        return 0.9 - len(evaluated) / 100

    with pytest.raises(BudgetError, match=r"max_error=0\.1 contradicts .* an error of 0\.81"):
        select(entrim.Budget(params=0.5, max_error=0.1), error_of=error)
    assert len(evaluated) == 1 + MAX_ERROR_POINTS
    assert all(point.costs["params"] <= HALF for point in evaluated)


def test_a_later_point_is_selected_where_the_first_is_too_slow() -> None:
    latency = by_params(lambda share: share)
    found = select(entrim.Budget(params=0.5, latency=0.2), latency_of=latency)
    assert found.seconds is not None
    assert 0.15 < found.seconds == latency(found.at) <= 0.2
    before = found.path[found.path.index(found.at) - 1]
    assert latency(before) > 0.2
    assert found.reason.endswith("ms of 200")


def test_a_latency_that_no_point_reaches_is_refused() -> None:
    with pytest.raises(BudgetError, match=r"300 ms cannot be met: .* takes 400 ms"):
        select(entrim.Budget(params=0.5, latency=0.3), latency_of=lambda _: 0.4)


def test_size_latency_and_error_hold_together() -> None:
    latency = by_params(lambda share: share)
    error = by_params(lambda share: 0.9 if share > 0.1 else 0.05)
    budget = entrim.Budget(params=0.5, latency=0.3, max_error=0.1)
    found = select(budget, latency_of=latency, error_of=error)
    assert found.at.costs["params"] <= HALF
    assert found.seconds == latency(found.at) <= 0.1
    assert error(found.at) == 0.05


@pytest.mark.parametrize("limit", [0.02, 0.4])
def test_an_error_alone_selects_the_last_point_within_it(limit: float) -> None:
    error = by_params(lambda share: 1 - share)
    found = select(entrim.Budget(max_error=limit), error_of=error)
    assert error(found.at) <= limit
    assert error(found.path[found.path.index(found.at) + 1]) > limit


def agreement(function: Callable[[float], float]) -> Callable[[AllocationPoint], AgreementBound]:
    """Return a bound that depends on the share of the parameters."""
    measure = by_params(function)
    return lambda point: AgreementBound(share=measure(point), images=400, low=measure(point) - 0.02)


def test_the_last_point_before_the_first_failure_is_selected() -> None:
    tested: list[AllocationPoint] = []

    def bound(point: AllocationPoint) -> AgreementBound:
        tested.append(point)
        return agreement(lambda share: 0.5 if 0.4 < share < 0.6 else 0.99)(point)

    found = select(entrim.Budget(agreement=0.9), agreement_of=bound)
    assert found.at == tested[-2]
    assert found.tested == len(tested)
    assert found.at.costs["params"] >= 0.6 * PROBLEM.sizes["params"]
    sizes = [point.costs["params"] for point in tested]
    assert sizes == sorted(sizes, reverse=True)
    assert found.bound is not None
    assert found.bound.low == pytest.approx(0.97)
    assert "agreement at least 0.97 of 0.9" in found.reason


def test_the_selected_point_has_the_agreement_as_often_as_the_confidence_states() -> None:
    images, goal, splits = 200, 0.9, 400

    @functools.cache
    def low(agreed: int) -> float:
        return lower_bound((torch.arange(images) < agreed).double(), 0.95)

    generator = torch.Generator().manual_seed(0)
    problem = problem_of([9, 12], [1.0, 2.0])
    budget, wrong = entrim.Budget(agreement=goal), 0

    def truth(point: AllocationPoint) -> float:
        return 0.8 + 0.2 * point.costs["params"] / problem.sizes["params"]

    for _ in range(splits):
        drawn = torch.rand(images, generator=generator)

        def bound(point: AllocationPoint, same: Tensor = drawn) -> AgreementBound:
            agreed = int((same < truth(point)).sum())
            return AgreementBound(share=agreed / images, images=images, low=low(agreed))

        wrong += truth(select(budget, agreement_of=bound, problem=problem).at) < goal
    assert 0 < wrong <= 0.07 * splits


def test_the_tested_points_are_few_evenly_spaced_and_end_at_the_narrowest() -> None:
    tested: list[AllocationPoint] = []

    def bound(point: AllocationPoint) -> AgreementBound:
        tested.append(point)
        return ALL_AGREE

    found = select(entrim.Budget(agreement=0.9), agreement_of=bound)
    assert len(tested) == AGREEMENT_POINTS
    assert found.at == tested[-1] == found.path[-1]
    assert found.path[0] not in tested


def test_an_agreement_that_no_point_shows_is_refused_with_the_number_of_images() -> None:
    few = agreement(lambda share: 0.91)
    with pytest.raises(BudgetError, match=r"agrees on 91\.0% of 400 .* images; hold out [\d,]+ im"):
        select(entrim.Budget(agreement=0.9), agreement_of=few)
    none = agreement(lambda share: 0.5)
    with pytest.raises(BudgetError, match=r"agrees on 50\.0% .*; request less"):
        select(entrim.Budget(agreement=0.9), agreement_of=none)


def test_an_agreement_with_a_size_is_tested_at_that_size() -> None:
    falling = agreement(lambda share: share)
    found = select(entrim.Budget(params=0.97, agreement=0.9), agreement_of=falling)
    assert found.tested == 1
    assert found.at.costs["params"] <= 0.97 * PROBLEM.sizes["params"]
    with pytest.raises(BudgetError, match=r"agreement=0\.9 contradicts .* possible with 9\d% of"):
        select(entrim.Budget(params=0.5, agreement=0.9), agreement_of=falling)


def energy(widths: Mapping[str, int], /) -> float:
    return 0.5 * widths["g0"] + 0.25 * widths["g1"]


@settings(max_examples=30)
@given(GROUPS.filter(lambda groups: len(groups) > 1), st.floats(0.05, 1), st.sampled_from([1, 4]))
def test_a_cost_of_the_user_is_met_and_used_up_to_less_than_one_step(
    groups: list[tuple[int, float]], share: float, round_to: int
) -> None:
    some = problem_of([width for width, _ in groups], [slope for _, slope in groups], round_to)
    some = replace(some, extra_costs={"energy": energy})
    lowest = energy({name: some.min_width(name) for name in some.full_widths})
    limit = max(lowest, share * energy(some.full_widths))
    budget = entrim.Budget(costs={"energy": (energy, limit)}, round_to=round_to)
    at = select(budget, problem=some).at
    assert at.costs["energy"] == energy(at.widths) <= limit
    for name in ("g0", "g1"):
        if at.widths[name] < some.full_widths[name]:
            wider = {**at.widths, name: some.wider(name, at.widths[name])}
            assert energy(wider) > limit


def test_a_cost_below_that_of_the_narrowest_network_is_refused() -> None:
    some = replace(PROBLEM, extra_costs={"energy": energy})
    with pytest.raises(BudgetError, match=r"0\.7 energy cannot be met: .* still has 0\.75"):
        select(entrim.Budget(costs={"energy": (energy, 0.7)}), problem=some)


def test_a_cost_and_a_size_hold_together() -> None:
    some = replace(PROBLEM, extra_costs={"energy": energy})
    found = select(entrim.Budget(params=0.5, costs={"energy": (energy, 12.0)}), problem=some)
    assert energy(found.at.widths) <= 12.0
    assert found.at.costs["params"] <= HALF
    assert found.reason == f"at most {HALF:,} parameters; at most 12.0 energy"


def test_a_cost_may_be_negative() -> None:
    def shifted(widths: Mapping[str, int], /) -> float:
        return energy(widths) - 100.0

    some = replace(PROBLEM, extra_costs={"energy": shifted})
    found = select(entrim.Budget(costs={"energy": (shifted, -90.0)}), problem=some)
    assert -91.0 < shifted(found.at.widths) <= -90.0
