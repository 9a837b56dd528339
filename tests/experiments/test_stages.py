"""The stages of a row: each is stored under what it depends on, and has the right start."""

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
from entrim import EntropicPenalty, ProgressEvent
from entrim.distillation.trainer import TrainingConfig, TrainingTask
from experiments.models import TrainedModel
from experiments.paper import robustness
from experiments.paper.criteria import CriterionScores
from experiments.paper.pruning import Training, describe, measure_row, prune_row
from experiments.paper.reproduce import Options
from experiments.paper.robustness import ROBUSTNESS
from experiments.paper.rows import EMPTY, rows_of
from experiments.storage import model_fingerprint
from experiments.training import SHIFT_AND_FLIP, reinitialize
from experiments.work import Work
from tests.experiments.test_studies import on_toys
from tests.experiments.toys import toy

ROW = rows_of("lenet-conv")[0]
OTHERS: dict[str, Callable[[TrainedModel], TrainedModel]] = {
    "another network": lambda s: replace(s, network="VGG-16"),
    "another seed": lambda s: replace(s, seed=1),
    "another weight": lambda s: replace(s, model=perturb(s.model)),
    "another training set": lambda s: replace(s, train_set=s.train_set[:519]),
    "another test set": lambda s: replace(s, test_set=s.test_set[:49]),
}
STAGES: dict[str, Callable[[Work, TrainedModel], object]] = {
    "baseline": describe,
    "pruning": lambda work, s: prune_row(work, s, ROW, "pruning", {"include": ["conv1"]}),
    "training": lambda work, s: Training(work, s).accuracies("tune", START, s.fine_tuning, (1,)),
}


def perturb(model: nn.Module) -> nn.Module:
    """Return a copy in which one weight is a little larger."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.get_parameter("fc3.bias")[0] += 1e-6
    return other


START = toy(Work(Path("unused"))).model


@pytest.fixture
def paths(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of requested points, in their order; none is measured."""
    requested: list[str] = []

    def point(work: Work, name: str, settings: dict[str, Any], *_: Any, **__: Any) -> Any:
        requested.append(work.path_of(name, settings).name)
        return {"accuracy": 0.0}

    monkeypatch.setattr(Work, "point", point)
    return requested


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_is_stored_under_everything_that_it_depends_on(
    stage: str, other: str, paths: list[str], tmp_path: Path
) -> None:
    work, trained = Work(tmp_path), toy(Work(tmp_path))
    for one in (trained, trained, OTHERS[other](trained)):
        STAGES[stage](work, one)
    first, again, changed = paths
    assert first == again
    assert first != changed


def test_other_options_and_other_images_are_other_stages(paths: list[str], tmp_path: Path) -> None:
    work, trained = Work(tmp_path), toy(Work(tmp_path))
    weak, strong = (EntropicPenalty(eps_w=-eps, eps_l2=eps) for eps in (0.01, 0.05))
    cases: list[tuple[dict[str, Any], int]] = [
        ({"include": ["conv1"], "budget": weak}, 500),
        ({"include": ["conv1"], "budget": strong}, 500),
        ({"include": ["conv1"], "budget": weak}, 25),
        ({"include": ["conv1"], "budget": weak, "reconstruction": None}, 500),
        *(
            ({"include": ["conv1"], "selector": CriterionScores(name, trained, ("conv1",))}, 500)
            for name in ("L1 norm", "torch-pruning's LAMP")
        ),
    ]
    kept = [prune_row(work, trained, ROW, "p", options, images)[1] for options, images in cases]
    assert len(set(paths)) == len(set(kept)) == len(cases)


def test_another_start_and_another_configuration_are_other_trainings(
    paths: list[str], tmp_path: Path
) -> None:
    trained = toy(Work(tmp_path))
    training = Training(Work(tmp_path), trained)
    for model, config in itertools.product(
        (START, perturb(START)), (trained.training, trained.fine_tuning)
    ):
        training.accuracies("tune", model, config, (1, 2))
    assert len(set(paths)) == len(paths) == 8


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[TrainingConfig, nn.Module]]:
    """Return the trainings of networks; a training sets every weight to 7."""
    seen: list[tuple[TrainingConfig, nn.Module]] = []

    def train(
        _: Work, name: str, model: nn.Module, task: TrainingTask, config: TrainingConfig
    ) -> nn.Module:
        seen.append((config, model))
        result = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in result.parameters():
                parameter.fill_(7)
        return result

    monkeypatch.setattr(Work, "train", train)
    return seen


