"""Budgets, and the allocation of widths under them."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import entrim
from entrim.allocate import AllocationProblem, SensitivityCurve, exceeded
from entrim.allocation.costs import Costs, Length, Term
from entrim.errors import BadSettingError, BudgetError


def chain(widths: list[int], maps: list[int]) -> Costs:
    """Return the costs of a chain of layers, each reading the group before it."""
    names = [f"g{n}" for n in range(len(widths))]
    lengths = [Length(3), *(Length(0, {name: 1}) for name in names), Length(10)]
    terms = [
        Term({"params": 1, "macs": positions, "bytes": 4}, (after, before))
        for positions, (before, after) in zip(maps, itertools.pairwise(lengths), strict=True)
    ]
    return Costs(tuple(terms), {"params": 7, "macs": 0, "bytes": 28})


def market(widths: list[int], slopes: list[float], round_to: int = 1) -> AllocationProblem:
    """Return a market in which channel after channel of a group does more damage."""
    names = [f"g{n}" for n in range(len(widths))]
    return AllocationProblem(
        costs=chain(widths, [16 >> n for n in range(len(widths) + 1)]),
        damages={
            name: SensitivityCurve.of({k: slope * (width - k) ** 2 for k in range(1, width + 1)})
            for name, width, slope in zip(names, widths, slopes, strict=True)
        },
        full_widths=dict(zip(names, widths, strict=True)),
        round_to=round_to,
    )


GROUPS = st.lists(st.tuples(st.integers(1, 130), st.floats(0.01, 10)), min_size=1, max_size=4)
SIZES = st.sampled_from(["params", "macs", "bytes"])


@given(st.dictionaries(st.integers(1, 60), st.floats(0, 5), min_size=1))
def test_a_damage_is_the_largest_convex_function_below_the_points(points: dict) -> None:
    damage = SensitivityCurve.of(points)
    assert all(damage.at(width) <= value + 1e-9 for width, value in points.items())
    assert all(points[w] == v for w, v in zip(damage.widths, damage.values, strict=True))
    slopes = [
        (d - b) / (c - a)
        for (a, b), (c, d) in itertools.pairwise(zip(damage.widths, damage.values, strict=True))
    ]
    assert slopes == sorted(slopes)


@given(GROUPS, st.floats(0.02, 1), SIZES, st.sampled_from([1, 4, 8]))
def test_a_budget_is_kept_and_used_up_to_less_than_one_step(
    groups: list[tuple[int, float]], share: float, kind: str, round_to: int
) -> None:
    some = market([width for width, _ in groups], [slope for _, slope in groups], round_to)
    least = some.costs.at({name: some.min_width(name) for name in some.full_widths})[kind]
    limits = {kind: max(round(least), int(share * some.sizes[kind]))}
    at = some.fill_slack(some.greedy_path(limits)[-1], limits)
    assert not exceeded(at.costs, limits)
    for name, width in at.widths.items():
        assert width % round_to == 0 or width == some.full_widths[name]
        if width < some.full_widths[name]:
            wider = {**at.widths, name: some.wider(name, width)}
            assert exceeded(some.costs.at(wider), limits)


def test_the_walk_finds_the_best_of_all_widths() -> None:
    some = market([50, 40], [1.0, 0.3])
    for share in (0.3, 0.5, 0.8):
        limits = {"params": int(share * some.sizes["params"])}
        at = some.fill_slack(some.greedy_path(limits)[-1], limits)
        best = min(
            some.damages["g0"].at(a) + some.damages["g1"].at(b)
            for a in range(1, 51)
            for b in range(1, 41)
            if not exceeded(some.costs.at({"g0": a, "g1": b}), limits)
        )
        assert best <= at.divergence <= 1.1 * best


def test_several_limits_hold_together() -> None:
    some = market([60, 80, 40], [0.1, 1.0, 0.5])
    limits = {kind: some.sizes[kind] // 3 for kind in ("params", "macs", "bytes")}
    at = some.fill_slack(some.greedy_path(limits)[-1], limits)
    assert all(at.costs[kind] <= limit for kind, limit in limits.items())


def test_groups_without_a_damage_stay_whole() -> None:
    some = market([60, 80], [1.0, 1.0])
    frozen = AllocationProblem(
        costs=some.costs, damages={"g0": some.damages["g0"]}, full_widths=some.full_widths
    )
    assert {stop.widths["g1"] for stop in frozen.greedy_path({}, then=["params"])} == {80}


def test_the_way_goes_down_to_the_narrowest_network_with_rising_damage() -> None:
    way = market([60, 80], [1.0, 2.0]).greedy_path({}, then=["params", "macs"])
    assert way[0].widths == {"g0": 60, "g1": 80}
    assert way[-1].widths == {"g0": 1, "g1": 1}
    for before, after in itertools.pairwise(way):
        assert after.costs["params"] < before.costs["params"]
        assert after.divergence > before.divergence


def test_a_budget_below_the_narrowest_network_names_what_that_has() -> None:
    some = market([60, 80], [1.0, 2.0])
    least = round(some.costs.at({"g0": 1, "g1": 1})["params"])
    with pytest.raises(BudgetError, match=f"still has {least:,}; allow at least that"):
        some.greedy_path({"params": least - 1})
    assert some.greedy_path({"params": least})[-1].widths == {"g0": 1, "g1": 1}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "the budget is empty: name params="),
        ({"params": 0.0}, "params is 0.0: hand over the fraction that remains"),
        ({"params": 1.5}, "params is 1.5"),
        ({"macs": 0}, "macs is 0"),
        ({"bytes": -4}, "bytes is -4"),
        ({"bytes": math.nan}, "bytes is nan"),
        ({"latency": 0.0}, "latency is 0.0: hand over seconds"),
        ({"latency": math.inf}, "latency is inf"),
        ({"max_error": -0.1}, "max_error is -0.1: hand over a share of the variance"),
    ],
)
def test_budgets_out_of_range_are_refused(given: dict, sentence: str) -> None:
    with pytest.raises(BadSettingError, match=sentence):
        entrim.Budget(**given)


def test_a_fraction_is_of_the_whole_and_a_number_is_itself() -> None:
    whole = {"params": 999, "macs": 50, "bytes": 10}
    budget = entrim.Budget(params=0.5, macs=70, latency=1.0)
    assert budget.limits(whole) == {"params": 499, "macs": 70}
