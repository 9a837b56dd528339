"""`python -m experiments reproduce`: published beside ours, and nothing is run twice."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from entrim import ProgressEvent, trace
from entrim.errors import BadSettingError, SaveError
from experiments.__main__ import main
from experiments.models import ZOO
from experiments.paper.activations import live_channels
from experiments.paper.lines import checks
from experiments.paper.pruning import RowResult, Training, size_at
from experiments.paper.published import tables
from experiments.paper.report import NOT_RUN, Report
from experiments.paper.reproduce import EXPERIMENTS, Options
from experiments.paper.rows import rows_of
from experiments.paper.studies import STUDIES
from experiments.training import cifar_training
from experiments.work import NotFinishedError, Work
from tests.experiments.toys import toy


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    run = replace(EXPERIMENTS["lenet-conv"], load=toy)
    monkeypatch.setitem(EXPERIMENTS, "lenet-conv", run)


def test_a_table_is_printed_and_recorded_and_a_second_run_only_reads(
    toys: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["reproduce", "lenet-conv", "--work", str(tmp_path), "--epochs", "1"]
    arguments += ["--methods", "paper", "default"]
    assert main([*arguments, "--finished"]) == 0
    before = capsys.readouterr()
    assert "98.49%" in before.out
    assert "seed 0: not run" in before.out
    assert before.err == ""

    assert main(arguments) == 0
    first = capsys.readouterr()
    assert "epochs of training" not in first.out
    assert "epochs of training" in first.err
    record = json.loads((tmp_path / "lenet-conv.json").read_text())
    assert {one["method"] for one in record["measured"]} == {"paper", "default"}
    for one in record["measured"]:
        assert one["seed"] == 0
        assert set(one["tuned"]) == set(one["scratch"]) == {"1"}
    widths = [
        one["pruned"]["widths"]["conv1"] for one in record["measured"] if one["method"] == "default"
    ]
    assert widths == [8, 4]

    steps: list[ProgressEvent] = []
    options = Options(epochs=(1,), methods=("paper", "default"))
    again = EXPERIMENTS["lenet-conv"].run(Work(tmp_path, steps.append), options)
    assert steps == []
    assert again.markdown() + "\n" == first.out
    assert main([*arguments, "--finished"]) == 0
    assert capsys.readouterr().out == first.out


def test_printing_what_is_finished_writes_only_the_record_that_was_named(
    toys: None, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    arguments = ["reproduce", "lenet-conv", "--work", str(work), "--finished"]
    assert main(arguments) == 0
    assert not work.exists()
    assert main([*arguments, "--record", str(tmp_path / "record.json")]) == 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "0", "-1"], "seeds must be non-negative integers, got [0, -1]"),
        (["--epochs", "0"], "epochs must be positive integers, got [0]"),
        (["--record", "{folder}/missing/record.json"], "there is no folder {folder}/missing"),
        (["--record", "{folder}"], "{folder} is a folder: name a file"),
        (["images", "--methods", "paper"], "images has no --methods: leave it out"),
        (["robustness", "--no-scratch"], "robustness has no --no-scratch: leave it out"),
        (["--networks", "LeNet"], "lenet-conv has one network: leave --networks out"),
        (
            ["images", "--networks", "LeNet", "AlexNet"],
            "there is no AlexNet here: name some of LeNet, ResNet-56",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_run(
    arguments: list[str],
    message: str,
    toys: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = [word.format(folder=tmp_path) for word in arguments]
    experiment = [] if arguments[0] in (*STUDIES, "robustness") else ["lenet-conv"]
    assert main(["reproduce", *experiment, *arguments, "--work", str(tmp_path / "work")]) == 1
    assert message.format(folder=tmp_path) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def pruned_only(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return the table of a toy, pruned by one method, without trainings."""
    run = replace(EXPERIMENTS["lenet-conv"], load=toy)
    return run.run(Work(tmp_path_factory.mktemp("work")), Options(epochs=(), methods=("widths",)))


def test_what_was_not_run_says_so_and_has_no_difference(pruned_only: Report) -> None:
    lines = {(line.row, line.quantity): line.cells() for line in pruned_only.lines}
    assert lines["E1", "accuracy, fine tuned 10 epochs"][2:] == ["99.03%", *[NOT_RUN, ""] * 3]
    paper, ours, difference = lines["E1", "parameters"][2], *lines["E1", "parameters"][5:7]
    assert (paper, ours, difference) == ("36,498", "36,498", "+0")
    assert lines["E2", "channels kept"][2:6] == ["4", NOT_RUN, "", "4"]
    assert len(pruned_only.checks) == 7
    assert all(check.startswith(NOT_RUN) for check in pruned_only.checks)


