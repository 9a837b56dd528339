"""How points of an earlier record and new ones are merged."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.paper.records import Point, PreviousRecord

NAMES = ("row", "method", "seed")


def point(**more: Any) -> dict[str, Any]:
    pruned = {"widths": {"conv1": 8}, "parameters": 9, "accuracy": 97.0, "stage": "a"}
    described = {"row": "E1", "method": "paper", "seed": 0, "network": "LeNet", "origin": "here"}
    return {**described, "baseline": 99.0, "pruned": pruned, **more}


def merge(old: Point, new: Point) -> list[Point]:
    return PreviousRecord((old,)).merge([new], NAMES, lambda p: p["seed"])


def test_trainings_and_timing_of_the_same_cut_stay() -> None:
    old = point(tuned={1: 98.0, 3: 98.5}, scratch={1: 50.0}, timing={"speedup": 2.0})
    (same,) = merge(old, point(tuned={1: 98.1}, scratch={3: 60.0}, timing=None))
    assert same["tuned"] == {1: 98.1, 3: 98.5}
    assert same["scratch"] == {1: 50.0, 3: 60.0}
    assert same["timing"] == {"speedup": 2.0}
    (timed,) = merge(old, point(tuned={}, timing={"speedup": 3.0}))
    assert timed["timing"] == {"speedup": 3.0}


@pytest.mark.parametrize(
    "other", [{"widths": {"conv1": 7}}, {"parameters": 8}, {"accuracy": 96.9}, {"stage": "b"}]
)
def test_trainings_of_another_cut_go(other: dict[str, Any]) -> None:
    old, new = point(tuned={3: 98.5}), point(tuned={1: 98.1})
    new["pruned"] = {**new["pruned"], **other}
    assert merge(old, new) == [new]


def test_another_seed_way_or_row_is_another_point() -> None:
    for other in ({"seed": 1}, {"method": "widths"}, {"row": "E2"}):
        assert len(merge(point(), point(**other))) == 2


def test_epochs_are_numbers_again_when_a_record_is_read(tmp_path: Path) -> None:
    file, recorded = tmp_path / "record.json", point(tuned={1: 98.0}, scratch={2: 3.0})
    file.write_text(json.dumps({"experiment": "x", "format": 3, "measured": [recorded]}))
    assert PreviousRecord.read(file, "x", quick=False).points == (recorded,)
    assert PreviousRecord.read(tmp_path / "missing.json", "x", quick=False).points == ()
