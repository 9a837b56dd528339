"""The search: its front, what it spares, its notebook, and what it refuses."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import Tensor, nn

import entrim
from entrim import studying
from entrim.errors import (
    BadSettingError,
    MissingExtraError,
    SearchError,
    StorageError,
)
from entrim.records import pareto

ROOT = Path(__file__).parent.parent


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Return the images that scikit-learn ships, and their classes."""
    pixels, classes = load_digits(return_X_y=True)
    return torch.as_tensor(pixels).float().view(-1, 1, 8, 8) / 16, torch.as_tensor(classes)


@cache
def trained() -> nn.Sequential:
    """Return a small network that has learned the first 1,000 digits."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(32, 24),
        nn.ReLU(),
        nn.Linear(24, 10),
    )
    x, y = digits()
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(8):
        for rows in torch.randperm(1000).split(100):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()
    return model.eval()


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    x, y = digits()
    return float((model(x[1000:1400]).argmax(1) == y[1000:1400]).double().mean())


def searched(score: Callable[[nn.Module], float] = accuracy, **options: Any) -> entrim.Searched:
    return entrim.search(trained(), digits()[0][:200], score, **{"trials": 6, **options})


@cache
def usual() -> entrim.Searched:
    """Return a search of twelve trials, all scored, at the ranges that it has by default."""
    return searched(trials=12, prune=None)


def plain(found: entrim.Searched) -> list[entrim.Trial]:
    """Return the trials without their times."""
    return [replace(trial, seconds=0.0) for trial in found.record.trials]


def trial(number: int, params: float, score: float | None) -> entrim.Trial:
    return entrim.Trial(
        number=number,
        eps={},
        widths={},
        params=params,
        macs=params,
        lost=0.0,
        score=score,
        how="",
        seconds=0.0,
        digest="",
    )


@given(st.lists(st.tuples(st.integers(1, 5), st.none() | st.integers(0, 5)), max_size=12))
def test_the_front_is_what_nothing_beats_and_beats_all_else(points: list[Any]) -> None:
    trials = [
        trial(number, cost / 5, None if score is None else float(score))
        for number, (cost, score) in enumerate(points)
    ]
    front = pareto(trials, "params")
    for t in trials:
        if t.score is not None:
            assert any(f.params <= t.params and (f.score or 0.0) >= t.score for f in front)
    costs, scores = [t.params for t in front], [t.score for t in front]
    assert all(t in trials and t.score is not None for t in front)
    assert costs == sorted(set(costs))
    assert scores == sorted({score for score in scores if score is not None})


def test_a_search_finds_smaller_networks_and_the_record_holds_its_front() -> None:
    found = usual()
    assert found.front == pareto(found.record.trials, "params")
    assert found.front[0].params < 0.6
    assert found.record.intact == accuracy(trained())
    told = json.loads(found.record.to_json())
    assert [t["number"] for t in told["front"]] == [t.number for t in found.front]
    assert len(told["trials"]) == 12
    assert str(found.record).count("\n") == len(found.front)


def test_the_network_of_a_trial_is_made_again_just_as_it_was_scored() -> None:
    found = usual()
    best = found.best(params=0.8)
    assert best.params <= 0.8
    small = found.sparsified(best)
    assert {group.name: len(group.kept) for group in small.record.groups} == best.widths
    assert small.record.after.params / small.record.before.params == best.params
    assert small.record.after.macs / small.record.before.macs == best.macs
    assert accuracy(small.model) == best.score


def test_the_best_is_looked_for_among_all_trials_and_the_cheapest_named_when_none_fits() -> None:
    found = usual()
    scored = [t for t in found.record.trials if t.score is not None]
    for limit in (0.5, 0.9):
        fitting = [t for t in scored if t.macs <= limit]
        assert found.best(macs=limit).score == max(t.score or 0.0 for t in fitting)
    with pytest.raises(BadSettingError, match=f"the cheapest has {found.front[0].params:.1%}"):
        found.best(params=1e-6)


def test_one_seed_finds_the_same_and_another_does_not() -> None:
    assert plain(searched(trials=12, prune=None)) == plain(usual())
    assert [t.eps for t in searched(seed=1).record.trials] != [t.eps for t in plain(usual())[:6]]


def test_the_network_handed_over_is_left_alone() -> None:
    model = trained().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes: list[bool] = []

    def score(small: nn.Module) -> float:
        modes.append(small.training)
        for parameter in small.parameters():
            parameter.data.zero_()
        return 0.0

    searched(score, trials=2)
    assert model.training
    model.eval()
    assert not any(modes)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_parts_have_eps_of_their_own_and_groups_of_one_part_share_them() -> None:
    for t in usual().record.trials:
        assert list(t.eps) == ["0", "4"]
        assert t.eps["0"] != t.eps["4"]
    shared = searched(patterns={"all": ["0", "4"]}, trials=2).record.trials
    assert all(t.eps["0"] == t.eps["4"] for t in shared)
    assert all(list(t.eps) == ["*"] for t in searched(patterns="*", trials=2).record.trials)


def test_eps_stay_in_their_ranges_with_the_sign_that_sparsify_wants() -> None:
    found = searched(eps_w=(1e-4, 1e-3), eps_l2=(1e-6, 1e-6))
    pairs = [pair for t in found.record.trials for pair in t.eps.values()]
    assert all(-1e-3 <= eps_w <= -1e-4 and eps_l2 == 1e-6 for eps_w, eps_l2 in pairs)


def test_the_same_network_is_never_scored_twice() -> None:
    calls: list[nn.Module] = []

    def score(model: nn.Module) -> float:
        calls.append(model)
        return accuracy(model)

    found = searched(score, eps_w=(1e-3, 1e-3), eps_l2=(1e-3, 1e-3))
    assert len(calls) == 2  # the original, and the one network
    assert {t.score for t in found.record.trials} == {found.record.trials[0].score}
    assert [t.how for t in found.record.trials[1:]] == ["the network of trial 0"] * 5
    assert found.record.spared == 5
    assert found.record.saved == pytest.approx(5 * found.record.trials[0].seconds)


def test_without_refit_the_same_channels_are_not_yet_the_same_network() -> None:
    options: dict[str, Any] = {"eps_w": (1e-3, 1e-3), "preset": "paper", "prune": None}
    found = searched(eps_l2=(1e-9, 2e-9), trials=3, **options)
    assert len({tuple(t.widths.items()) for t in found.record.trials}) == 1
    assert [t.how for t in found.record.trials] == ["scored"] * 3
    chosen = found.front[0]
    assert accuracy(found.sparsified(chosen).model) == chosen.score


def test_where_nothing_is_cut_the_score_is_that_of_the_original() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 4), nn.Tanh(), nn.Linear(4, 3)).eval()
    scores = iter([0.25])  # of the original; another call would fail
    options: dict[str, Any] = {"eps_w": (1e-13, 1e-12), "eps_l2": (1e-13, 1e-12), "trials": 2}
    found = entrim.search(model, torch.randn(100, 20), lambda _: next(scores), **options)
    assert {(t.params, t.score) for t in found.record.trials} == {(1.0, 0.25)}


def test_pruned_trials_are_dearer_than_one_that_loses_far_less() -> None:
    found = searched(trials=16, prune=1.0, sampler="random")
    pruned = [t for t in found.record.trials if t.how.startswith("pruned")]
    assert pruned
    for t in pruned:
        assert t.score is None
        assert t.seconds == 0
        before = [s for s in found.record.trials[: t.number] if s.score is not None]
        assert any(s.params <= t.params and s.lost < t.lost for s in before)


def test_costs_out_of_interest_are_not_scored() -> None:
    found = searched(cost="macs", between=(0.2, 0.6), trials=12)
    assert {0.2 <= t.macs <= 0.6 for t in found.record.trials if t.score is not None} == {True}
    assert any("is not 20.0% to 60.0%" in t.how for t in found.record.trials)
    with pytest.raises(SearchError, match=r"no trial of 3 was scored.*widen between="):
        searched(between=(0.0, 1e-9), trials=3)


def test_a_trial_whose_score_fails_is_recorded_and_the_search_goes_on() -> None:
    calls: list[int] = []

    def score(model: nn.Module) -> float:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("no such label")
        return float("nan") if len(calls) == 3 else accuracy(model)

    trials = searched(score, prune=None).record.trials
    failed = [t for t in trials if t.how.startswith("failed")]
    assert failed[0].how == "failed: score raised RuntimeError: no such label"
    assert failed[1].how == "failed: score returned nan, which is not a finite number"
    assert len(trials) == 6
    assert any(t.how == "scored" for t in trials)
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


def test_positions_are_drawn_alike_for_the_search_and_for_its_network() -> None:
    found = searched(trials=3, positions=8, prune=None)
    one = found.record.trials[0]
    assert accuracy(found.sparsified(one).model) == one.score


def test_a_dead_layer_is_no_obstacle() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 2))
    nn.init.constant_(model.get_parameter("2.bias"), -100.0)
    found = entrim.search(model.eval(), torch.randn(100, 6), lambda _: 1.0, trials=3)
    assert all(t.widths["2"] == 1 for t in found.record.trials)


def test_every_trial_is_told_and_nothing_else_is_heard(capfd: pytest.CaptureFixture[str]) -> None:
    steps: list[entrim.Step] = []
    searched(trials=3, on_step=steps.append)
    told = [step for step in steps if step.stage == "search"]
    assert [(step.name, step.done, step.total) for step in told] == [
        (f"trial {k}", k + 1, 3) for k in range(3)
    ]
    assert "of the params, score" in told[0].detail
    out, err = capfd.readouterr()
    assert out + err == ""


# ---- the notebook ----


def test_a_search_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    file = tmp_path / "search.log"
    for trials in (1, 5, 12):
        found = searched(trials=trials, prune=None, storage=file)
        assert len(found.record.trials) == trials
    assert plain(found) == plain(usual())


def test_an_interrupted_trial_does_not_count(tmp_path: Path) -> None:
    calls: list[int] = []

    def score(model: nn.Module) -> float:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return accuracy(model)

    options: dict[str, Any] = {"storage": tmp_path / "search.log", "prune": None}
    with pytest.raises(KeyboardInterrupt):
        searched(score, **options)
    numbers = {t.number for t in searched(**options).record.trials}
    assert len(numbers) == 6
    assert len(set(range(7)) - numbers) == 1


CHILD = """
import os, signal, sys
from tests.test_search import accuracy, searched

