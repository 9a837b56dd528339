"""The search: its front, the way back to a network, and what it spares."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import entrim
from entrim.errors import BadSettingError, SearchError
from entrim.hpo.trial import pareto
from entrim.records import Score
from tests.hpo.digits import accuracy, plain, searched, trained, usual


def trial(number: int, params: float, score: float | None) -> entrim.Trial:
    return entrim.Trial(
        number=number,
        eps={},
        widths={},
        params=params,
        macs=params,
        lost=0.0,
        score=score,
        reason="",
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
    small = found.sparsify(best)
    assert {group.name: len(group.kept) for group in small.record.groups} == best.widths
    assert small.record.after.params / small.record.before.params == best.params
    assert small.record.after.macs / small.record.before.macs == best.macs
    assert accuracy(small.model) == best.score
    told = Score(name="score", before=found.record.intact, after=accuracy(small.model))
    assert small.record.score == told


def test_the_best_is_looked_for_among_all_trials_and_the_cheapest_named_when_none_fits() -> None:
    found = usual()
    scored = [t for t in found.record.trials if t.score is not None]
    for limit in (0.5, 0.9):
        fitting = [t for t in scored if t.macs <= limit]
        assert found.best(macs=limit).score == max(t.score or 0.0 for t in fitting)
    with pytest.raises(BadSettingError, match=f"the cheapest has {found.front[0].params:.1%}"):
        found.best(params=1e-6)


def test_the_smallest_is_the_cheapest_of_those_that_score_enough() -> None:
    found = usual()
    scored = [t for t in found.record.trials if t.score is not None]
    for share in (0.5, 0.9):
        least = share * found.record.intact
        good = [t.params for t in scored if (t.score or 0.0) >= least]
        assert found.smallest(least).params == min(good)
    best = found.front[-1]
    with pytest.raises(BadSettingError, match=f"the best is trial {best.number} with"):
        found.smallest(2.0)


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
    assert [t.reason for t in found.record.trials[1:]] == ["the network of trial 1"] * 5
    assert found.record.spared == 5
    assert found.record.saved == pytest.approx(5 * found.record.trials[0].seconds)


def test_without_refit_the_same_channels_are_not_yet_the_same_network() -> None:
    options: dict[str, Any] = {"eps_w": (1e-3, 1e-3), "preset": "paper", "prune": None}
    found = searched(eps_l2=(1e-9, 2e-9), trials=3, **options)
    assert len({tuple(t.widths.items()) for t in found.record.trials}) == 1
    assert [t.reason for t in found.record.trials] == ["scored"] * 3
    chosen = found.front[0]
    assert accuracy(found.sparsify(chosen).model) == chosen.score


def test_where_nothing_is_cut_the_score_is_that_of_the_original() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 4), nn.Tanh(), nn.Linear(4, 3)).eval()
    scores = iter([0.25])  # of the original; another call would fail
    options: dict[str, Any] = {"eps_w": (1e-13, 1e-12), "eps_l2": (1e-13, 1e-12), "trials": 2}
    found = entrim.search(model, torch.randn(100, 20), lambda _: next(scores), **options)
    assert {(t.params, t.score) for t in found.record.trials} == {(1.0, 0.25)}


def test_pruned_trials_are_dearer_than_one_that_loses_far_less() -> None:
    found = searched(trials=16, prune=1.0, sampler="random")
    pruned = [t for t in found.record.trials if t.reason.startswith("pruned")]
    assert pruned
    for t in pruned:
        assert t.score is None
        assert t.seconds == 0
        before = [s for s in found.record.trials[: t.number - 1] if s.score is not None]
        assert any(s.params <= t.params and s.lost < t.lost for s in before)


def test_costs_out_of_interest_are_not_scored() -> None:
    found = searched(cost="macs", between=(0.2, 0.6), trials=12)
    assert {0.2 <= t.macs <= 0.6 for t in found.record.trials if t.score is not None} == {True}
    assert any("is not 20.0% to 60.0%" in t.reason for t in found.record.trials)
    with pytest.raises(SearchError, match=r"no trial of 3 was scored.*widen between="):
        searched(between=(0.0, 1e-9), trials=3)


def test_positions_are_drawn_alike_for_the_search_and_for_its_network() -> None:
    found = searched(trials=3, positions=8, prune=None)
    one = found.record.trials[0]
    assert accuracy(found.sparsify(one).model) == one.score


def test_a_dead_layer_is_no_obstacle() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 2))
    nn.init.constant_(model.get_parameter("2.bias"), -100.0)
    found = entrim.search(model.eval(), torch.randn(100, 6), lambda _: 1.0, trials=3)
    assert all(t.widths["2"] == 1 for t in found.record.trials)


def test_when_the_time_is_over_no_trial_is_begun_but_each_call_tries_one(tmp_path: Path) -> None:
    options: dict[str, Any] = {"trials": 3, "storage": tmp_path / "search.log", "timeout": 1e-9}
    assert [len(searched(**options).record.trials) for _ in range(4)] == [1, 2, 3, 3]
    assert len(searched(trials=2, timeout=3600.0).record.trials) == 2


def test_the_time_left_is_told_at_the_pace_of_this_call(tmp_path: Path) -> None:
    file = tmp_path / "search.log"
    for trials in (4, 6):
        steps: list[entrim.ProgressEvent] = []
        begun = time.monotonic()
        searched(trials=trials, prune=None, storage=file, on_step=steps.append)
        took = time.monotonic() - begun
        left = [s.seconds_left for s in steps if s.stage == "search"]
        assert left[-1] == 0
        assert all(seconds is not None and 0 < seconds <= trials * took for seconds in left[:-1])


def test_every_trial_is_told_and_nothing_else_is_heard(capfd: pytest.CaptureFixture[str]) -> None:
    steps: list[entrim.ProgressEvent] = []
    searched(trials=3, on_step=steps.append)
    told = [step for step in steps if step.stage == "search"]
    assert [(step.name, step.done, step.total) for step in told] == [
        (f"trial {k}", k, 3) for k in range(1, 4)
    ]
    assert "of the params, score" in told[0].detail
    out, err = capfd.readouterr()
    assert out + err == ""