def test_a_drop_is_counted_from_the_own_baseline(pruned_only: Report) -> None:
    lines = {(line.row, line.quantity): line for line in pruned_only.lines}
    measured, _ = pruned_only.measured
    assert lines["E1", "drop, raw"].paper.printed == "0.55"  # 99.04 - 98.49
    expected = measured["baseline"] - measured["pruned"]["accuracy"]
    assert lines["E1", "drop, raw"].ours["widths"] == [pytest.approx(expected)]


def test_every_row_tells_sizes_and_speed_also_where_the_paper_does_not(pruned_only: Report) -> None:
    lines = {(line.row, line.quantity): line for line in pruned_only.lines}
    (pruned, timing), _ = ((one["pruned"], one["timing"]) for one in pruned_only.measured)
    (size,), (macs,), (speedup,) = (
        lines["E1", name].ours["widths"]
        for name in ("size, MB", "FLOPs; ours MACs", "speedup, batch of 4")
    )
    assert (size, macs, speedup) == (pruned["bytes"] / 1e6, pruned["FLOPs"], timing["speedup"])
    assert size == pytest.approx(4 * 36_498 / 1e6)
    full = {row.name: row.cells for row in rows_of("vgg16-full")}
    assert full["conv_all+fc"]["size"].printed == "6.5MB"
    assert "local sparsity" not in full["conv_all+fc"]


@pytest.mark.parametrize("experiment", list(EXPERIMENTS))
def test_every_row_names_groups_that_its_network_has(experiment: str) -> None:
    with torch.device("meta"):
        model = ZOO[EXPERIMENTS[experiment].network].build()
    for row in rows_of(experiment):
        assert row.eps.keys() == row.widths.keys()
        for name in row.eps:
            width = model.get_submodule(name).get_parameter("weight").shape[0]
            assert 1 <= row.widths[name] <= width


def test_the_layer_sets_are_those_of_the_paper() -> None:
    groups = {row.name: len(row.eps) for row in rows_of("vgg16-groups")}
    assert groups == {"conv1-4": 4, "conv5-7": 3, "conv8-10": 3, "conv11-12": 2, "conv8-12": 5}
    assert [len(row.eps) for row in rows_of("vgg16-full")] == [12, 13]
    assert [len(row.eps) for row in rows_of("resnet18")] == [2, 6]
    assert [list(row.eps) for row in rows_of("lenet-full")] == [["conv1", "fc1", "fc2"]] * 2


def test_the_published_epochs_are_run() -> None:
    (row,) = rows_of("vgg16-epochs")
    assert list(row.tuned) == list(row.scratch) == [1, 10, 20, 50, 70, 100, 160]
    assert row.tuned[1] == tables()["vgg16-epochs"].cell("fine tune", "1")
    assert [list(row.tuned) for row in rows_of("resnet18")] == [[1, 20], [1, 50]]


@pytest.mark.parametrize("experiment", ["lenet-conv", "lenet-full"])
def test_the_budget_is_the_printed_number_of_parameters(experiment: str, tmp_path: Path) -> None:
    for row in rows_of(experiment):
        assert size_at(toy(Work(tmp_path)), row).params == row.cells["parameters"].value


def test_a_check_is_met_missed_or_not_run() -> None:
    rows = rows_of("lenet-conv")

    def found(kept: int, accuracy: float) -> list[RowResult]:
        pruned = {"widths": {"conv1": kept}, "accuracy": accuracy}
        return [RowResult(row="E1", method="paper", seed=0, pruned=pruned)]

    def statuses(kept: int, accuracy: float) -> list[str]:
        lines = checks("lenet-conv", rows, found(kept, accuracy), {0: 99.0})
        return [line.split(":")[0] for line in lines[:3]]

    assert statuses(7, 98.45) == ["met", "met", NOT_RUN]
    assert statuses(6, 97.9) == ["MISSED", "MISSED", NOT_RUN]


def test_a_point_is_measured_once_for_the_same_settings(tmp_path: Path) -> None:
    calls: list[int] = []
    work = Work(tmp_path)

    def measure() -> dict[str, Any]:
        calls.append(1)
        return {"value": 2.5}

    for settings in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 3}):
        assert work.point("some point", settings, measure)["value"] == 2.5
    assert len(calls) == 2
    with pytest.raises(NotFinishedError, match="--finished"):
        replace(work, only_finished=True).point("some point", {"a": 9}, measure)


