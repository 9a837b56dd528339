"""Scores that fail, options out of range and a missing extra are refused."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from entrim.distributed.world import World
from entrim.errors import BadSettingError, MissingExtraError, SearchError
from tests.hpo.digits import accuracy, run_search


def test_a_trial_whose_score_fails_is_recorded_and_the_search_continues() -> None:
    calls: list[int] = []

    def score(model: nn.Module) -> float:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("no such label")
        return float("nan") if len(calls) == 3 else accuracy(model)

    trials = run_search(score, early_stop=None).record.trials
    failed = [t for t in trials if t.reason.startswith("failed")]
    assert failed[0].reason == "failed: score raised RuntimeError: no such label"
    assert failed[1].reason == "failed: score returned nan: return a finite number"
    assert len(trials) == 6
    assert any(t.reason == "scored" for t in trials)
    assert all(t.score is None for t in failed)


def test_a_search_in_which_every_trial_fails_names_the_first_cause() -> None:
    calls: list[int] = []

    def score(model: nn.Module) -> float:
        calls.append(1)
        if len(calls) > 1:
            raise KeyError(f"call {len(calls)}")
        return 1.0

    with pytest.raises(SearchError, match=r"no trial of 3 was scored.*KeyError: 'call 2'"):
        run_search(score, trials=3)


@pytest.mark.parametrize("bad", [float("nan"), None])
def test_a_score_that_fails_for_the_original_is_refused_immediately(bad: Any) -> None:
    with pytest.raises(SearchError, match=r"the original network failed.*correct score="):
        run_search(lambda _: bad)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"eps_w": (1e-2, 1e-7)}, "eps_w must be .*both positive"),
        ({"eps_l2": (0.0, 1e-2)}, "eps_l2 must be .*both positive"),
        ({"eps_w": (-1e-2, -1e-7)}, "eps_w must be .*both positive"),
        ({"eps_w": 1e-4}, "eps_w must be .*got 0.0001"),
        ({"eps_l2": (1e-4, float("nan"))}, "eps_l2 must be"),
        ({"cost_range": (0.6, 0.2)}, "cost_range must be .*at least 0"),
        ({"trials": 0}, "trials must be a positive integer, got 0"),
        ({"seed": -1}, "seed must be a non-negative integer, got -1"),
        ({"timeout": 0.0}, "timeout must be .* seconds or None, got 0.0"),
        ({"early_stop": 0.5}, "early_stop must be at least 1, or None to score all, got 0.5"),
        ({"cost": "bytes"}, "cost must be 'params' or 'macs', got 'bytes'"),
        ({"sampler": "grid"}, "sampler must be .*got 'grid'"),
        (
            {"budget": 0.5},
            "search does not take budget: of Pruner it takes calibration, example_inp",
        ),
        ({"selector": "greedy", "seeds": 1}, "search does not take seeds, selector: of Pruner"),
        ({"include": "conv*"}, "no group matches 'conv\\*'"),
        ({"patterns": ["conv*", "*"]}, "no group matches 'conv\\*'.*the groups are 0, 4"),
        ({"patterns": ["*", "0"]}, "all groups that match '0' match an earlier pattern"),
        ({"patterns": "0"}, 'no pattern matches 4: add a last pattern "\\*"'),
        ({"patterns": {}}, "no pattern matches 0, 4"),
        ({"patterns": {"early": 0}}, "patterns contains 0"),
        ({"patterns": [0, 4]}, "patterns contains 0: "),
    ],
)
def test_invalid_options_are_refused_with_a_remedy(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadSettingError, match=sentence):
        run_search(**options)


def test_a_search_in_a_process_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "current", lambda: World(1, 2))
    with pytest.raises(BadSettingError, match=r"without torchrun and with the same storage="):
        run_search()


def test_a_score_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(BadSettingError, match=r"score must be a function .* got float"):
        run_search(0.9)  # pyright: ignore[reportArgumentType]


def test_the_extra_is_named_when_it_is_missing(
    uninstall: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "entrim.hpo.study", raising=False)
    uninstall("optuna")
    with pytest.raises(MissingExtraError, match="search needs optuna: pip install optuna, or"):
        run_search()
