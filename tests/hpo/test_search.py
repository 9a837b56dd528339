"""The search: its front, the networks of its trials, and the trials that it does not score."""

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
from tests.callbacks import Recorder
from tests.hpo.digits import accuracy, default_search, digits, run_search, trained, without_times


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
def test_the_front_contains_exactly_the_trials_that_no_other_beats(points: list[Any]) -> None:
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


def test_a_search_finds_smaller_networks_and_records_its_front() -> None:
    found = default_search()
    assert found.front == pareto(found.record.trials, "params")
    assert found.front[0].params < 0.6
    assert found.record.intact == accuracy(trained())
    record = json.loads(found.record.to_json())
    assert [t["number"] for t in record["front"]] == [t.number for t in found.front]
    assert len(record["trials"]) == 12
    assert str(found.record).count("\n") == len(found.front)


def test_the_network_of_a_trial_is_created_again_as_it_was_scored() -> None:
    found = default_search()
    best = found.best(params=0.8)
    assert best.params <= 0.8
    small = found.sparsify(best)
    assert {group.name: len(group.kept) for group in small.record.groups} == best.widths
    assert small.record.after.params / small.record.before.params == best.params
    assert small.record.after.macs / small.record.before.macs == best.macs
    assert accuracy(small.model) == best.score
    score = Score(name="score", before=found.record.intact, after=accuracy(small.model))
    assert small.record.score == score
    assert small.record.settings["budget"]["per_group"] == {
        name: list(pair) for name, pair in best.eps.items()
    }


def test_the_best_trial_within_limits_is_returned_and_the_cheapest_is_named_if_none_fits() -> None:
    found = default_search()
    scored = [t for t in found.record.trials if t.score is not None]
    for limit in (0.5, 0.9):
        fitting = [t for t in scored if t.macs <= limit]
        assert found.best(macs=limit).score == max(t.score or 0.0 for t in fitting)
    with pytest.raises(BadSettingError, match=f"the cheapest has {found.front[0].params:.1%}"):
        found.best(params=1e-6)


def test_the_smallest_is_the_cheapest_trial_with_the_requested_score() -> None:
    found = default_search()
    scored = [t for t in found.record.trials if t.score is not None]
    for share in (0.5, 0.9):
        least = share * found.record.intact
        good = [t.params for t in scored if (t.score or 0.0) >= least]
        assert found.smallest(least).params == min(good)
    best = found.front[-1]
    with pytest.raises(BadSettingError, match=f"the best is trial {best.number} with"):
        found.smallest(2.0)


def test_the_same_seed_finds_the_same_trials_and_another_seed_others() -> None:
    assert without_times(run_search(trials=12, early_stop=None)) == without_times(default_search())
    assert [t.eps for t in run_search(seed=1).record.trials] != [
        t.eps for t in without_times(default_search())[:6]
    ]


def test_the_network_is_not_modified() -> None:
    model = trained().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes: list[bool] = []

    def score(small: nn.Module) -> float:
        modes.append(small.training)
        for parameter in small.parameters():
            parameter.data.zero_()
        return 0.0

    run_search(score, trials=2)
    assert model.training
    model.eval()
    assert not any(modes)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_every_part_has_its_own_penalty_and_its_groups_share_it() -> None:
    for t in default_search().record.trials:
        assert list(t.eps) == ["0", "4"]
        assert t.eps["0"] != t.eps["4"]
    shared = run_search(patterns={"all": ["0", "4"]}, trials=2).record.trials
    assert all(t.eps["0"] == t.eps["4"] for t in shared)
    assert all(list(t.eps) == ["*"] for t in run_search(patterns="*", trials=2).record.trials)


def test_penalties_are_within_their_ranges() -> None:
    found = run_search(eps_w=(1e-4, 1e-3), eps_l2=(1e-6, 1e-6))
    pairs = [pair for t in found.record.trials for pair in t.eps.values()]
    assert all(-1e-3 <= eps_w <= -1e-4 and eps_l2 == 1e-6 for eps_w, eps_l2 in pairs)


def test_the_same_network_is_never_scored_twice() -> None:
    calls: list[nn.Module] = []

    def score(model: nn.Module) -> float:
        calls.append(model)
        return accuracy(model)

    found = run_search(score, eps_w=(1e-3, 1e-3), eps_l2=(1e-3, 1e-3))
    assert len(calls) == 2  # the original, and the one network
    assert {t.score for t in found.record.trials} == {found.record.trials[0].score}
    assert [t.reason for t in found.record.trials[1:]] == ["the network of trial 1"] * 5
    assert found.record.unscored == 5
    assert found.record.seconds_saved == pytest.approx(5 * found.record.trials[0].seconds)


def test_with_weights_of_the_solution_the_same_channels_may_be_another_network() -> None:
    paper = entrim.paper_preset()
    found = run_search(
        eps_w=(1e-3, 1e-3),
        eps_l2=(1e-9, 2e-9),
        trials=3,
        penalty=paper["budget"],
        reconstruction=paper["reconstruction"],
        early_stop=None,
    )
    assert len({tuple(t.widths.items()) for t in found.record.trials}) == 1
    assert [t.reason for t in found.record.trials] == ["scored"] * 3
    first = found.front[0]
    assert accuracy(found.sparsify(first).model) == first.score


