"""The commands, as a shell runs them."""

import argparse
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import entrim
from entrim.cli import report
from entrim.cli import units as amounts
from entrim.cli.console import table
from entrim.cli.main import main
from entrim.report.report_data import read
from entrim.storage.model_folder import read_manifest
from tests.cli.conftest import Command, Ended, assert_refused, taught


def test_scores_of_ones_own_come_from_a_file(command: Command, workshop: Path) -> None:
    torch.save({"0": torch.arange(8.0)}, workshop / "ranks.pt")
    words = ("sparsify", "nets.py:small", "--weights", "w.pt", "--images", "x.npy", "--width", "3")
    done = command(*words, "--scores", "ranks.pt", "--out", "ranked", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["kept"] == {"0": [5, 6, 7]}
    for name, part in (("x.npy", "holds one array"), ("gone.npz", "there is no file gone.npz")):
        bad = command(*words, "--scores", name, "--out", "never-ranked")
        assert (bad.code, bad.out) == (1, "")
        assert part in bad.err
    assert not (workshop / "never-ranked").exists()


def test_a_run_is_saved_reported_and_summed_up(workshop: Path, ended: Ended) -> None:
    assert ended.code == 0, ended.err
    story = read(workshop / "half")
    record = story.record
    assert record.after.params <= record.before.params / 2
    assert "saved in half, report half/report.html" in ended.out
    for group in record.groups:
        assert [group.name, str(group.channels), str(len(group.kept))] in [
            line.split()[:3] for line in ended.out.splitlines()
        ]
    assert (workshop / "half" / "report.html").read_text().startswith("<!doctype html>")
    assert story.command is not None
    assert story.command[:3] == ("entrim", "sparsify", "nets.py:small")
    loaded = entrim.load(taught(), workshop / "half")
    assert sum(p.numel() for p in loaded.parameters()) == record.after.params


def test_progress_goes_to_stderr_and_nothing_is_coloured_when_piped(ended: Ended) -> None:
    assert "trace: 1 of 1" in ended.err
    assert "rebuild" not in ended.out
    assert "\x1b" not in ended.out + ended.err
    assert "\r" not in ended.err


def test_force_replaces_a_run_and_options_reach_the_function(
    command: Command, workshop: Path
) -> None:
    words = ("sparsify", "nets.py:small", "--images", "x.npy", "--count", "30", "--json")
    first = command(*words, "--width", "0=0.5", "--out", "other")
    assert first.code == 0, first.err
    assert len(json.loads(first.out)["kept"]["0"]) == 4
    more = ("--eps-w", "-1e-3", "--eps-l2", "1e-3", "--round-to", "3", "--out", "other", "--force")
    done = command(*words, *more, "--no-correct", "--seed", "3")
    assert done.code == 0, done.err
    told, record = json.loads(done.out), read(workshop / "other").record
    assert told["after"]["params"] == record.after.params
    assert told["kept"] == {group.name: list(group.kept) for group in record.groups}
    assert record.images == 30
    settings = record.settings
    assert (settings["eps_w"], settings["eps_l2"], settings["round_to"]) == (-1e-3, 1e-3, 3)
    assert settings["correct"] is False
    assert read_manifest(workshop / "other")["plan"]["kept"] == told["kept"]


def test_the_images_of_the_pass_that_is_timed_are_told(command: Command, workshop: Path) -> None:
    words = ("sparsify", "nets.py:small", "--images", "x.npy", "--count", "30", "--latency", "9s")
    done = command(*words, "--batch", "1", "--out", "single")
    assert done.code == 0, done.err
    assert "latency, batch of 1 " in done.out
    assert ", for 1 image<" in (workshop / "single" / "report.html").read_text()
    assert read(workshop / "single").record.after.batch == 1
    for batch in ("0", "31"):
        bad = command(*words, "--batch", batch, "--out", "never")
        assert_refused(bad, f"--batch is {batch}: ask for 1 to 30 images")
    assert not (workshop / "never").exists()


def test_runs_stand_side_by_side(command: Command, workshop: Path, ended: Ended) -> None:
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
    assert told[0]["commands"] == [list(words) for words in read(workshop / "half").commands]


def test_runs_of_one_name_are_told_apart_and_their_scores_have_a_row(
    command: Command, workshop: Path, ended: Ended
) -> None:
    x = torch.from_numpy(np.load(workshop / "x.npy"))
    small = entrim.sparsify(taught(), x, widths={"*": 0.5})
    small.with_scores(lambda _: 87.654).save(workshop / "r1" / "x")
    small.with_scores(lambda _: 3.0, "recall").save(workshop / "r2" / "x")
    done = command("compare", "r1/x", "r2/x", "half")
    assert done.code == 0, done.err
    rows = {line.split("  ")[0]: line.split() for line in done.out.splitlines() if line}
    assert done.out.splitlines()[0].split() == ["r1/x", "r2/x", "half"]
    assert rows["accuracy, %"][2:] == ["87.65", "→", "87.65", "–", "–"]
    assert rows["recall"][1:] == ["–", "3", "→", "3", "–"]
    assert "\nr1/x:\n  small = entrim.sparsify(model, images, widths={'*': 0.5})\n" in done.out
    assert "\nhalf:\n  entrim sparsify nets.py:small --images x.npy" in done.out
    assert "accuracy" not in command("compare", "half").out


def test_a_report_is_written_where_it_is_wanted(
    command: Command, workshop: Path, ended: Ended
) -> None:
    done = command("report", "half", "--out", "page.html")
    assert (done.code, done.out) == (0, "page.html\n")
    page = (workshop / "page.html").read_text()
    assert "entrim sparsify nets.py:small --images x.npy" in page
    assert command("report", "half", "--out", "page.html").code == 0
    (workshop / "keep.txt").write_text("my thesis")
    done = command("report", "half", "--out", "keep.txt")
    assert_refused(done, "keep.txt is there and no report of entrim: name another file", "--force")
    assert (workshop / "keep.txt").read_text() == "my thesis"
    assert command("report", "half", "--out", "keep.txt", "--force").code == 0
    assert (workshop / "keep.txt").read_text() == page
    (workshop / "half" / "report.html").write_text("torn")
    assert command("report", "half", "--out", "half/report.html").code == 0
    assert (workshop / "half" / "report.html").read_text() == page
    told = command("report", "half", "--json")
    assert json.loads(told.out) == {"report": "half/report.html"}


def test_an_interruption_and_a_surprise_are_one_sentence(
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
def test_a_percentage_is_a_share(value: int) -> None:
    assert amounts.count(f"{value}%") == pytest.approx(value / 100)
    assert amounts.size(f"{value} %") == pytest.approx(value / 100)


@given(st.integers(1, 10**6))
def test_units_multiply(value: int) -> None:
    assert amounts.count(f"{value}") == value
    assert isinstance(amounts.count(f"{value}"), int)
    assert amounts.count(f"{value}k") == 1000 * value
    assert amounts.size(f"{value}MB") == 10**6 * value
    assert amounts.size(f"{value}MiB") == 2**20 * value
    assert amounts.time(f"{value}ms") == pytest.approx(value / 1000)


def test_a_bare_one_is_a_count_and_a_fraction_is_a_share() -> None:
    assert (amounts.count("0.5"), amounts.count("1")) == (0.5, 1)
    assert amounts.width("features.*=0.5") == ("features.*", 0.5)
    assert amounts.width("12") == ("*", 12)
    assert amounts.eps("conv*=-1e-4,1e-3") == ("conv*", (-1e-4, 1e-3))
    for bad in ("", "x", "-1", "0", "1..2", "nan"):
        with pytest.raises(argparse.ArgumentTypeError):
            amounts.count(bad)


def test_columns_line_up() -> None:
    assert table([["", "a"], ["name", "123"]]) == "        a\nname  123"
    assert table([["", "a"], ["层", "1"], ["fc", "2"]]) == "    a\n层  1\nfc  2"
