"""A record is extended: valid results are kept, and two networks are never mixed."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from entrim.errors import DataError
from experiments.__main__ import main
from experiments.models import TrainedModel
from experiments.paper import pruning
from experiments.paper.reproduce import EXPERIMENTS
from experiments.work import Work
from tests.experiments.adding import draw, draw_another, is_refused, load_nothing, reproduce

Use = Callable[[Callable[..., TrainedModel]], None]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    def change(load: Callable[..., TrainedModel]) -> None:
        run = replace(EXPERIMENTS["lenet-conv"], load=load)
        monkeypatch.setitem(EXPERIMENTS, "lenet-conv", run)

    change(draw)
    return change


def cells(record: dict[str, Any], row: str, quantity: str) -> dict[str, list[Any]]:
    (line,) = (x for x in record["lines"] if (x["row"], x["quantity"]) == (row, quantity))
    return line["ours"]


def test_what_another_machine_has_run_stays_beside_what_is_run_here(
    use: Use, tmp_path: Path
) -> None:
    first = reproduce(tmp_path, "--epochs", "--methods", "paper", "--work", str(tmp_path / "there"))
    arguments = ("--epochs", "--methods", "widths", "--seeds", "1", "0")
    second = reproduce(tmp_path, *arguments)
    assert [(one["seed"], one["row"], one["method"]) for one in second["measured"]] == [
        (0, "E1", "paper"), (0, "E1", "widths"), (0, "E2", "paper"), (0, "E2", "widths"),
        (1, "E1", "widths"), (1, "E2", "widths"),
    ]  # fmt: skip
    old = [one for one in second["measured"] if one["method"] == "paper"]
    assert old == first["measured"]
    kept = cells(second, "E2", "channels kept")
    assert kept["paper"] == cells(first, "E2", "channels kept")["paper"] != []
    assert (kept["widths"], kept["default"]) == (["4", "4"], [])
    assert {line["seeds"] for line in second["lines"]} == {2}

    use(load_nothing)
    third = reproduce(tmp_path, "--finished", "--work", str(tmp_path / "empty"))
    assert (third["measured"], third["lines"]) == (second["measured"], second["lines"])
    assert third["notes"] == [
        f"LeNet, seed {seed}: never trained; baseline {base:.2f} %, as recorded before"
        for seed, base in {x["seed"]: x["baseline"] for x in second["measured"]}.items()
    ]
    assert not (tmp_path / "empty").exists()


def test_a_record_can_be_printed_where_its_network_is_missing_but_not_run(
    use: Use, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(work: Work, seed: int = 0, *, quick: bool = False) -> TrainedModel:
        raise DataError("weights are missing: put them there")

    before = reproduce(tmp_path, "--epochs", "--methods", "widths")
    use(missing)
    assert reproduce(tmp_path, "--finished")["measured"] == before["measured"]
    capsys.readouterr()
    for arguments in (["--epochs"], ["--finished", "--seeds", "1"]):
        assert is_refused(tmp_path, *arguments)
        assert capsys.readouterr().err.endswith("weights are missing: put them there\n")


def test_the_record_of_a_whole_run_is_not_made_poorer_by_a_part_of_it(
    use: Use, tmp_path: Path
) -> None:
    command = ["reproduce", "lenet-conv", "--work", str(tmp_path), "--methods"]
    for method, epochs in (("paper", []), ("widths", ["1"])):
        assert main([*command, method, "--epochs", *epochs]) == 0
    assert main([*command, "default", "--epochs"]) == 0
    record = json.loads((tmp_path / "lenet-conv.json").read_text())
    assert {one["method"] for one in record["measured"]} == {"paper", "widths", "default"}
    tuned = cells(record, "E1", "accuracy, fine tuned 1 epoch")
    assert {method: len(values) for method, values in tuned.items()} == {
        "paper": 0, "widths": 1, "default": 0,
    }  # fmt: skip


def test_a_run_that_ends_later_keeps_what_another_has_added_meanwhile(
    use: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, arguments = EXPERIMENTS["lenet-conv"], ("--epochs", "--methods", "widths")

    def late(work: Work, seed: int = 0, *, quick: bool = False) -> TrainedModel:
        if not (tmp_path / "record.json").exists():
            monkeypatch.setitem(EXPERIMENTS, "lenet-conv", run)
            reproduce(tmp_path, "--epochs", "--methods", "paper", "--work", str(tmp_path / "other"))
        return draw(work, seed, quick=quick)

    monkeypatch.setitem(EXPERIMENTS, "lenet-conv", replace(run, load=late))
    assert {one["method"] for one in reproduce(tmp_path, *arguments)["measured"]} == {
        "paper",
        "widths",
    }


def test_figures_of_two_networks_are_never_mixed(
    use: Use, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--epochs", "--methods", "widths")
    record = reproduce(tmp_path, *arguments, "--seeds", "0", "1")
    use(draw_another)
    assert is_refused(tmp_path, *arguments, "--seeds", "1")
    assert "the record is of another LeNet, seed 1 (weights " in capsys.readouterr().err
    for one in record["measured"]:
        del one["weights"]  # as in records of format 1
    (tmp_path / "record.json").write_text(json.dumps(record))
    assert is_refused(tmp_path, *arguments, "--seeds", "1")
    assert "the record is of another LeNet, seed 1 (baseline " in capsys.readouterr().err
    assert len(reproduce(tmp_path, *arguments, "--seeds", "2")["measured"]) == 6
    use(draw)
    assert len(reproduce(tmp_path, *arguments, "--seeds", "0")["measured"]) == 6


def test_what_was_cut_with_other_settings_than_today_is_left_out_and_told(
    use: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reproduce(tmp_path, "--epochs", "--methods", "paper", "widths")
    monkeypatch.setattr(pruning, "MIN_DECREASE", 0.5)
    record = reproduce(tmp_path, "--epochs", "--methods", "default")
    assert {one["method"] for one in record["measured"]} == {"widths", "default"}
    assert record["notes"][1:] == [
        f"LeNet, seed 0, {row}, paper: removed from the record, because it was pruned with other "
        "settings than today"
        for row in ("E1", "E2")
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("half a rec", "is not a record that could be extended (JSONDecodeError"),
        ("[]", "is not a record that could be extended (TypeError"),
        (
            '{"experiment": "lenet-conv", "format": 3, "measured": [3]}',
            "is not a record that could",
        ),
        ('{"experiment": "lenet-conv", "format": 3, "measured": [{}]}', "(KeyError: 'network')"),
        (
            '{"experiment": "lenet-conv", "format": 2, "measured": [{}]}',
            "of format 2, of a full run of lenet-conv; this is a full run of lenet-conv, "
            "format 3: name another with --record",
        ),
        ('{"experiment": "resnet18", "format": 3, "measured": []}', "a full run of resnet18; "),
        (
            '{"experiment": "lenet-conv", "format": 3, "measured": [], "quick": true}',
            "of a quick run of lenet-conv; this is a full run of lenet-conv",
        ),
    ],
)
def test_what_cannot_be_added_to_is_refused_before_anything_is_run(
    content: str, message: str, use: Use, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "record.json").write_text(content)
    assert is_refused(tmp_path)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "elsewhere").exists()
