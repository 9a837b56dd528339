"""What a run writes down beside its network: the score, the error, and how to repeat it."""

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
from entrim.allocation.sensitivity import error_of, output_change
from entrim.errors import BadSettingError
from entrim.records import Record, Score
from entrim.storage.checkpoint import fingerprint
from tests.pipeline.networks import chain, images, residual

X = images(100, 3, 8, 8)
NEW = ("score", "error", "earlier", "images_checksum", "seed", "threads", "date")
"""Entries that older records do not have."""


def cut(model: nn.Module | None = None, **options: Any) -> entrim.SparsifyResult:
    return entrim.sparsify(model or chain(), X, widths={"*": 0.5}, **options)


def test_a_metric_is_asked_of_both_networks_in_eval_mode_and_neither_is_touched() -> None:
    r = cut(chain().train())
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
    [(3.0, "metric is a float: hand over a function"), (lambda _: float("nan"), "returned nan")],
)
def test_what_is_no_metric_is_refused(metric: Any, sentence: str) -> None:
    with pytest.raises(BadSettingError, match=sentence):
        cut().with_scores(metric)


def test_a_score_is_saved_and_a_training_drops_it_and_keeps_the_trainings_before(
    tmp_path: Any,
) -> None:
    model = chain()
    cut(model).with_scores(lambda _: 1.0).save(tmp_path)
    loaded = entrim.SparsifyResult.load(model, tmp_path)
    assert loaded.record.score == Score(name="accuracy, %", before=1.0, after=1.0)
    first = entrim.distill(loaded, X, epochs=1)
    assert first.record.score is None
    assert first.record.error is None
    assert first.record.earlier == ()
    second = entrim.distill(first, X, epochs=2)
    assert second.record.distilled is not None
    assert second.record.distilled.epochs == 2
    assert second.record.earlier == (first.record.distilled,)
    assert Record.from_json(second.record.to_json()) == second.record


def test_an_older_record_is_still_read() -> None:
    record = Record.from_json(cut().record.to_json())
    data = {key: v for key, v in json.loads(record.to_json()).items() if key not in NEW}
    old = Record.from_json(json.dumps(data))
    blank: dict[str, Any] = {**dict.fromkeys(NEW), "earlier": ()}
    assert old == replace(record, **blank)


@pytest.mark.parametrize("options", [{}, {"mode": "independent"}])
def test_the_error_is_that_of_the_outputs_on_the_images(options: Any) -> None:
    model = residual()
    r = cut(model, **options)
    with torch.no_grad():
        wanted = output_change([[r.model(X)]], [[model(X)]], [len(X)]).error
    assert r.record.error == pytest.approx(wanted, rel=1e-6)
    assert wanted > 0


def test_an_error_of_several_outputs_is_that_of_all_together() -> None:
    class Two(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            torch.manual_seed(seed)
            self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 1)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"a": self.a(x) + 5, "b": self.b(x).squeeze(1)}

    x = torch.randn(30, 6)
    found, wanted = Two(0), Two(1)
    with torch.no_grad():
        both = [list(net(x).values()) for net in (found, wanted)]
    batches = [{"x": part} for part in x.split(7)]
    apart = output_change([both[0]], [both[1]], [len(x)])
    assert error_of(found, wanted, batches) == pytest.approx(apart.error)


@pytest.mark.parametrize("still", [torch.zeros(3), torch.tensor([1.0, torch.nan, 0.0])])
def test_outputs_that_never_move_or_are_no_numbers_have_no_error(still: Tensor) -> None:
    class Still(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return still.expand(len(x), 3)

    assert error_of(nn.Linear(2, 3), Still(), [torch.randn(9, 2)]) is None


def test_when_with_what_and_on_what_is_written_down() -> None:
    begun = datetime.now(UTC) - timedelta(seconds=1)
    record = cut().record
    assert record.date is not None
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", record.date)
    assert begun <= datetime.fromisoformat(record.date) <= datetime.now(UTC)
    assert record.threads == torch.get_num_threads()
    assert record.versions["Python"] == platform.python_version()
    assert record.versions["numpy"] == np.__version__
    assert record.images_checksum == fingerprint([X])
    assert record.seed is None  # nothing was drawn


def test_the_seed_of_a_new_generator_repeats_a_run_and_that_of_a_used_one_is_not_told() -> None:
    model = chain()
    first = cut(model, selector="random", generator=torch.Generator().manual_seed(7)).record
    assert first.seed == 7
    torch.manual_seed(7)
    own = cut(model, selector="random").record
    assert own.seed == 7
    assert [group.kept for group in own.groups] == [group.kept for group in first.groups]
    used = torch.Generator().manual_seed(7)
    torch.rand(1, generator=used)
    assert cut(model, selector="random", generator=used).record.seed is None


def test_every_stage_comes_to_its_end_also_where_some_layers_stay_as_they_are() -> None:
    steps: list[entrim.ProgressEvent] = []
    r = entrim.sparsify(chain(), X, widths={"7": 5}, on_step=steps.append)
    assert len(r.record.layers) == 1  # the layers before the cut see what they saw
    last = {step.stage: step for step in steps}
    assert {"trace", "collect", "choose", "rebuild", "cut", "measure"} == set(last)
    assert all(step.done == step.total for step in last.values())
    assert last["rebuild"].detail == "1 of 3 layers solved again"
    assert last["measure"].detail == f"outputs {r.record.error:.2%} of their variance apart"