def test_where_nothing_is_pruned_the_score_is_that_of_the_original() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 4), nn.Tanh(), nn.Linear(4, 3)).eval()
    scores = iter([0.25])  # of the original; another call would fail
    options: dict[str, Any] = {"eps_w": (1e-13, 1e-12), "eps_l2": (1e-13, 1e-12), "trials": 2}
    found = entrim.search(model, torch.randn(100, 20), lambda _: next(scores), **options)
    assert {(t.params, t.score) for t in found.record.trials} == {(1.0, 0.25)}


def test_trials_that_end_early_cost_more_than_one_that_loses_less() -> None:
    found = run_search(trials=16, early_stop=1.0, sampler="random")
    pruned = [t for t in found.record.trials if t.reason.startswith("pruned")]
    assert pruned
    for t in pruned:
        assert t.score is None
        assert t.seconds == 0
        before = [s for s in found.record.trials[: t.number - 1] if s.score is not None]
        assert any(s.params <= t.params and s.lost < t.lost for s in before)


def test_trials_outside_the_cost_range_are_not_scored() -> None:
    found = run_search(cost="macs", cost_range=(0.2, 0.6), trials=12)
    assert {0.2 <= t.macs <= 0.6 for t in found.record.trials if t.score is not None} == {True}
    assert any("is not 20.0% to 60.0%" in t.reason for t in found.record.trials)
    with pytest.raises(SearchError, match=r"no trial of 3 was scored.*widen cost_range="):
        run_search(cost_range=(0.0, 1e-9), trials=3)


def test_the_search_and_the_network_of_a_trial_use_the_same_random_positions() -> None:
    found = run_search(trials=3, calibration=entrim.Calibration(n_positions=8), early_stop=None)
    one = found.record.trials[0]
    assert accuracy(found.sparsify(one).model) == one.score


def test_a_dead_layer_keeps_one_channel() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 2))
    nn.init.constant_(model.get_parameter("2.bias"), -100.0)
    found = entrim.search(model.eval(), torch.randn(100, 6), lambda _: 1.0, trials=3)
    assert all(t.widths["2"] == 1 for t in found.record.trials)


def test_after_the_timeout_every_call_runs_one_trial(tmp_path: Path) -> None:
    options: dict[str, Any] = {"trials": 3, "storage": tmp_path / "search.log", "timeout": 1e-9}
    assert [len(run_search(**options).record.trials) for _ in range(4)] == [1, 2, 3, 3]
    assert len(run_search(trials=2, timeout=3600.0).record.trials) == 2


def test_the_remaining_time_is_estimated_from_this_call(tmp_path: Path) -> None:
    file = tmp_path / "search.log"
    for trials in (4, 6):
        recorder = Recorder()
        begin = time.monotonic()
        run_search(trials=trials, early_stop=None, storage=file, callbacks=[recorder])
        took = time.monotonic() - begin
        left = [event.seconds_left for event in recorder.in_stage("search")]
        assert left[-1] == 0
        assert all(seconds is not None and 0 < seconds <= trials * took for seconds in left[:-1])


def test_every_trial_is_reported_and_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder()
    run_search(trials=3, callbacks=[recorder])
    trials = recorder.in_stage("search")
    assert [(event.name, event.done, event.total) for event in trials] == [
        (f"trial {k}", k, 3) for k in range(1, 4)
    ]
    assert "of the params, score" in trials[0].detail
    assert recorder.calls.count(("begin", "search")) == 1
    assert recorder.calls[-1] == ("end", "search")
    out, err = capfd.readouterr()
    assert out + err == ""


def test_a_pruner_is_searched_with_its_own_statistics_and_options() -> None:
    x, options = digits()[0][:200], {"trials": 4, "early_stop": None}
    reconstruction = entrim.Reconstruction(order="independent")
    recorder = Recorder()
    with entrim.Pruner(trained(), x, reconstruction=reconstruction, callbacks=[recorder]) as pruner:
        pruner.prune(entrim.Budget(params=0.7))
        collected = len(recorder.in_stage("collect"))
        found = entrim.search(pruner, None, accuracy, **options)
        assert len(recorder.in_stage("collect")) == collected
        best = found.front[-1]
        again = pruner.prune(entrim.EntropicPenalty(per_group=dict(best.eps)))
        assert accuracy(again.model) == accuracy(found.sparsify(best).model) == best.score
    same = run_search(reconstruction=reconstruction, **options)
    assert without_times(found) == without_times(same)
    with pytest.raises(BadSettingError, match="the Pruner is closed"):
        found.sparsify(best)


def test_images_or_options_beside_a_pruner_are_refused() -> None:
    x = digits()[0][:200]
    with entrim.Pruner(trained(), x) as pruner:
        with pytest.raises(BadSettingError, match="pass images=None and no options"):
            entrim.search(pruner, x, accuracy)
        with pytest.raises(BadSettingError, match="pass images=None and no options"):
            entrim.search(pruner, None, accuracy, include="0")
    with pytest.raises(BadSettingError, match="there are no images"):
        entrim.search(trained(), None, accuracy)


def test_further_options_of_the_penalty_apply_to_every_trial() -> None:
    penalty = entrim.EntropicPenalty(round_to=4, coupling="max")
    found = run_search(trials=3, penalty=penalty, early_stop=None)
    assert all(width % 4 == 0 for t in found.record.trials for width in t.widths.values())
    budget = found.sparsify(found.front[0]).record.settings["budget"]
    assert (budget["round_to"], budget["coupling"]) == (4, "max")