def test_fine_tuning_for_longer_goes_on_where_a_shorter_one_ended(tmp_path: Path) -> None:
    steps: list[ProgressEvent] = []
    trained, work = toy(Work(tmp_path)), Work(tmp_path, steps.append)
    training = Training(work, trained)
    found = training.accuracies("tuned", trained.model, trained.fine_tuning, (2, 1))
    assert [step.name for step in steps] == ["epoch 1"] * 5 + ["epoch 2"] * 5
    alone = Training(Work(tmp_path / "alone"), trained)
    assert alone.accuracies("tuned", trained.model, trained.fine_tuning, (2,)) == {2: found[2]}
    steps.clear()
    training.accuracies("new", trained.model, lambda n, seed: cifar_training(n, seed), (1, 2))
    assert len(steps) == 15  # a cosine depends on the number of epochs: nothing is shared


def test_a_folder_that_cannot_be_made_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SaveError, match="--work"):
        Work(tmp_path / "file" / "folder").path_of("x", {})


def test_more_images_than_there_are_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSettingError, match="count must be an integer from 1 to"):
        toy(Work(tmp_path)).images(521)


def test_what_is_missing_is_one_sentence_and_exit_code_1(tmp_path: Path) -> None:
    arguments = ["vgg16-full", "--finished", "--work", str(tmp_path)]
    environment = {k: v for k, v in os.environ.items() if k != "ENTRIM_ASSETS"}
    run = subprocess.run(
        [sys.executable, "-m", "experiments", "reproduce", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[2],
    )
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith("experiments: ")
    assert "ENTRIM_ASSETS" in run.stderr
    assert run.stderr.count("\n") == 1


def test_a_misuse_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["reproduce", "alexnet"])
    assert left.value.code == 2
    assert capsys.readouterr().out == ""


def test_the_groups_of_lenet_are_those_that_are_traced() -> None:
    entry = ZOO["LeNet"]
    names = {group.name for group in trace(entry.model(), entry.images(2)).groups}
    assert {name for row in rows_of("lenet-full") for name in row.eps} <= names


@pytest.mark.parametrize(
    ("experiment", "options", "expected"),
    [
        ("vgg16-full", Options(epochs=(1,)), ({1}, set())),
        ("vgg16-scratch", Options(epochs=(1,)), (set(), {1})),
        ("resnet18", Options(epochs=(2,)), ({2}, set())),
        ("lenet-conv", Options(quick=True), ({1}, {1})),
        ("lenet-conv", Options(quick=True, epochs=()), (set(), set())),
        ("lenet-conv", Options(quick=True, epochs=(3,)), ({3}, {3})),
        ("lenet-conv", Options(epochs=(3,), scratch=False), ({3}, set())),
    ],
)
def test_other_epochs_replace_what_a_row_has_and_add_nothing(
    experiment: str,
    options: Options,
    expected: tuple[set[int], set[int]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    requested: list[tuple[set[int], set[int]]] = []

    def measure(work: Work, trained: Any, row: Any, method: str) -> RowResult:
        requested.append((set(row.tuned), {*row.scratch, *row.by_epoch}))
        return RowResult(row=row.name, method=method, seed=0)

    monkeypatch.setattr("experiments.paper.reproduce.measure_row", measure)
    monkeypatch.setattr("experiments.paper.reproduce.count_alive", lambda *_: {})
    replace(EXPERIMENTS[experiment], load=toy).run(Work(tmp_path), options)
    assert requested
    assert all(one == expected for one in requested)


def test_bfloat16_needs_a_cpu_that_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("experiments.paper.reproduce.has_bfloat16", lambda: False)
    with pytest.raises(BadSettingError, match="leave --bfloat16 out"):
        Options(bfloat16=True)
    monkeypatch.setattr("experiments.paper.reproduce.has_bfloat16", lambda: True)
    assert Options(bfloat16=True).prepare(toy(Work(tmp_path))).bfloat16
    assert not Options().prepare(toy(Work(tmp_path))).bfloat16


def test_only_the_requested_rows_are_run(tmp_path: Path) -> None:
    toys = replace(EXPERIMENTS["lenet-conv"], load=toy)
    report = toys.run(Work(tmp_path), Options(epochs=(), methods=("paper",), rows=("E2",)))
    assert [one["row"] for one in report.measured] == ["E2"]
    alive = {
        line.row: line.ours["paper"] for line in report.lines if line.quantity == "channels alive"
    }
    trained = toy(Work(tmp_path))
    expected = live_channels(trained.model, trained.images(500), ["conv1"])["conv1"]
    assert alive == {"E1": [], "E2": [str(expected)]}
    with pytest.raises(BadSettingError, match="no row E3: name some of E1, E2"):
        toys.run(Work(tmp_path), Options(rows=("E3",)))
