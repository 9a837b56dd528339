"""The nine checks of the LeNet tables: met up to the limit, missed beyond it, never by default."""

from collections.abc import Callable

import pytest

from experiments.paper.lines import checks
from experiments.paper.pruning import RowResult
from experiments.paper.report import NOT_RUN
from experiments.paper.rows import rows_of

BASELINE = 99.0
COUNTS = {"lenet-conv": 7, "lenet-full": 2}
Case = tuple[str, int, Callable[[float], RowResult], tuple[float, ...], tuple[float, ...]]


def statuses(
    experiment: str, *found: RowResult, baselines: dict[int, float] | None = None
) -> list[str]:
    lines = checks(experiment, rows_of(experiment), found, baselines or {0: BASELINE})
    assert len(lines) == COUNTS[experiment]
    return [line.split(":")[0] for line in lines]


def kept_result(row: str) -> Callable[[float], RowResult]:
    return lambda channels: RowResult(
        row=row, method="paper", seed=0, pruned={"widths": {"conv1": channels}, "accuracy": 0.0}
    )


def raw_result(row: str, method: str, channels: int) -> Callable[[float], RowResult]:
    return lambda drop: RowResult(
        row=row,
        method=method,
        seed=0,
        pruned={"widths": {"conv1": channels}, "accuracy": BASELINE - drop},
    )


def tuned_result(row: str) -> Callable[[float], RowResult]:
    return lambda drop: RowResult(row=row, method="paper", seed=0, tuned={10: BASELINE - drop})


def small_result(row: str, parameters: int, seed: int = 0) -> Callable[[float], RowResult]:
    return lambda accuracy: RowResult(
        row=row,
        method="default",
        seed=seed,
        pruned={"parameters": parameters},
        tuned={10: accuracy},
    )


CASES: dict[str, Case] = {
    "E1, channels: 8 and at most 1 off": ("lenet-conv", 0, kept_result("E1"), (7, 8, 9), (6, 10)),
    "E1, raw: 99.04 - 98.49 and at most 0.5 off": (
        "lenet-conv", 1, raw_result("E1", "paper", 8), (0.06, 1.04), (0.04, 1.06),
    ),
    "E1, tuned: 99.04 - 99.03 and at most 0.3 off": (
        "lenet-conv", 2, tuned_result("E1"), (-0.28, 0.30), (-0.30, 0.32),
    ),
    "E1, our default: at most 0.4": (
        "lenet-conv", 3, raw_result("E1", "default", 8), (-5.0, 0.39), (0.41, 5.0),
    ),
    "E2, channels: 4 and at most 1 off": ("lenet-conv", 4, kept_result("E2"), (3, 4, 5), (2, 6)),
    "E2, raw: 99.04 - 97.35 and at most 1.5 off": (
        "lenet-conv", 5, raw_result("E2", "paper", 4), (0.20, 3.18), (0.18, 3.20),
    ),
    "E2, tuned: 99.04 - 98.73 and at most 0.3 off": (
        "lenet-conv", 6, tuned_result("E2"), (0.02, 0.60), (0.00, 0.62),
    ),
    "E1+fc-v1, not below 98.92": (
        "lenet-full", 0, small_result("E1+fc-v1", 27_223), (98.92, 99.9), (98.91, 90.0),
    ),
    "E1+fc-v2, not below 98.47": (
        "lenet-full", 1, small_result("E1+fc-v2", 10_332), (98.47, 99.9), (98.46, 90.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_a_check_is_met_up_to_its_limit_and_missed_beyond(case: Case) -> None:
    experiment, place, found, met, missed = case
    assert [statuses(experiment, found(value))[place] for value in met] == ["met"] * len(met)
    assert [statuses(experiment, found(value))[place] for value in missed] == ["MISSED"] * len(
        missed
    )


@pytest.mark.parametrize(
    ("place", "row", "most"), [(0, "E1+fc-v1", 27_223), (1, "E1+fc-v2", 10_332)]
)
def test_an_accurate_network_that_is_too_large_misses_its_check(
    place: int, row: str, most: int
) -> None:
    assert statuses("lenet-full", small_result(row, most)(99.9))[place] == "met"
    assert statuses("lenet-full", small_result(row, most + 1)(99.9))[place] == "MISSED"
    both = small_result(row, most)(99.9), small_result(row, most + 1, seed=1)(99.9)
    assert statuses("lenet-full", *both)[place] == "MISSED"


def test_a_check_uses_the_row_and_the_method_that_it_names() -> None:
    assert (
        statuses("lenet-conv", raw_result("E1", "default", 8)(0.0))
        == [NOT_RUN] * 3 + ["met"] + [NOT_RUN] * 3
    )
    assert (
        statuses(
            "lenet-conv", raw_result("E2", "default", 4)(0.0), raw_result("E1", "widths", 8)(0.0)
        )
        == [NOT_RUN] * 7
    )
    assert statuses("lenet-full", small_result("E1+fc-v2", 1)(99.9)) == [NOT_RUN, "met"]


def test_seeds_are_judged_by_their_mean_and_channels_one_by_one() -> None:
    def one(seed: int, channels: int, accuracy: float) -> RowResult:
        shown = {"widths": {"conv1": channels}, "accuracy": accuracy}
        return RowResult(row="E1", method="paper", seed=seed, pruned=shown)

    baselines = {0: 99.0, 1: 50.0}
    far = one(0, 8, 97.0), one(1, 8, 50.0)  # drops of 2 and 0
    assert statuses("lenet-conv", *far, baselines=baselines)[:2] == ["met", "met"]
    wide = one(0, 7, 97.0), one(1, 10, 49.0)  # drops of 2 and 1
    assert statuses("lenet-conv", *wide, baselines=baselines)[:2] == ["MISSED", "MISSED"]
