"""The estimate of a run: what it contains, that it fits the run, and that it does nothing else."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import entrim
from entrim.calibration import collect, executor
from entrim.callbacks import Pace
from entrim.config import Target
from entrim.errors import BadSettingError
from tests.callbacks import Recorder

IMAGES = torch.randn(120, 3, 24, 24, generator=torch.Generator().manual_seed(0))
BUDGET, WIDTHS = entrim.Budget(macs=0.5), entrim.Widths(0.5)


def network(width: int = 24) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, width, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(width, width, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10)),
    ).eval()


@pytest.mark.parametrize("target", [BUDGET, WIDTHS], ids=["budget", "widths"])
def test_expected_time_is_within_a_factor_of_three_of_the_run(target: Target) -> None:
    with entrim.Pruner(network(), IMAGES) as pruner:
        estimate = pruner.plan(target)
        measured = pruner.prune(target).record.seconds
    assert [stage.stage for stage in estimate.stages] == list(measured)
    factor = estimate.seconds / sum(measured.values())
    assert 1 / 3 < factor < 3


def test_nothing_is_collected_and_at_most_three_batches_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    batches: list[int] = []
    run = executor.Execution.run

    def count(self: executor.Execution, place: int, batch: int, stop: int = 0) -> None:
        if place == 0:
            batches.append(batch)
        run(self, place, batch, stop)

    def refuse(*_: object) -> None:
        raise AssertionError("statistics were collected")

    monkeypatch.setattr(executor.Execution, "run", count)
    monkeypatch.setattr(collect, "capture", refuse)
    calibration = entrim.Calibration(batch_size=10, scratch_dir=tmp_path / "scratch")
    folder = tmp_path / "checkpoints"
    with entrim.Pruner(network(), IMAGES, calibration=calibration, checkpoint_dir=folder) as pruner:
        pruner.plan(BUDGET)
    assert len(batches) <= 3  # the check of the images, and the timed batch twice
    assert not list(tmp_path.iterdir())


def test_a_plan_does_not_change_the_result() -> None:
    results = []
    for planned in (False, True):
        with entrim.Pruner(network(8), IMAGES) as pruner:
            if planned:
                pruner.plan(BUDGET)
            results.append(pruner.prune(BUDGET).plan.kept)
    assert results[0] == results[1]


def test_passes_are_times_in_units_of_one_pass() -> None:
    with entrim.Pruner(network(8), IMAGES) as pruner:
        estimate = pruner.plan(BUDGET)
    assert math.isclose(estimate.passes * estimate.pass_seconds, estimate.seconds)
    assert estimate.images == 96
    assert estimate.groups == 3
    assert "sensitivity" in str(estimate)
    assert estimate.to_dict()["stages"][0]["stage"] == "trace"


def test_activations_above_the_memory_limit_are_expected_on_disk() -> None:
    with entrim.Pruner(network(8), IMAGES) as pruner:
        large = pruner.plan(WIDTHS)
    with entrim.Pruner(
        network(8), IMAGES, calibration=entrim.Calibration(memory_limit=10**6)
    ) as pruner:
        small = pruner.plan(WIDTHS)
    assert large.disk == 0
    assert small.disk > 0
    assert small.memory < large.memory


def test_a_target_that_does_not_fit_is_refused_as_by_prune() -> None:
    with (
        entrim.Pruner(network(8), IMAGES, selector="random") as pruner,
        pytest.raises(BadSettingError, match="selects at given widths"),
    ):
        pruner.plan(entrim.EntropicPenalty())


def test_work_of_every_stage_increases_to_its_total() -> None:
    recorder = Recorder()
    entrim.sparsify(network(8), IMAGES, BUDGET, callbacks=[recorder])
    for stage in ("collect", "select", "sensitivity", "reconstruct", "measure"):
        events = recorder.in_stage(stage)
        done = [event.work for event in events if event.work is not None]
        assert len(done) == len(events)
        assert done == sorted(done)
        assert done[-1] == pytest.approx(events[-1].total_work)
        assert events[-1].seconds_left == pytest.approx(0.0, abs=1e-6)


def test_early_groups_have_more_work_because_more_layers_run_again() -> None:
    recorder = Recorder()
    entrim.sparsify(network(8), IMAGES, BUDGET, callbacks=[recorder])
    work = [event.work or 0.0 for event in recorder.in_stage("sensitivity")]
    assert work[0] > work[-1] - work[-2]


def test_the_remaining_time_follows_the_work_and_not_the_steps() -> None:
    pace = Pace()
    assert pace.seconds_left(2.0, 10.0, 100.0, restored=False) == pytest.approx(18.0)
    assert pace.seconds_left(8.0, 50.0, 100.0, restored=False) == pytest.approx(10.0)


def test_restored_steps_do_not_count_for_the_remaining_time() -> None:
    pace = Pace()
    assert pace.seconds_left(0.001, 50.0, 100.0, restored=True) is None
    assert pace.seconds_left(5.0, 75.0, 100.0, restored=False) == pytest.approx(5.0)
