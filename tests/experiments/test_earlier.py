"""A record that is there is added to: nothing is taken out, and no two networks are mixed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from entrim.commands.main import main
from entrim.errors import DataError
from entrim.experiments.earlier import Earlier
from entrim.experiments.panels import lenet
from entrim.experiments.reproduce import EXPERIMENTS
from entrim.experiments.studies import STUDIES
from tests.experiments.toys import toy

NAMES = ("row", "way", "seed")


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    run = replace(EXPERIMENTS["lenet-conv"], subject=toy)
    monkeypatch.setitem(EXPERIMENTS, "lenet-conv", run)


def reproduce(tmp_path: Path, work: str, *told: str) -> dict[str, Any]:
    file = tmp_path / "record.json"
    command = ["reproduce", "lenet-conv", "--epochs", "--work", str(tmp_path / work)]
    assert main([*command, "--record", str(file), *told]) == 0
    return json.loads(file.read_text())


def cells(record: dict[str, Any], row: str, quantity: str) -> dict[str, list[Any]]:
    (line,) = (x for x in record["lines"] if (x["row"], x["quantity"]) == (row, quantity))
    return line["ours"]


def test_what_another_machine_has_run_stays_beside_what_is_run_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = reproduce(tmp_path, "there", "--ways", "paper")
    second = reproduce(tmp_path, "here", "--ways", "widths", "--seeds", "0", "1")
    kept = cells(second, "E2", "channels kept")
    assert kept["paper"] == cells(first, "E2", "channels kept")["paper"] != []
    assert (kept["widths"], kept["default"]) == (["4", "4"], [])
    assert [(one["row"], one["way"], one["seed"]) for one in second["measured"]] == [
        ("E1", "paper", 0), ("E2", "paper", 0), ("E1", "widths", 0),
        ("E2", "widths", 0), ("E1", "widths", 1), ("E2", "widths", 1),
    ]  # fmt: skip
    assert second["measured"][:2] == first["measured"]
    capsys.readouterr()
    third = reproduce(tmp_path, "empty", "--finished")
    assert third["measured"] == second["measured"]
    assert third["lines"] == second["lines"]
    assert third["notes"] == [
        "seed 0: not run",
        *(
            f"seed {seed}: as in the record that was there; baseline {base:.2f} %"
            for seed, base in {x["seed"]: x["baseline"] for x in second["measured"]}.items()
        ),
    ]


def test_the_record_of_a_whole_run_is_not_made_poorer_by_a_part_of_it(tmp_path: Path) -> None:
    command = ["reproduce", "lenet-conv", "--epochs", "--work", str(tmp_path), "--ways"]
    for way in ("paper", "widths"):
        assert main([*command, way]) == 0
    record = json.loads((tmp_path / "lenet-conv.json").read_text())
    assert {one["way"] for one in record["measured"]} == {"paper", "widths"}


def test_figures_of_two_networks_are_never_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reproduce(tmp_path, "there", "--ways", "widths")
    before = (tmp_path / "record.json").read_bytes()
    monkeypatch.setattr("entrim.experiments.reproduce.baseline", lambda *_: 99.0)
    told = ["--record", str(tmp_path / "record.json"), "--work", str(tmp_path / "here")]
    assert main(["reproduce", "lenet-conv", "--epochs", *told]) == 1
    assert "the record tells of another network" in capsys.readouterr().err
    assert (tmp_path / "record.json").read_bytes() == before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("half a rec", "is no record that could be added to (JSONDecodeError"),
        ("[]", "is no record that could be added to (TypeError"),
        ('{"experiment": "lenet-conv", "measured": [3]}', "is no record that could be added to"),
        ('{"experiment": "resnet18", "measured": []}', "is a record of resnet18: name another"),
        (
            '{"experiment": "lenet-conv", "measured": [], "quick": true}',
            "is a quick record of lenet-conv: name another with --record",
        ),
    ],
)
def test_what_cannot_be_added_to_is_refused_before_anything_is_run_and_left_alone(
    content: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "record.json"
    file.write_text(content)
    told = ["--record", str(file), "--work", str(tmp_path / "work")]
    assert main(["reproduce", "lenet-conv", *told]) == 1
    assert said in capsys.readouterr().err
    assert file.read_text() == content
    assert not (tmp_path / "work").exists()


def test_a_quick_run_says_so_in_its_record_and_adds_to_no_other(tmp_path: Path) -> None:
    record = reproduce(tmp_path, "work", "--ways", "widths", "--quick")
    assert record["quick"] is True
    with pytest.raises(DataError, match="is a quick record of lenet-conv"):
        Earlier.read(tmp_path / "record.json", "lenet-conv", quick=False)


def point(accuracy: float, tuned: dict[int, float], timing: Any = None) -> dict[str, Any]:
    cut = {"widths": {"conv1": 8}, "parameters": 9, "accuracy": accuracy, "seconds": accuracy}
    told = {"row": "E1", "way": "paper", "seed": 0, "baseline": 99.0, "cut": cut}
    return {**told, "tuned": tuned, "scratch": {}, "timing": timing}


def test_trainings_of_the_same_cut_stay_and_those_of_another_go() -> None:
    earlier = Earlier((point(97.0, {1: 98.0, 3: 98.5}, {"speedup": 2.0}),))
    (same,) = earlier.beside([point(97.0, {1: 98.1})], NAMES)
    assert same["tuned"] == {1: 98.1, 3: 98.5}
    assert same["timing"] == {"speedup": 2.0}
    (other,) = earlier.beside([point(96.0, {1: 98.1})], NAMES)
    assert other == point(96.0, {1: 98.1})


def test_epochs_are_numbers_again_when_a_record_is_read(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    file.write_text(json.dumps({"experiment": "x", "measured": [point(97.0, {1: 98.0})]}))
    assert Earlier.read(file, "x", quick=False).points == (point(97.0, {1: 98.0}),)
    assert Earlier.read(tmp_path / "missing.json", "x", quick=False).points == ()


def test_a_study_runs_the_networks_that_are_named_and_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = replace(lenet("E1", epochs=0), subject=toy)
    (row,) = mine.rows
    other = replace(mine, network="Other", rows=(replace(row, name="Other, E1"),))
    whole = STUDIES["comparison"]
    some = tuple(variant for variant in whole.variants if variant.name == "greedy, rebuilt")
    monkeypatch.setitem(STUDIES, "comparison", replace(whole, variants=some, panels=(mine, other)))
    file = tmp_path / "comparison.json"

    def run(network: str) -> dict[str, Any]:
        assert (
            main(["reproduce", "comparison", "--work", str(tmp_path), "--networks", network]) == 0
        )
        return json.loads(file.read_text())

    first = run("Other")
    assert "comparison: Other; 1 variants of 1 rows" in capsys.readouterr().err
    assert [one["row"] for one in first["measured"]] == ["Other, E1"]
    assert first["lines"][0]["ours"]["E1"] == []
    second = run("LeNet")
    assert [one["row"] for one in second["measured"]] == ["Other, E1", "E1"]
    drops = second["lines"][0]["ours"]
    assert drops.keys() == {"E1", "Other, E1"}
    assert all(len(values) == 1 for values in drops.values())
    base = second["measured"][0]["baseline"]
    assert (
        f"Other, seed 0: as in the record that was there; baseline {base:.2f} %"
        in (second["notes"])
    )