calls = []

def score(model):
    calls.append(1)
    if len(calls) == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    return accuracy(model)

found = searched(score, trials=int(sys.argv[2]), storage=sys.argv[1], prune=None)
print(len(calls) - 1)
"""


def child(file: Path, trials: int, dies_at: int) -> subprocess.Popen[str]:
    path = os.pathsep.join(map(str, (ROOT / "src", ROOT)))
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(file), str(trials), str(dies_at)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


@pytest.mark.skipif(os.name != "posix", reason="kills by signal")
def test_a_killed_search_goes_on_and_its_torn_line_is_mended(tmp_path: Path) -> None:
    file = tmp_path / "search.log"
    process = child(file, 6, dies_at=4)
    _, err = process.communicate(timeout=900)
    assert process.returncode == -9, err
    with file.open("a") as journal:
        journal.write('{"op_code":9,"worker_id":"x')  # a line that was being written
    found = searched(storage=file, prune=None)
    numbers = [t.number for t in found.record.trials]
    assert len(numbers) == 6
    [killed] = set(range(7)) - set(numbers)
    assert plain(found)[:killed] == plain(usual())[:killed]
    assert all(json.loads(line) for line in file.read_text().splitlines())


@pytest.mark.skipif(os.name != "posix", reason="asks for processes by signal")
def test_only_processes_that_may_still_run_keep_their_trials() -> None:
    host, process, token = studying.me().rsplit(" ", 2)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert studying.alive(studying.me())
    assert studying.alive(f"{host} {os.getppid()} {token}")
    assert studying.alive(f"other-{host} {ended.pid} {token}")
    assert not studying.alive(f"{host} {ended.pid} {token}")
    assert not studying.alive(f"{host} {process} of-an-earlier-process")


def test_a_trial_that_nobody_signed_is_dropped_once_it_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = {"network": "n"}
    notebook = studying.Storage.of(tmp_path / "search.log").notebook("s", {"a": (1.0, 2.0)}, marks)
    notebook.study.ask()
    notebook.sweep()
    assert notebook.begin(1) is None  # the one trial may be under way
    monkeypatch.setattr(studying, "PATIENCE", timedelta(0))
    notebook.sweep()
    assert notebook.begin(1) is not None


def test_two_processes_share_the_trials_of_one_file(tmp_path: Path) -> None:
    file = tmp_path / "search.log"
    both = [child(file, 14, dies_at=0) for _ in range(2)]
    for process in both:
        _, err = process.communicate(timeout=900)
        assert process.returncode == 0, err
    trials = searched(storage=file, trials=14, prune=None).record.trials
    assert len(trials) == 14
    assert len({tuple(t.eps.items()) for t in trials}) == 14


def test_a_file_of_another_search_is_refused_unless_it_has_another_name(tmp_path: Path) -> None:
    file = tmp_path / "search.log"
    searched(storage=file, trials=2)
    x = digits()[0]
    other = nn.Sequential(*(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 2)))
    flat = nn.Sequential(nn.Flatten(), *other).eval()
    with pytest.raises(StorageError, match="with other images: hand over what"):
        entrim.search(trained(), x[1:201], accuracy, storage=file)
    with pytest.raises(StorageError, match="with other settings"):
        searched(storage=file, eps_w=(1e-5, 1e-2))
    with pytest.raises(StorageError, match="with other settings"):
        searched(storage=file, ridge=1e-3)
    with pytest.raises(StorageError, match="with other network"):
        entrim.search(flat, x[:200], lambda _: 1.0, storage=file)
    found = entrim.search(flat, x[:200], lambda _: 1.0, storage=file, name="flat", trials=1)
    assert len(found.record.trials) == 1


def test_a_path_that_cannot_hold_a_search_is_refused(tmp_path: Path) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear Sir,\nno journal\n")
    for path in (tmp_path / "missing" / "search.log", tmp_path):
        with pytest.raises(StorageError, match=r"cannot be kept in .*: hand over a file in a fold"):
            searched(storage=path)
    with pytest.raises(StorageError, match="is not the file of a search"):
        searched(storage=letter)
    assert letter.read_text() == "Dear Sir,\nno journal\n"


# ---- what is refused ----


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
    monkeypatch.delitem(sys.modules, "entrim.studying", raising=False)
    uninstall("optuna")
    with pytest.raises(MissingExtraError, match=r'search needs optuna.*"entrim\[search\]"'):
        searched()
