"""How points of an earlier record and new ones come together."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.paper.earlier import Earlier, Point

NAMES = ("row", "way", "seed")


def point(**more: Any) -> dict[str, Any]:
    cut = {"widths": {"conv1": 8}, "parameters": 9, "accuracy": 97.0, "stage": "a"}
    told = {"row": "E1", "way": "paper", "seed": 0, "network": "LeNet", "origin": "here"}
    return {**told, "baseline": 99.0, "cut": cut, **more}


def beside(old: Point, new: Point) -> list[Point]:
    return Earlier((old,)).beside([new], NAMES, lambda p: p["seed"])


def test_trainings_and_timing_of_the_same_cut_stay() -> None:
    old = point(tuned={1: 98.0, 3: 98.5}, scratch={1: 50.0}, timing={"speedup": 2.0})
    (same,) = beside(old, point(tuned={1: 98.1}, scratch={3: 60.0}, timing=None))
    assert same["tuned"] == {1: 98.1, 3: 98.5}
    assert same["scratch"] == {1: 50.0, 3: 60.0}
    assert same["timing"] == {"speedup": 2.0}
    (timed,) = beside(old, point(tuned={}, timing={"speedup": 3.0}))
    assert timed["timing"] == {"speedup": 3.0}


@pytest.mark.parametrize(
    "other", [{"widths": {"conv1": 7}}, {"parameters": 8}, {"accuracy": 96.9}, {"stage": "b"}]
)
def test_trainings_of_another_cut_go(other: dict[str, Any]) -> None:
    old, new = point(tuned={3: 98.5}), point(tuned={1: 98.1})
    new["cut"] = {**new["cut"], **other}
    assert beside(old, new) == [new]


def test_another_seed_way_or_row_is_another_point() -> None:
    for other in ({"seed": 1}, {"way": "widths"}, {"row": "E2"}):
        assert len(beside(point(), point(**other))) == 2


def test_epochs_are_numbers_again_when_a_record_is_read(tmp_path: Path) -> None:
    file, told = tmp_path / "record.json", point(tuned={1: 98.0}, scratch={2: 3.0})
    file.write_text(json.dumps({"experiment": "x", "format": 2, "measured": [told]}))
    assert Earlier.read(file, "x", quick=False).points == (told,)
    assert Earlier.read(tmp_path / "missing.json", "x", quick=False).points == ()