def test_fine_tuning_starts_at_the_pruned_network_and_scratch_at_new_weights(
    trainings: list[tuple[TrainingConfig, nn.Module]], tmp_path: Path
) -> None:
    trained = replace(toy(Work(tmp_path)), seed=3)
    row = replace(ROW, tuned={1: EMPTY}, scratch={2: EMPTY})
    measure_row(Work(tmp_path), trained, row, "widths")
    (path,) = tmp_path.glob("LeNet*/")
    pruned = entrim.load(trained.model, path)
    assert pruned.get_parameter("conv1.weight").shape == (8, 6, 5, 5)
    (tuning, tuned), (training, new) = trainings
    assert tuning == trained.fine_tuning(1, 3)
    assert training == trained.training(2, 3)
    assert weights(tuned) == weights(pruned)
    assert weights(new) == weights(reinitialize(pruned, 3)) != weights(pruned)


def test_a_training_is_tested_along_its_epochs(tmp_path: Path) -> None:
    training = Training(Work(tmp_path), toy(Work(tmp_path)))
    new, config = reinitialize(training.trained.model, 0), training.trained.training
    along = training.by_epoch("every epoch", new, config, (1, 3))
    assert along == training.accuracies("apart", new, config, (1, 3))  # the rate is constant
    finished = replace(training, work=Work(tmp_path, only_finished=True))
    assert finished.by_epoch("every epoch", new, config, (2, 3)).keys() == {2, 3}
    assert finished.by_epoch("every epoch", new, config, (4,)) == {}
    assert finished.by_epoch("every epoch", new, config, ()) == {}


def weights(model: nn.Module) -> str:
    return model_fingerprint(model)


def test_every_network_is_attacked_in_its_own_column(
    trainings: list[tuple[TrainingConfig, nn.Module]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def accuracy(model: nn.Module, *_: object) -> float:
        weight = model.get_parameter("conv1.weight")
        return len(weight) + 100.0 * bool((weight == 7).all())

    monkeypatch.setattr(robustness, "accuracy_under", accuracy)
    monkeypatch.setitem(robustness.STRENGTHS, "LeNet", (0.1,))
    toys = replace(ROBUSTNESS, panels=(on_toys("E2", epochs=3),))
    for line in toys.run(Work(tmp_path), Options()).lines:
        assert line.ours == {
            "as trained": [16.0],
            "pruned as in the paper": [4.0],
            "pruned as in the paper, fine tuned": [104.0],
            "pruned by entrim": [4.0],
            "pruned by entrim, fine tuned": [104.0],
        }
    assert [config for config, _ in trainings] == [toy(Work(tmp_path)).fine_tuning(3, 0)] * 2


@pytest.mark.parametrize("stops", [(1,), (3,), (5,), (1, 2, 4)])
def test_a_training_that_was_interrupted_ends_in_the_same_bits(
    stops: tuple[int, ...], tmp_path: Path
) -> None:
    some = toy(Work(tmp_path))
    trained = replace(some, train_set=some.train_set[:260], augment=SHIFT_AND_FLIP)
    arguments = ("train", trained.model, trained.task(), trained.fine_tuning(2, 0))
    whole = Work(tmp_path / "whole").train(*arguments)
    done: list[int] = []

    def count(step: ProgressEvent) -> None:
        done.append(step.done)
        if step.done in stops and done.count(step.done) == 1:
            raise KeyboardInterrupt

    work = Work(tmp_path / "stopped", count)
    for _ in stops:
        with pytest.raises(KeyboardInterrupt):
            work.train(*arguments)
    resumed = work.train(*arguments)
    assert done[-6 if max(stops) < 4 else -3 :] == list(range(1 if max(stops) < 4 else 4, 7))
    assert weights(resumed) == weights(whole) != weights(trained.model)
