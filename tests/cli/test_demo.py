"""`entrim demo`: three pruned networks, each a run like any other."""

import json
import shutil
from pathlib import Path

import pytest

from entrim.cli import demo
from entrim.errors import CommandError
from entrim.report.report_data import read
from tests.cli.conftest import Command, CommandResult, assert_refused


def test_demo_beats_random_channels_and_the_paper(demo_result: CommandResult) -> None:
    assert demo_result.code == 0, demo_result.err
    rows = json.loads(demo_result.out)["rows"]
    assert list(rows) == ["trained", "paper", "entrim", "random"]
    accuracy = {name: row["accuracy"] for name, row in rows.items()}
    size = {name: row["parameters"] for name, row in rows.items()}
    assert accuracy["trained"] > 95
    assert accuracy["entrim"] > max(accuracy["random"], accuracy["paper"]) + 5
    assert size["random"] == size["entrim"] <= size["paper"] < size["trained"] / 20
    tuned = {name: row["fine_tuned"] for name, row in rows.items()}
    assert tuned.pop("trained") is None
    assert all(tuned[name] > accuracy[name] for name in tuned)
    assert "fine-tune: 5 of 5" in demo_result.err
    heads = [line for line in demo_result.err.splitlines() if line.endswith(":")]
    assert heads == ["the paper's method:", "entrim:", "random channels, reconstructed:"]


def test_sizes_are_those_of_the_files(demo_result: CommandResult, workshop: Path) -> None:
    rows, place = json.loads(demo_result.out)["rows"], workshop / "entrim-demo"
    (file,) = (place / "entrim").glob("*.safetensors")
    assert rows["entrim"]["bytes_on_disk"] == file.stat().st_size
    full = (place / "trained.safetensors").stat().st_size
    assert rows["trained"]["bytes_on_disk"] == full > 4 * rows["trained"]["parameters"]


def test_reports_contain_accuracy_descent_and_tradeoff(
    demo_result: CommandResult, workshop: Path
) -> None:
    result = json.loads(demo_result.out)
    pages = {name: (workshop / page).read_text() for name, page in result["reports"].items()}
    for name, page in pages.items():
        score = read(workshop / "entrim-demo" / name).record.score
        assert score is not None
        assert score.after == result["rows"][name]["accuracy"]
        assert f"on {result['images']} test digits" in page
    assert "optimality residual" in pages["paper"]
    assert "The trade-off" in pages["entrim"]


def test_demo_runs_can_be_distilled_and_compared(
    demo_result: CommandResult, command: Command, workshop: Path
) -> None:
    words = ("distill", "entrim-demo/entrim", "--epochs", "1", "--out", "taught-digits")
    done = command(*words, "--json")
    assert done.code == 0, done.err
    distilled = json.loads(done.out)["distilled"]
    held = read(workshop / "entrim-demo" / "entrim").record.holdout
    assert held is not None
    assert distilled["images"] + distilled["holdout"] + held.images == demo.CALIBRATION
    assert command("compare", "entrim-demo/paper", "entrim-demo/entrim").code == 0


def test_demo_does_not_overwrite_other_files(
    demo_result: CommandResult, command: Command, workshop: Path
) -> None:
    mine = workshop / "mine" / "entrim"
    words = ("--images", "x.npy", "--width", "0.5", "--out", "mine/entrim")
    assert command("sparsify", "nets.py:small", *words).code == 0
    before = {entry.name: entry.read_bytes() for entry in mine.iterdir()}
    assert_refused(command("demo", "--out", "mine"), "mine contains something other than a demo")
    assert before == {entry.name: entry.read_bytes() for entry in mine.iterdir()}
    assert_refused(command("demo", "--out", ""), "contains something other than a demo")
    (workshop / "notes").mkdir()
    (workshop / "notes" / "thesis.txt").write_text("words")
    assert_refused(command("demo", "--out", "notes"), "name another folder with --out")
    assert [entry.name for entry in (workshop / "notes").iterdir()] == ["thesis.txt"]


def test_only_an_earlier_demo_is_replaced(
    demo_result: CommandResult, workshop: Path, tmp_path: Path
) -> None:
    place = tmp_path / "again"
    shutil.copytree(workshop / "entrim-demo", place)
    demo.check_folder(place)
    (place / "thesis.txt").write_text("words")
    with pytest.raises(CommandError, match="something other than a demo"):
        demo.check_folder(place)
