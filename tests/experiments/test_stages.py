"""The stages of a row: each kept under what it depends on, and each starting where it says."""

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import entrim
from entrim import ProgressEvent
from entrim.distillation.trainer import TrainingConfig, TrainingTask
from experiments.models import Subject
from experiments.paper import robustness
from experiments.paper.criteria import Ranking
from experiments.paper.cutting import Lessons, cut_row, measure_row, told_of
from experiments.paper.reproduce import Options
from experiments.paper.robustness import ROBUSTNESS
from experiments.paper.rows import rows_of
from experiments.storage import fingerprint_of
from experiments.training import SHIFTED_AND_FLIPPED, fresh
from experiments.work import Work
from tests.experiments.test_studies import on_toys
from tests.experiments.toys import toy

ROW = rows_of("lenet-conv")[0]
OTHERS: dict[str, Callable[[Subject], Subject]] = {
    "another network": lambda s: replace(s, network="VGG-16"),
    "another seed": lambda s: replace(s, seed=1),
    "another weight": lambda s: replace(s, model=nudged(s.model)),
    "another lesson": lambda s: replace(s, lesson=s.lesson[:519]),
    "another test": lambda s: replace(s, test=s.test[:49]),
}
STAGES: dict[str, Callable[[Work, Subject], object]] = {
    "baseline": told_of,
    "cut": lambda work, s: cut_row(work, s, ROW, "cut", {"layers": ["conv1"]}),
    "lesson": lambda work, s: Lessons(work, s).after("lesson", START, s.fine_tuning, (1,)),
}


def nudged(model: nn.Module) -> nn.Module:
    """Return a copy in which one weight is a little larger."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.get_parameter("fc3.bias")[0] += 1e-6
    return other


START = toy(Work(Path("unused"))).model


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return where points are kept, in the order in which they are asked for; none is measured."""
    asked: list[str] = []

    def point(work: Work, name: str, settings: dict[str, Any], *_: Any, **__: Any) -> Any:
        asked.append(work.place(name, settings).name)
        return {"accuracy": 0.0}

    monkeypatch.setattr(Work, "point", point)
    return asked


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("stage", STAGES)
def test_what_a_stage_depends_on_gives_it_another_place(
    stage: str, other: str, places: list[str], tmp_path: Path
) -> None:
    work, subject = Work(tmp_path), toy(Work(tmp_path))
    for one in (subject, subject, OTHERS[other](subject)):
        STAGES[stage](work, one)
    first, again, changed = places
    assert first == again
    assert first != changed


def test_other_options_and_other_images_are_other_cuts(places: list[str], tmp_path: Path) -> None:
    work, subject = Work(tmp_path), toy(Work(tmp_path))
    told: list[tuple[dict[str, Any], int]] = [
        ({"layers": ["conv1"], "eps": {"conv1": (-0.01, 0.01)}}, 500),
        ({"layers": ["conv1"], "eps": {"conv1": (-0.05, 0.05)}}, 500),
        ({"layers": ["conv1"], "eps": {"conv1": (-0.01, 0.01)}}, 25),
        *(
            ({"layers": ["conv1"], "scores": Ranking(name, subject, ("conv1",))}, 500)
            for name in ("L1 norm", "torch-pruning's LAMP")
        ),
    ]
    kept = [cut_row(work, subject, ROW, "cut", options, images)[1] for options, images in told]
    assert len(set(places)) == len(set(kept)) == len(told)


def test_another_start_and_another_recipe_are_other_lessons(
    places: list[str], tmp_path: Path
) -> None:
    subject = toy(Work(tmp_path))
    lessons = Lessons(Work(tmp_path), subject)
    for model, recipe in itertools.product(
        (START, nudged(START)), (subject.training, subject.fine_tuning)
    ):
        lessons.after("lesson", model, recipe, (1, 2))
    assert len(set(places)) == len(places) == 8


@pytest.fixture
def lessons(monkeypatch: pytest.MonkeyPatch) -> list[tuple[TrainingConfig, nn.Module]]:
    """Return what is taught to which networks; to learn is to have 7 for every weight."""
    seen: list[tuple[TrainingConfig, nn.Module]] = []

    def trained(
        _: Work, name: str, model: nn.Module, task: TrainingTask, recipe: TrainingConfig
    ) -> nn.Module:
        seen.append((recipe, model))
        learned = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in learned.parameters():
                parameter.fill_(7)
        return learned

    monkeypatch.setattr(Work, "trained", trained)
    return seen


def test_fine_tuning_starts_at_the_cut_and_scratch_at_new_weights_of_its_widths(
    lessons: list[tuple[TrainingConfig, nn.Module]], tmp_path: Path
) -> None:
    subject = replace(toy(Work(tmp_path)), seed=3)
    measure_row(Work(tmp_path), subject, ROW, "widths", (1,), (2,))
    (place,) = tmp_path.glob("LeNet*/")
    cut = entrim.load(subject.model, place)
    assert cut.get_parameter("conv1.weight").shape == (8, 6, 5, 5)
    (tuning, tuned), (training, new) = lessons
    assert tuning == subject.fine_tuning(1, 3)
    assert training == subject.training(2, 3)
    assert weights(tuned) == weights(cut)
    assert weights(new) == weights(fresh(cut, 3)) != weights(cut)


def weights(model: nn.Module) -> str:
    return fingerprint_of(model)


def test_every_network_is_attacked_in_its_own_column(
    lessons: list[tuple[TrainingConfig, nn.Module]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recognised(model: nn.Module, *_: object) -> float:
        weight = model.get_parameter("conv1.weight")
        return len(weight) + 100.0 * bool((weight == 7).all())

    monkeypatch.setattr(robustness, "right_under", recognised)
    monkeypatch.setitem(robustness.STRENGTHS, "LeNet", (0.1,))
    toys = replace(ROBUSTNESS, panels=(on_toys("E2", epochs=3),))
    for line in toys.run(Work(tmp_path), Options()).lines:
        assert line.ours == {
            "as trained": [16.0],
            "cut as in the paper": [4.0],
            "cut as in the paper, fine tuned": [104.0],
            "cut by entrim": [4.0],
            "cut by entrim, fine tuned": [104.0],
        }
    assert [recipe for recipe, _ in lessons] == [toy(Work(tmp_path)).fine_tuning(3, 0)] * 2


@pytest.mark.parametrize("stops", [(1,), (3,), (5,), (1, 2, 4)])
def test_a_training_that_was_interrupted_ends_in_the_same_bits(
    stops: tuple[int, ...], tmp_path: Path
) -> None:
    some = toy(Work(tmp_path))
    subject = replace(some, lesson=some.lesson[:260], augment=SHIFTED_AND_FLIPPED)
    told = ("lesson", subject.model, subject.task(), subject.fine_tuning(2, 0))
    whole = Work(tmp_path / "whole").trained(*told)
    done: list[int] = []

    def count(step: ProgressEvent) -> None:
        done.append(step.done)
        if step.done in stops and done.count(step.done) == 1:
            raise KeyboardInterrupt

    work = Work(tmp_path / "stopped", count)
    for _ in stops:
        with pytest.raises(KeyboardInterrupt):
            work.trained(*told)
    resumed = work.trained(*told)
    assert done == list(range(1, 7))
    assert weights(resumed) == weights(whole) != weights(subject.model)
