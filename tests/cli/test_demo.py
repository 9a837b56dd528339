"""`entrim demo`: three cuts of one network, each a run like any other."""

import json
import shutil
from pathlib import Path

import pytest

from entrim.cli import demo
from entrim.errors import CommandError
from entrim.report.report_data import read
from tests.cli.conftest import Command, Ended, assert_refused


def test_the_demo_keeps_more_than_chance_and_the_paper(shown: Ended) -> None:
    assert shown.code == 0, shown.err
    rows = json.loads(shown.out)["rows"]
    assert list(rows) == ["trained", "paper", "entrim", "random"]
    right = {name: row["accuracy"] for name, row in rows.items()}
    size = {name: row["parameters"] for name, row in rows.items()}
    assert right["trained"] > 95
    assert right["entrim"] > max(right["random"], right["paper"]) + 5
    assert size["random"] == size["entrim"] <= size["paper"] < size["trained"] / 20
    tuned = {name: row["fine_tuned"] for name, row in rows.items()}
    assert tuned.pop("trained") is None
    assert all(tuned[name] > right[name] for name in tuned)
    assert "fine tune: 5 of 5" in shown.err
    heads = [line for line in shown.err.splitlines() if line.endswith(":")]
    assert heads == ["the paper's method:", "entrim:", "random channels, rebuilt:"]


def test_sizes_are_those_of_the_files(shown: Ended, workshop: Path) -> None:
    rows, place = json.loads(shown.out)["rows"], workshop / "entrim-demo"
    (file,) = (place / "entrim").glob("*.safetensors")
    assert rows["entrim"]["bytes_on_disk"] == file.stat().st_size
    whole = (place / "trained.safetensors").stat().st_size
    assert rows["trained"]["bytes_on_disk"] == whole > 4 * rows["trained"]["parameters"]


def test_reports_tell_accuracy_descents_and_the_trade_off(shown: Ended, workshop: Path) -> None:
    told = json.loads(shown.out)
    pages = {name: (workshop / page).read_text() for name, page in told["reports"].items()}
    for name, page in pages.items():
        score = read(workshop / "entrim-demo" / name).record.score
        assert score is not None
        assert score.after == told["rows"][name]["accuracy"]
        assert f"on {told['images']} digits never seen" in page
    assert "certificate" in pages["paper"]
    assert "The trade-off" in pages["entrim"]


def test_a_cut_of_the_demo_is_a_run_like_any_other(
    shown: Ended, command: Command, workshop: Path
) -> None:
    words = ("distill", "entrim-demo/entrim", "--epochs", "1", "--out", "taught-digits")
    done = command(*words, "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)["distilled"]
    assert told["images"] + told["held_out"] == demo.CALIBRATION
    assert command("compare", "entrim-demo/paper", "entrim-demo/entrim").code == 0


def test_what_a_demo_would_overwrite_is_kept(
    shown: Ended, command: Command, workshop: Path
) -> None:
    mine = workshop / "mine" / "entrim"
    cut = ("--images", "x.npy", "--width", "0.5", "--out", "mine/entrim")
    assert command("sparsify", "nets.py:small", *cut).code == 0
    before = {entry.name: entry.read_bytes() for entry in mine.iterdir()}
    assert_refused(command("demo", "--out", "mine"), "mine holds something else than a demo")
    assert before == {entry.name: entry.read_bytes() for entry in mine.iterdir()}
    assert_refused(command("demo", "--out", ""), "holds something else than a demo")
    (workshop / "notes").mkdir()
    (workshop / "notes" / "thesis.txt").write_text("words")
    assert_refused(command("demo", "--out", "notes"), "name another folder with --out")
    assert [entry.name for entry in (workshop / "notes").iterdir()] == ["thesis.txt"]


def test_only_an_earlier_demo_is_replaced(shown: Ended, workshop: Path, tmp_path: Path) -> None:
    place = tmp_path / "again"
    shutil.copytree(workshop / "entrim-demo", place)
    demo.check_folder(place)
    (place / "thesis.txt").write_text("words")
    with pytest.raises(CommandError, match="something else than a demo"):
        demo.check_folder(place)
