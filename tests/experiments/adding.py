"""Toys with weights of their own, and runs that add to one record."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.__main__ import main
from experiments.models import Subject
from experiments.paper.panels import Panel, lenet
from experiments.paper.studies import STUDIES
from experiments.training import fresh
from experiments.work import NotFinishedError, Work
from tests.experiments.toys import toy


def drawn(work: Work, seed: int = 0, *, quick: bool = False) -> Subject:
    """Return a toy with weights of its own, by its seed."""
    subject = toy(work, seed, quick=quick)
    return replace(subject, model=fresh(subject.model, seed).eval())


def another(work: Work, seed: int = 0, *, quick: bool = False) -> Subject:
    """Return what another machine would have trained."""
    return replace(drawn(work, seed + 100, quick=quick), seed=seed)


def nothing(work: Work, seed: int = 0, *, quick: bool = False) -> Subject:
    """Return no network: it was never trained here."""
    raise NotFinishedError("LeNet is not finished")


def reproduce(tmp_path: Path, *told: str, experiment: str = "lenet-conv") -> dict[str, Any]:
    file = tmp_path / "record.json"
    command = ["reproduce", experiment, "--record", str(file), *told]
    if "--work" not in told:
        command += ["--work", str(tmp_path / "work")]
    assert main(command) == 0
    return json.loads(file.read_text())


def refused(tmp_path: Path, *told: str, experiment: str = "lenet-conv") -> bool:
    """Return whether a run is refused and leaves the record alone."""
    file = tmp_path / "record.json"
    before = file.read_bytes()
    command = ["reproduce", experiment, "--record", str(file), *told]
    code = main([*command, "--work", str(tmp_path / "elsewhere")])
    return code == 1 and file.read_bytes() == before


def study_of(monkeypatch: pytest.MonkeyPatch, subject: Callable[..., Subject]) -> None:
    """Make the comparison one of two toys, cut in one way."""
    mine = replace(lenet("E1", epochs=0), subject=subject)
    (row,) = mine.rows

    def other(work: Work, seed: int = 0, *, quick: bool = False) -> Subject:
        return replace(subject(work, seed + 7), seed=seed, network="Other")

    second = Panel(network="Other", subject=other, rows=(replace(row, name="Other, E1"),), epochs=0)
    whole = STUDIES["comparison"]
    some = tuple(variant for variant in whole.variants if variant.name == "greedy, rebuilt")
    monkeypatch.setitem(STUDIES, "comparison", replace(whole, variants=some, panels=(mine, second)))
