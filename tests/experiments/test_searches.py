"""Searches of trained networks are compared at equal trials and reported on other images."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from entrim import Pruner
from entrim.errors import CommandError
from experiments.benchmarks import searches
from experiments.benchmarks.searches import (
    REPORT,
    STEPS,
    TUNE,
    Scored,
    SearchedModel,
    main,
    results,
)
from experiments.work import Work
from tests.experiments.toys import toy


def test_every_way_is_reported_at_every_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = toy(Work(tmp_path))
    with Pruner(trained.model, trained.images(60), include="fc2") as pruner:
        model = SearchedModel(trained, pruner)
        grid = list(model.grid((1e-5, 1e-3)))
        assert [trial.eps for trial in grid] == [
            (-1e-5, 1e-5),
            (-1e-5, 1e-3),
            (-1e-3, 1e-5),
            (-1e-3, 1e-3),
        ]
        assert len(list(model.sampled("random", 4))) == 4
        monkeypatch.setattr(SearchedModel, "budgets", lambda _: {"0.1": 1.0})
        found = dict(results(model, (1e-4,)))
        assert list(found) == ["tpe", "random", "grid", "a budget, without labels"]
        assert found["a budget, without labels"]() == {"0.1": 1.0}


def test_the_best_scored_trial_within_a_budget_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = toy(Work(tmp_path))
    asked = []

    def at_penalty(_: SearchedModel, eps: tuple[float, float]) -> SimpleNamespace:
        asked.append(eps)
        return SimpleNamespace(model=trained.model)

    monkeypatch.setattr(SearchedModel, "at_penalty", at_penalty)
    monkeypatch.setattr(searches, "REPORT", slice(25, None))
    with Pruner(trained.model, trained.images(10)) as pruner:
        scored = [
            Scored(params=0.15, score=90.0, eps=(-1.0, 1.0)),
            Scored(params=0.18, score=80.0, eps=(-2.0, 2.0)),
            Scored(params=0.3, score=95.0, eps=(-3.0, 3.0)),
        ]
        found = SearchedModel(trained, pruner).report(scored)
    assert found["0.1"] is None
    assert asked == [(-1.0, 1.0), (-3.0, 3.0)]
    assert len(STEPS) ** 2 == 25
    assert TUNE.stop == REPORT.start


def test_another_network_is_refused() -> None:
    with pytest.raises(CommandError, match="no alexnet: name some of lenet, cifar10_vgg16"):
        main(["alexnet"])
