"""Records of studies and of attacks are extended too, and the committed ones can be read."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from entrim.errors import DataError
from experiments.models import TrainedModel
from experiments.paper import robustness
from experiments.paper.panels import Panel, lenet_panel
from experiments.paper.records import PreviousRecord
from experiments.paper.report import NOT_RUN
from experiments.paper.reproduce import EXPERIMENTS
from experiments.paper.robustness import ROBUSTNESS
from experiments.paper.studies import STUDIES
from tests.experiments.adding import (
    draw,
    draw_another,
    is_refused,
    load_nothing,
    reproduce,
    use_study,
)

RECORDS = Path(__file__).parents[2] / "experiments" / "results" / "reproduce"


def test_a_study_runs_the_networks_that_are_named_and_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_study(monkeypatch, draw)
    first = reproduce(tmp_path, "--networks", "Other", "--seeds", "0", "1", experiment="comparison")
    assert (
        "comparison: Other; variants: 1, rows: 1, seeds: 0, 1; 2 prunings"
        in capsys.readouterr().err
    )
    assert [(one["row"], one["seed"]) for one in first["measured"]] == [
        ("Other, E1", 0), ("Other, E1", 1),
    ]  # fmt: skip
    assert first["lines"][0]["ours"]["E1"] == []
    second = reproduce(tmp_path, "--networks", "LeNet", experiment="comparison")
    assert [(one["row"], one["seed"]) for one in second["measured"]] == [
        ("E1", 0), ("Other, E1", 0), ("Other, E1", 1),
    ]  # fmt: skip
    drops = second["lines"][0]
    assert {row: len(values) for row, values in drops["ours"].items()} == {"E1": 1, "Other, E1": 2}
    assert drops["seeds"] == 2
    for seed, one in enumerate(first["measured"]):
        note = f"Other, seed {seed}: never trained; baseline {one['baseline']:.2f} %"
        assert f"{note}, as recorded before" in second["notes"]


def test_a_study_refuses_another_network_and_tells_of_what_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_study(monkeypatch, draw)
    record = reproduce(tmp_path, "--networks", "Other", experiment="comparison")
    record["measured"][0]["row"] = "a row of long ago"
    (tmp_path / "record.json").write_text(json.dumps(record))
    later = reproduce(tmp_path, "--networks", "LeNet", experiment="comparison")
    assert len(later["measured"]) == 2
    assert "points of rows or variants that are unknown here: 1" in later["notes"]
    use_study(monkeypatch, draw_another)
    assert is_refused(tmp_path, "--networks", "LeNet", experiment="comparison")
    assert "the record is of another LeNet, seed 0" in capsys.readouterr().err


def test_a_study_leaves_out_what_was_cut_with_other_settings_than_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_study(monkeypatch, draw)
    assert len(reproduce(tmp_path, experiment="comparison")["measured"]) == 2
    study = STUDIES["comparison"]
    (variant,) = study.variants
    other = replace(study, variants=(replace(variant, images=100),))
    monkeypatch.setitem(STUDIES, "comparison", other)
    record = reproduce(tmp_path, "--networks", "LeNet", "--finished", experiment="comparison")
    assert [one["row"] for one in record["measured"]] == ["Other, E1"]
    (note,) = (note for note in record["notes"] if "removed" in note)
    assert note.startswith("LeNet, seed 0, greedy, rebuilt, E1: removed from the record")


def test_attacks_are_added_to_and_never_after_other_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(robustness, "IMAGES", 20)
    monkeypatch.setitem(robustness.STRENGTHS, "LeNet", (0.1,))

    def attack(load: Callable[..., TrainedModel]) -> None:
        panel = replace(lenet_panel("E2", epochs=1), load=load)
        monkeypatch.setattr(
            "experiments.paper.command.ROBUSTNESS", replace(ROBUSTNESS, panels=(panel,))
        )

    attack(draw)
    first = reproduce(tmp_path, experiment="robustness")
    both = reproduce(tmp_path, "--seeds", "1", experiment="robustness")
    assert both["measured"][: len(first["measured"])] == first["measured"]
    assert len(both["measured"]) == 2 * len(first["measured"])
    base = first["measured"][0]["baseline"]
    assert (
        f"LeNet, seed 0: never trained; baseline {base:.2f} %, as recorded before"
        in (both["notes"])
    )
    assert both["notes"][-1] == "LeNet is pruned as in E2, fine tuned 1 epoch"
    assert is_refused(tmp_path, "--epochs", "2", experiment="robustness")
    assert "is fine tuned for 1 epochs, here for 2" in capsys.readouterr().err
    attack(draw_another)
    assert is_refused(tmp_path, experiment="robustness")
    assert "the record is of another LeNet, seed 0" in capsys.readouterr().err


def test_a_quick_run_says_so_in_its_record_whatever_it_is_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_study(monkeypatch, draw)
    table = replace(EXPERIMENTS["lenet-conv"], load=draw)
    monkeypatch.setitem(EXPERIMENTS, "lenet-conv", table)
    monkeypatch.setattr("experiments.paper.command.ROBUSTNESS", replace(ROBUSTNESS, panels=()))
    for name in ("lenet-conv", "comparison", "robustness"):
        folder = tmp_path / name
        folder.mkdir()
        assert reproduce(folder, "--quick", "--finished", experiment=name)["quick"] is True
        with pytest.raises(DataError, match=f"of a quick run of {name}; this is a full run"):
            PreviousRecord.read(folder / "record.json", name, quick=False)


@pytest.mark.parametrize("file", sorted(RECORDS.glob("*.json")), ids=lambda file: file.stem)
def test_a_record_of_ours_is_read_and_told_again_without_loss(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_models(panels: tuple[Panel, ...]) -> tuple[Panel, ...]:
        return tuple(replace(panel, load=load_nothing) for panel in panels)

    name = file.stem
    if name in EXPERIMENTS:
        monkeypatch.setitem(EXPERIMENTS, name, replace(EXPERIMENTS[name], load=load_nothing))
    elif name in STUDIES:
        study = replace(STUDIES[name], panels=without_models(STUDIES[name].panels))
        monkeypatch.setitem(STUDIES, name, study)
    else:
        attacks = replace(ROBUSTNESS, panels=without_models(ROBUSTNESS.panels))
        monkeypatch.setattr("experiments.paper.command.ROBUSTNESS", attacks)
    shutil.copy(file, tmp_path / "record.json")
    before = json.loads(file.read_text())
    after = reproduce(tmp_path, "--finished", "--epochs", experiment=name)
    assert len(after["measured"]) == len(before["measured"]) > 0
    unrun = tuple(f"{p['network']}, seed {p['seed']}: {NOT_RUN}" for p in before["measured"])
    assert not any(note.startswith(unrun) for note in after["notes"])
    printed = {(x["row"], x["quantity"]): x["ours"] for x in after["lines"]}
    assert {key: printed[key] for key in printed if key in keys(before)} == keys(before)


def keys(record: dict[str, Any]) -> dict[tuple[str, str], Any]:
    return {(x["row"], x["quantity"]): x["ours"] for x in record["lines"]}
