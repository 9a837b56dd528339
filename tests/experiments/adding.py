"""Toys with random weights, and runs that extend one record."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.__main__ import main
from experiments.models import TrainedModel
from experiments.paper.panels import Panel, lenet_panel
from experiments.paper.studies import STUDIES
from experiments.training import reinitialize
from experiments.work import NotFinishedError, Work
from tests.experiments.toys import toy


def draw(work: Work, seed: int = 0, *, quick: bool = False) -> TrainedModel:
    """Return a toy with random weights, by its seed."""
    trained = toy(work, seed, quick=quick)
    return replace(trained, model=reinitialize(trained.model, seed).eval())


def draw_another(work: Work, seed: int = 0, *, quick: bool = False) -> TrainedModel:
    """Return the same toy with other weights, as trained on another machine."""
    return replace(draw(work, seed + 100, quick=quick), seed=seed)


def load_nothing(work: Work, seed: int = 0, *, quick: bool = False) -> TrainedModel:
    """Raise the error of a network that was never trained here."""
    raise NotFinishedError("LeNet is not finished")


def reproduce(tmp_path: Path, *arguments: str, experiment: str = "lenet-conv") -> dict[str, Any]:
    file = tmp_path / "record.json"
    command = ["reproduce", experiment, "--record", str(file), *arguments]
    if "--work" not in arguments:
        command += ["--work", str(tmp_path / "work")]
    assert main(command) == 0
    return json.loads(file.read_text())


def is_refused(tmp_path: Path, *arguments: str, experiment: str = "lenet-conv") -> bool:
    """Return whether a run is refused and leaves the record unchanged."""
    file = tmp_path / "record.json"
    before = file.read_bytes()
    command = ["reproduce", experiment, "--record", str(file), *arguments]
    code = main([*command, "--work", str(tmp_path / "elsewhere")])
    return code == 1 and file.read_bytes() == before


def use_study(monkeypatch: pytest.MonkeyPatch, load: Callable[..., TrainedModel]) -> None:
    """Reduce the comparison to two toys, pruned in one way."""
    mine = replace(lenet_panel("E1", epochs=0), load=load)
    (row,) = mine.rows

    def other(work: Work, seed: int = 0, *, quick: bool = False) -> TrainedModel:
        return replace(load(work, seed + 7), seed=seed, network="Other")

    second = Panel(network="Other", load=other, rows=(replace(row, name="Other, E1"),), epochs=0)
    complete = STUDIES["comparison"]
    some = tuple(variant for variant in complete.variants if variant.name == "greedy, rebuilt")
    monkeypatch.setitem(
        STUDIES, "comparison", replace(complete, variants=some, panels=(mine, second))
    )
