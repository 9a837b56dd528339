"""The commands, as a shell executes them."""

import argparse
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import entrim
from entrim.cli import report, units
from entrim.cli.console import table
from entrim.cli.main import main
from entrim.report.report_data import read
from entrim.storage.model_folder import read_manifest
from tests.cli.conftest import Command, CommandResult, assert_refused, trained_network
from tests.report.runs import visible_text


def test_scores_are_read_from_a_file(command: Command, workshop: Path) -> None:
    torch.save({"0": torch.arange(8.0)}, workshop / "ranks.pt")
    words = ("sparsify", "nets.py:small", "--weights", "w.pt", "--images", "x.npy", "--width", "3")
    done = command(*words, "--scores", "ranks.pt", "--out", "ranked", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["kept"] == {"0": [5, 6, 7]}
    for name, part in (("x.npy", "contains one array"), ("gone.npz", "there is no file gone.npz")):
        bad = command(*words, "--scores", name, "--out", "never-ranked")
        assert (bad.code, bad.out) == (1, "")
        assert part in bad.err
    assert not (workshop / "never-ranked").exists()


def test_run_is_saved_with_report_and_summary(workshop: Path, half_result: CommandResult) -> None:
    assert half_result.code == 0, half_result.err
    story = read(workshop / "half")
    record = story.record
    assert record.after.params <= record.before.params / 2
    assert "saved in half, report half/report.html" in half_result.out
    for group in record.groups:
        assert [group.name, str(group.channels), str(len(group.kept))] in [
            line.split()[:3] for line in half_result.out.splitlines()
        ]
    assert (workshop / "half" / "report.html").read_text().startswith("<!doctype html>")
    assert story.command is not None
    assert story.command[:3] == ("entrim", "sparsify", "nets.py:small")
    loaded = entrim.load(trained_network(), workshop / "half")
    assert sum(p.numel() for p in loaded.parameters()) == record.after.params


def test_progress_goes_to_stderr_without_colors(half_result: CommandResult) -> None:
    assert "trace: 3 of 3" in half_result.err
    assert "reconstruct" not in half_result.out
    assert "\x1b" not in half_result.out + half_result.err
    assert "\r" not in half_result.err


def test_dry_run_prints_the_estimate_and_writes_nothing(command: Command, workshop: Path) -> None:
    words = ("sparsify", "nets.py:small", "--images", "x.npy", "--params", "50%", "--dry-run")
    before = sorted(workshop.iterdir())
    shown = command(*words, "--out", "never-written")
    assert shown.code == 0, shown.err
    rows = [line.split() for line in shown.out.splitlines()]
    assert rows[0] == ["stage", "seconds", "passes"]
    assert [row[0] for row in rows[1:5]] == ["trace", "collect", "select", "sensitivity"]
    done = command(*words, "--out", "never-written", "--json")
    estimate = json.loads(done.out)
    assert estimate["seconds"] == pytest.approx(sum(s["seconds"] for s in estimate["stages"]))
    assert sorted(workshop.iterdir()) == before


def test_force_replaces_a_run_and_options_are_passed_on(command: Command, workshop: Path) -> None:
    words = ("sparsify", "nets.py:small", "--images", "x.npy", "--count", "30", "--json")
    first = command(*words, "--width", "0=0.5", "--out", "other")
    assert first.code == 0, first.err
    assert len(json.loads(first.out)["kept"]["0"]) == 4
    more = ("--eps-w", "-1e-3", "--eps-l2", "1e-3", "--round-to", "3", "--out", "other", "--force")
    done = command(*words, *more, "--no-residual-correction", "--seed", "3")
    assert done.code == 0, done.err
    told, record = json.loads(done.out), read(workshop / "other").record
    assert record.holdout is not None
    assert told["holdout"]["images"] == record.holdout.images == 6
    assert told["holdout"]["error"].keys() == {"value", "low", "high"}
    assert told["after"]["params"] == record.after.params
    assert told["kept"] == {group.name: list(group.kept) for group in record.groups}
    assert record.images == 30
    budget = record.settings["budget"]
    assert budget["type"] == "EntropicPenalty"
    assert (budget["eps_w"], budget["eps_l2"], budget["round_to"]) == (-1e-3, 1e-3, 3)
    assert record.settings["reconstruction"]["residual_correction"] is False
    assert read_manifest(workshop / "other")["plan"]["kept"] == told["kept"]


def test_batch_of_the_timed_pass_is_reported(command: Command, workshop: Path) -> None:
    words = ("sparsify", "nets.py:small", "--images", "x.npy", "--count", "30", "--latency", "9s")
    done = command(*words, "--batch", "1", "--out", "single")
    assert done.code == 0, done.err
    assert "latency, batch of 1 " in done.out
    assert ", for 1 image<" in (workshop / "single" / "report.html").read_text()
    assert read(workshop / "single").record.after.batch == 1
    for batch in ("0", "31"):
        bad = command(*words, "--batch", batch, "--out", "never")
        assert_refused(bad, f"--batch is {batch}: pass 1 to 30, the number of images")
    assert not (workshop / "never").exists()


def test_compare_shows_one_column_per_run(
    command: Command, workshop: Path, half_result: CommandResult
) -> None:
    done = command("compare", "half", "half", "--layers")
    assert done.code == 0, done.err
    record = read(workshop / "half").record
    rows = [line.split() for line in done.out.splitlines()]
    assert rows[0] == ["half", "half"]
    kept = str(len(record.groups[0].kept))
    assert ["0", "8", "→", kept, "8", "→", kept] in rows
    told = json.loads(command("compare", "half", "--json").out)
    assert told[0]["after"]["params"] == record.after.params
    assert told[0]["error"] == record.error
    assert record.holdout is not None
    assert record.holdout.agreement is not None
    assert told[0]["holdout"]["agreement"]["low"] == record.holdout.agreement.low
    value, low, high = record.holdout.figures()["agreement"]
    assert ["agreement,", "unseen", "images", *2 * [value, f"({low}", "to", f"{high})"]] in rows
    assert told[0]["commands"] == [list(words) for words in read(workshop / "half").commands]


def test_compare_distinguishes_paths_and_shows_scores(
    command: Command, workshop: Path, half_result: CommandResult
) -> None:
    x = torch.from_numpy(np.load(workshop / "x.npy"))
    small = entrim.sparsify(trained_network(), x, entrim.Widths(0.5))
    small.with_scores(lambda _: 87.654).save(workshop / "r1" / "x")
    small.with_scores(lambda _: 3.0, "recall").save(workshop / "r2" / "x")
    done = command("compare", "r1/x", "r2/x", "half")
    assert done.code == 0, done.err
    rows = {line.split("  ")[0]: line.split() for line in done.out.splitlines() if line}
    assert done.out.splitlines()[0].split() == ["r1/x", "r2/x", "half"]
    assert rows["accuracy, %"][2:] == ["87.65", "→", "87.65", "–", "–"]
    assert rows["recall"][1:] == ["–", "3", "→", "3", "–"]
    assert (
        "\nr1/x:\n  small = entrim.sparsify(model, images, entrim.Widths(widths={'*': 0.5}), "
        "seed=0)\n" in done.out
    )
    assert "\nhalf:\n  entrim sparsify nets.py:small --images x.npy" in done.out
    assert "accuracy" not in command("compare", "half").out


def test_report_is_written_to_a_given_file(
    command: Command, workshop: Path, half_result: CommandResult
) -> None:
    done = command("report", "half", "--out", "page.html")
    assert (done.code, done.out) == (0, "page.html\n")
    page = (workshop / "page.html").read_text()
    assert "entrim sparsify nets.py:small --images x.npy" in visible_text(page)
    assert command("report", "half", "--out", "page.html").code == 0
    (workshop / "keep.txt").write_text("my thesis")
    done = command("report", "half", "--out", "keep.txt")
    assert_refused(
        done, "keep.txt exists and is not a report of entrim: name another file", "--force"
    )
    assert (workshop / "keep.txt").read_text() == "my thesis"
    assert command("report", "half", "--out", "keep.txt", "--force").code == 0
    assert (workshop / "keep.txt").read_text() == page
    (workshop / "half" / "report.html").write_text("torn")
    assert command("report", "half", "--out", "half/report.html").code == 0
    assert (workshop / "half" / "report.html").read_text() == page
    told = command("report", "half", "--json")
    assert json.loads(told.out) == {"report": "half/report.html"}


def test_interruptions_and_unexpected_errors_are_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(_: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    def surprise(_: argparse.Namespace) -> int:
        raise ZeroDivisionError("one\ntwo")

    for act, said in ((stop, "interrupted"), (surprise, "ZeroDivisionError: one (unexpected")):
        monkeypatch.setattr(report, "run", act)
        assert main(["report", "x"]) == 1
        assert capsys.readouterr().err.startswith(f"entrim: {said}")


@given(st.integers(1, 100))
def test_percentage_is_a_fraction(value: int) -> None:
    assert units.count(f"{value}%") == pytest.approx(value / 100)
    assert units.size(f"{value} %") == pytest.approx(value / 100)


@given(st.integers(1, 10**6))
def test_units_multiply(value: int) -> None:
    assert units.count(f"{value}") == value
    assert isinstance(units.count(f"{value}"), int)
    assert units.count(f"{value}k") == 1000 * value
    assert units.size(f"{value}MB") == 10**6 * value
    assert units.size(f"{value}MiB") == 2**20 * value
    assert units.time(f"{value}ms") == pytest.approx(value / 1000)


def test_integers_are_counts_and_floats_are_fractions() -> None:
    assert (units.count("0.5"), units.count("1")) == (0.5, 1)
    assert units.width("features.*=0.5") == ("features.*", 0.5)
    assert units.width("12") == ("*", 12)
    assert units.eps("conv*=-1e-4,1e-3") == ("conv*", (-1e-4, 1e-3))
    for bad in ("", "x", "-1", "0", "1..2", "nan"):
        with pytest.raises(argparse.ArgumentTypeError):
            units.count(bad)


def test_columns_are_aligned() -> None:
    assert table([["", "a"], ["name", "123"]]) == "        a\nname  123"
    assert table([["", "a"], ["层", "1"], ["fc", "2"]]) == "    a\n层  1\nfc  2"
    assert table([["n", "note"], ["1", "x"]], left=(1,)) == "n  note\n1  x"


def test_tables_for_pipes_are_plain_and_not_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in {"COLUMNS": "20", "FORCE_COLOR": "1"}.items():
        monkeypatch.setenv(variable, value)
    long = "[red]" + "x" * 300
    assert table([["", "a"], [long, "1"]]).splitlines()[1] == f"{long}  1"
