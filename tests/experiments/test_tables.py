"""What a table consists of: epochs that a quick run reduces, seeds with their own baselines."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from experiments.__main__ import main
from experiments.models import TrainedModel
from experiments.paper import reproduce
from experiments.paper.pruning import RowResult
from experiments.paper.published import Cell
from experiments.paper.report import Line, Report
from experiments.paper.reproduce import EXPERIMENTS, Options
from experiments.paper.robustness import ROBUSTNESS
from experiments.paper.rows import Row
from experiments.paper.studies import STUDIES
from experiments.work import Work
from tests.experiments.toys import toy

BASELINES = {0: 99.0, 1: 90.0}
PRUNED = {
    "widths": {"conv1": 8},
    **dict.fromkeys(("parameters", "sparsity", "bytes", "FLOPs"), 1.0),
}


@dataclass
class Requested:
    """The requested epochs of rows, by method."""

    tuned: dict[tuple[str, str], tuple[int, ...]]
    scratch: dict[tuple[str, str], tuple[int, ...]]


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> Requested:
    """Let pruning lose 1 point, fine tuning 2, new weights 3, and seed 1 half a point more."""
    seen = Requested({}, {})

    def measure(_: Work, trained: TrainedModel, row: Row, method: str) -> RowResult:
        tuned, scratch = tuple(row.tuned), tuple(row.scratch)
        seen.tuned[row.name, method], seen.scratch[row.name, method] = tuned, scratch
        left = BASELINES[trained.seed] - trained.seed / 2
        return RowResult(
            row=row.name,
            method=method,
            seed=trained.seed,
            pruned={**PRUNED, "accuracy": left - 1},
            timing={"speedup": 1.0},
            tuned=dict.fromkeys(tuned, left - 2),
            scratch=dict.fromkeys(scratch, left - 3),
        )

    described = {"network": "LeNet", "weights": None, "origin": "never trained"}
    monkeypatch.setattr(
        reproduce,
        "describe",
        lambda _, trained: {**described, "seed": trained.seed, "baseline": BASELINES[trained.seed]},
    )
    monkeypatch.setattr(reproduce, "measure_row", measure)
    monkeypatch.setattr(reproduce, "count_alive", lambda *_: {})
    monkeypatch.setitem(EXPERIMENTS, "lenet-conv", replace(EXPERIMENTS["lenet-conv"], load=toy))
    return seen


def of(experiment: str, work: Path, options: Options) -> Report:
    return EXPERIMENTS[experiment].run(Work(work), options)


def test_a_quick_run_trains_for_one_epoch_and_says_that_it_gives_no_results(
    requested: Requested, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "lenet-conv", "--work", str(tmp_path), "--methods", "paper"]
    assert main(command) == 0
    assert set(requested.tuned.values()) == set(requested.scratch.values()) == {(10,)}
    shown = capsys.readouterr().out
    assert "QUICK" not in shown
    assert "\n- met" in shown
    assert "\n- MISSED" in shown

    assert main([*command, "--quick"]) == 0
    assert set(requested.tuned.values()) == set(requested.scratch.values()) == {(1,)}
    shown = capsys.readouterr().out
    assert "QUICK" in shown
    assert "\n- met" not in shown
    assert "\n- MISSED" not in shown
    assert {file.name for file in tmp_path.glob("*.json")} == {
        "lenet-conv.json", "lenet-conv-quick.json",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "tuned", "scratch"),
    [
        (Options(), (10,), (10,)),
        (Options(quick=True), (1,), (1,)),
        (Options(quick=True, scratch=False), (1,), ()),
        (Options(quick=True, epochs=(30,)), (30,), (30,)),
        (Options(epochs=(2, 5)), (2, 5), (2, 5)),
        (Options(epochs=()), (), ()),
        (Options(scratch=False), (10,), ()),
    ],
)
def test_rows_are_trained_for_the_published_epochs_by_default(
    options: Options,
    tuned: tuple[int, ...],
    scratch: tuple[int, ...],
    requested: Requested,
    tmp_path: Path,
) -> None:
    of("lenet-conv", tmp_path, options)
    keys = [(row, method) for row in ("E1", "E2") for method in ("paper", "widths", "default")]
    assert requested.tuned == dict.fromkeys(keys, tuned)
    assert requested.scratch == dict.fromkeys(keys, scratch)


@pytest.mark.parametrize(
    "run",
    [
        *(replace(study, panels=()).run for study in STUDIES.values()),
        replace(ROBUSTNESS, panels=()).run,
    ],
    ids=[*STUDIES, ROBUSTNESS.name],
)
def test_a_quick_study_says_so_too(run: Callable[[Work, Options], Report], tmp_path: Path) -> None:
    assert run(Work(tmp_path), Options()).notes == ()
    (note,) = run(Work(tmp_path), Options(quick=True)).notes
    assert note.startswith("QUICK")


def test_panels_with_fine_tuning_are_tuned_for_one_epoch_when_quick() -> None:
    panels = [*(panel for study in STUDIES.values() for panel in study.panels), *ROBUSTNESS.panels]
    for panel in panels:
        assert panel.tuning_epochs(Options(quick=True)) == ((1,) if panel.epochs else ())
    assert {panel.epochs for panel in panels} > {0, 1}


def test_every_seed_loses_from_its_own_baseline(requested: Requested, tmp_path: Path) -> None:
    report = of("lenet-conv", tmp_path, Options(seeds=(0, 1)))
    lines = {(line.row, line.quantity): line.ours for line in report.lines}
    for row in ("E1", "E2"):
        for method in ("paper", "widths", "default"):
            assert lines[row, "accuracy, raw"][method] == [98.0, 88.5]
            assert lines[row, "drop, raw"][method] == [1.0, 1.5]
            assert lines[row, "drop, fine tuned 10 epochs"][method] == [2.0, 2.5]
            assert lines[row, "drop, from scratch 10 epochs"][method] == [3.0, 3.5]
    found = {(one["seed"], one["baseline"]) for one in report.measured}
    assert found == set(BASELINES.items())
    assert [note for note in report.notes if "99.00" in note] == [report.notes[0]]
    assert [note for note in report.notes if "90.00" in note] == [report.notes[1]]


def test_checks_are_printed_below_the_table() -> None:
    line = Line(row="E1", quantity="accuracy", paper=Cell("98.49%"), ours={"paper": [98.0]})
    results = ("met: one check", "MISSED: another", "not run: a third")
    text = Report(
        experiment="lenet-conv", title="a table", columns=("ours",), lines=(line,), checks=results
    ).markdown()
    assert text.rstrip().splitlines()[-3:] == [f"- {check}" for check in results]
    assert text.index("98.49%") < text.index("met: one check")


def test_the_command_prints_the_checks_of_its_table(
    requested: Requested, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "lenet-conv", "--work", str(tmp_path), "--methods", "paper"]) == 0
    report = of("lenet-conv", tmp_path, Options(methods=("paper",)))
    shown = capsys.readouterr().out
    assert len(report.checks) == 7
    assert all(f"- {check}\n" in shown for check in report.checks)
