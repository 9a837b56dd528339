"""What a search refuses: scores that fail, settings out of range, a missing extra."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from entrim.errors import BadSettingError, MissingExtraError, SearchError
from tests.hpo.digits import accuracy, searched


def test_a_trial_whose_score_fails_is_recorded_and_the_search_goes_on() -> None:
    calls: list[int] = []

    def score(model: nn.Module) -> float:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("no such label")
        return float("nan") if len(calls) == 3 else accuracy(model)

    trials = searched(score, prune=None).record.trials
    failed = [t for t in trials if t.reason.startswith("failed")]
    assert failed[0].reason == "failed: score raised RuntimeError: no such label"
    assert failed[1].reason == "failed: score returned nan, which is not a finite number"
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
        searched(score, trials=3)


@pytest.mark.parametrize("bad", [float("nan"), None])
def test_a_score_that_fails_on_the_original_is_refused_at_once(bad: Any) -> None:
    with pytest.raises(SearchError, match=r"the original network failed.*mend score="):
        searched(lambda _: bad)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"eps_w": (1e-2, 1e-7)}, "eps_w is .*both positive"),
        ({"eps_l2": (0.0, 1e-2)}, "eps_l2 is .*both positive"),
        ({"eps_w": (-1e-2, -1e-7)}, "eps_w is .*both positive"),
        ({"eps_w": 1e-4}, "eps_w is 0.0001: hand over"),
        ({"eps_l2": (1e-4, float("nan"))}, "eps_l2 is"),
        ({"between": (0.6, 0.2)}, "between is .*at least 0"),
        ({"trials": 0}, "trials is 0: hand over a whole number from 1"),
        ({"seed": -1}, "seed is -1"),
        ({"timeout": 0.0}, "timeout is 0.0: hand over seconds, or None"),
        ({"prune": 0.5}, "prune is 0.5: hand over a factor from 1, or None"),
        ({"cost": "bytes"}, "cost is 'bytes': choose 'params' or 'macs'"),
        ({"sampler": "grid"}, "sampler is 'grid'"),
        ({"widths": {"*": 0.5}}, "search does not take widths: of sparsify it takes batchnorm"),
        ({"ridge": -1.0}, "ridge is -1"),
        ({"patterns": ["conv*", "*"]}, "no group matches 'conv\\*'.*the groups are 0, 4"),
        ({"patterns": ["*", "0"]}, "the patterns before '0' match all that it does"),
        ({"patterns": "0"}, 'no pattern matches 4: add a last pattern "\\*"'),
        ({"patterns": {}}, "no pattern matches 0, 4"),
        ({"patterns": {"early": 0}}, "patterns holds 0"),
        ({"patterns": [0, 4]}, "patterns holds 0: hand over strings"),
    ],
)
def test_bad_settings_are_refused_with_the_remedy(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadSettingError, match=sentence):
        searched(**options)


def test_a_score_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(BadSettingError, match="score is a float: hand over a function"):
        searched(0.9)  # pyright: ignore[reportArgumentType]


def test_the_extra_is_named_when_it_is_missing(
    uninstall: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "entrim.hpo.study", raising=False)
    uninstall("optuna")
    with pytest.raises(MissingExtraError, match="search needs optuna: pip install optuna, or"):
        searched()
