"""The record of a run: the score, the error, and how to repeat it."""

import json
import platform
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import entrim
from entrim.allocation.sensitivity import output_change
from entrim.errors import BadSettingError
from entrim.metrics import compare
from entrim.records import Record, Score
from entrim.storage.checkpoint import fingerprint
from tests.callbacks import Recorder
from tests.pipeline.networks import chain, images, residual

X = images(100, 3, 8, 8)
NEW = ("score", "error", "earlier", "images_checksum", "seed", "threads", "date")
"""Entries that older records do not have."""


def prune(model: nn.Module | None = None, **options: Any) -> entrim.SparsifyResult:
    return entrim.sparsify(model or chain(), X, entrim.Widths(0.5), **options)


def test_a_metric_is_called_with_copies_of_both_networks_in_eval_mode() -> None:
    r = prune(chain().train())
    seen: list[int] = []

    def metric(net: nn.Module) -> Tensor:
        assert not any(module.training for module in net.modules())
        seen.append(sum(parameter.numel() for parameter in net.parameters()))
        for parameter in net.parameters():
            parameter.data.zero_()
        return torch.tensor(float(seen[-1]))

    scored = r.with_scores(metric, "parameters", on="nothing")
    before, after = r.record.before.params, r.record.after.params
    assert scored.record.score == Score(
        name="parameters", before=float(before), after=float(after), on="nothing"
    )
    assert seen == [before, after]
    assert r.record.score is None
    assert r.original.training
    assert all(float(parameter.detach().abs().max()) > 0 for parameter in r.model.parameters())
    assert scored.model is r.model
    assert f"parameters: {before:.4g} -> {after:.4g}, on nothing" in str(scored.record)


@pytest.mark.parametrize(
    ("metric", "sentence"),
    [(3.0, "metric must be a function .* got float"), (lambda _: float("nan"), "returned nan")],
)
def test_an_invalid_metric_is_refused(metric: Any, sentence: str) -> None:
    with pytest.raises(BadSettingError, match=sentence):
        prune().with_scores(metric)


def test_a_score_is_saved_and_a_training_drops_it_but_keeps_earlier_trainings(
    tmp_path: Any,
) -> None:
    model = chain()
    prune(model).with_scores(lambda _: 1.0).save(tmp_path)
    loaded = entrim.SparsifyResult.load(model, tmp_path)
    assert loaded.record.score == Score(name="accuracy, %", before=1.0, after=1.0)
    first = entrim.distill(loaded, X, entrim.Distillation(epochs=1))
    assert first.record.score is None
    assert first.record.error is None
    assert first.record.earlier == ()
    second = entrim.distill(first, X, entrim.Distillation(epochs=2))
    assert second.record.distilled is not None
    assert second.record.distilled.epochs == 2
    assert second.record.earlier == (first.record.distilled,)
    assert Record.from_json(second.record.to_json()) == second.record


def test_an_older_record_is_still_read() -> None:
    record = Record.from_json(prune().record.to_json())
    data = {key: v for key, v in json.loads(record.to_json()).items() if key not in NEW}
    old = Record.from_json(json.dumps(data))
    blank: dict[str, Any] = {**dict.fromkeys(NEW), "earlier": ()}
    assert old == replace(record, **blank)


@pytest.mark.parametrize("order", [None, "independent"])
def test_the_error_is_that_of_the_outputs_on_the_images(order: str | None) -> None:
    model = residual()
    r = prune(
        model,
        reconstruction=entrim.Reconstruction(order=order),
        calibration=entrim.Calibration(holdout=0),
    )
    with torch.no_grad():
        expected = output_change([[r.model(X)]], [[model(X)]], [len(X)]).error
    assert r.record.error == pytest.approx(expected, rel=1e-6)
    assert expected > 0


def test_the_error_of_several_outputs_is_that_of_all_together() -> None:
    class Two(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            torch.manual_seed(seed)
            self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 1)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"a": self.a(x) + 5, "b": self.b(x).squeeze(1)}

    x = torch.randn(30, 6)
    found, expected = Two(0), Two(1)
    with torch.no_grad():
        both = [list(net(x).values()) for net in (found, expected)]
    batches = [{"x": part} for part in x.split(7)]
    apart = output_change([both[0]], [both[1]], [len(x)])
    error = compare(found, expected, batches, ("values", "values")).error()
    assert error is not None
    assert error.value == pytest.approx(apart.error)


@pytest.mark.parametrize("still", [torch.zeros(3), torch.tensor([1.0, torch.nan, 0.0])])
def test_constant_outputs_and_outputs_with_nan_have_no_error(still: Tensor) -> None:
    class Still(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return still.expand(len(x), 3)

    assert compare(nn.Linear(2, 3), Still(), [torch.randn(9, 2)], ("values",)).error() is None


def test_the_record_contains_date_versions_threads_and_checksum() -> None:
    begin = datetime.now(UTC) - timedelta(seconds=1)
    record = prune().record
    assert record.date is not None
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", record.date)
    assert begin <= datetime.fromisoformat(record.date) <= datetime.now(UTC)
    assert record.threads == torch.get_num_threads()
    assert record.versions["Python"] == platform.python_version()
    assert record.versions["numpy"] == np.__version__
    assert record.images_checksum == fingerprint([X])
    assert record.seed == 0  # positions and hold-out images are drawn


def test_the_seed_in_the_record_repeats_a_run() -> None:
    model = chain()
    first, other = (prune(model, selector="random", seed=seed).record for seed in (7, 8))
    assert (first.seed, other.seed) == (7, 8)
    torch.manual_seed(7)  # the random state of the caller has no influence
    again = prune(model, selector="random", seed=first.seed).record
    assert [group.kept for group in again.groups] == [group.kept for group in first.groups]
    assert [group.kept for group in other.groups] != [group.kept for group in first.groups]
    assert prune(model, selector="random").record.seed == 0


def test_the_settings_in_the_record_are_plain_values() -> None:
    def sensitivity(outputs: Tensor, reference: Tensor) -> Tensor:
        return (outputs - reference).square().sum(1)

    model = chain()
    options: dict[str, Any] = {
        "selector": entrim.EntropicSelector(coupling="max"),
        "exclude": "7",
        "calibration": entrim.Calibration(batch_size=50, sensitivity=sensitivity),
    }
    settings = json.loads(prune(model, **options).record.to_json())["settings"]
    assert settings["budget"] == {"type": "Widths", "widths": {"*": 0.5}, "round_to": 1}
    assert settings["selector"] == {"type": "EntropicSelector", "coupling": "max"}
    assert settings["reconstruction"]["order"] is None
    assert (settings["include"], settings["exclude"]) == (["*"], ["7"])
    assert settings["calibration"]["batch_size"] == 50
    assert settings["calibration"]["sensitivity"].endswith("sensitivity")
    plain = entrim.sparsify(residual(), X, reconstruction=None).record.settings
    assert (plain["budget"], plain["selector"], plain["reconstruction"]) == (None, "auto", None)


def test_the_last_step_of_every_stage_completes_it() -> None:
    recorder = Recorder()
    r = entrim.sparsify(chain(), X, entrim.Widths({"7": 5}), callbacks=[recorder])
    assert len(r.record.layers) == 1  # the inputs of the layers before do not change
    last = {event.stage: event for event in recorder.events}
    assert {"trace", "collect", "select", "reconstruct", "prune", "measure"} == set(last)
    assert all(event.done == event.total for event in last.values())
    assert last["reconstruct"].detail == "1 of 3 layers refitted"
    assert last["measure"].detail == f"outputs differ by {r.record.error:.2%}"
