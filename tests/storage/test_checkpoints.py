"""A training continues from its checkpoint with the same result; other ones are refused."""

import multiprocessing as mp
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from entrim.callbacks import ProgressEvent
from entrim.distillation.trainer import TrainingConfig, train
from entrim.errors import BadSettingError, CheckpointError, SaveError
from entrim.storage.checkpoint import fingerprint, read_checkpoint, write_checkpoint
from tests.tasks import CONFIG, bits, network, regression, scripted


def train_slowly(file: Path, config: TrainingConfig) -> None:
    torch.set_num_threads(1)
    train(
        network(),
        regression(),
        config,
        checkpoint=file,
        every=0.0,
        report=lambda _: time.sleep(0.01),
    )


def kill_when_written(file: Path, config: TrainingConfig, times: int) -> None:
    """Run in another process, and kill it as soon as the checkpoint was written `times` times."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    child = context.Process(target=train_slowly, args=(file, config))
    child.start()
    seen = set()
    while len(seen) < times and child.is_alive():
        if file.exists():
            seen.add(file.stat().st_mtime_ns)
        time.sleep(0.001)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert child.exitcode == -signal.SIGKILL


def test_a_run_that_is_killed_several_times_has_the_same_result(tmp_path: Path) -> None:
    config, file = CONFIG, tmp_path / "run"
    expected = train(network(), regression(), config)
    for times in (2, 5):
        kill_when_written(file, config, times)
    steps: list[ProgressEvent] = []
    resumed = train(network(), regression(), config, checkpoint=file, report=steps.append)
    assert 7 <= steps[0].done < steps[-1].done == 24
    assert bits(resumed) == bits(expected)
    assert {entry.name for entry in tmp_path.iterdir()} <= {file.name}


@pytest.mark.parametrize("step_size", [None, 1])
def test_a_longer_run_continues_a_shorter_one_with_the_same_result(
    tmp_path: Path, step_size: int | None
) -> None:
    longer = replace(CONFIG, schedule="constant", step_size=step_size, return_state="last")
    expected = train(network(), regression(), longer)
    brief = replace(longer, epochs=1)
    train(network(), regression(), brief, checkpoint=tmp_path / "brief")
    before = (tmp_path / "brief").read_bytes()
    steps: list[ProgressEvent] = []
    done = train(
        network(),
        regression(),
        longer,
        checkpoint=tmp_path / "longer",
        shorter=(brief, tmp_path / "brief"),
        report=steps.append,
    )
    assert steps[0].done == 7  # six batches an epoch
    assert bits(done) == bits(expected)
    assert (tmp_path / "brief").read_bytes() == before
    again = train(
        network(), regression(), longer, checkpoint=tmp_path / "longer", report=steps.append
    )
    assert bits(again) == bits(expected)
    assert steps[-1].done == 24


def test_a_longer_run_ends_where_the_patience_of_the_shorter_one_ended(tmp_path: Path) -> None:
    longer = replace(CONFIG, schedule="constant", patience=1, learning_rate=1e-9)
    brief = replace(longer, epochs=1)
    losses = [1.0, 2.0, 3.0]
    train(network(), scripted(losses), brief, checkpoint=tmp_path / "brief")
    shorter = (brief, tmp_path / "brief")
    done = train(network(), scripted([]), longer, shorter=shorter)
    assert done.ending == "stopped early: no better for 1 epochs"


@pytest.mark.parametrize(
    "change", [{"schedule": "cosine"}, {"epochs": 4}, {"learning_rate": 1.0}, {"seed": 1}]
)
def test_a_run_that_is_not_the_beginning_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    config = replace(CONFIG, schedule=change.get("schedule", "constant"))
    other = replace(config, **{"epochs": 1, **change})
    with pytest.raises(BadSettingError, match="no beginning"):
        train(network(), regression(), config, shorter=(other, tmp_path / "other"))


class StopError(Exception):
    pass


@pytest.mark.parametrize(
    ("schedule", "optimizer", "mode"),
    [("constant", "sgd", "eval"), ("cosine", "adam", "train"), ("steps", "sgd", "train")],
)
def test_a_run_stopped_within_or_between_epochs_has_the_same_result(
    tmp_path: Path, schedule: str, optimizer: str, mode: str
) -> None:
    config = replace(
        CONFIG, epochs=2, schedule=schedule, optimizer=optimizer, mode=mode, patience=1
    )
    expected = train(network(), regression(), config)
    for last in (1, 6, 7, 12):

        def stop(step: ProgressEvent, last: int = last) -> None:
            if step.done == last:
                raise StopError

        file = tmp_path / str(last)
        with pytest.raises(StopError):
            train(network(), regression(), config, checkpoint=file, every=0.0, report=stop)
        assert bits(train(network(), regression(), config, checkpoint=file)) == bits(expected)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(
    ("where", "call", "step"),
    [("loss", 8, 7), ("holdout", 2, 6), ("report", 9, 9), ("report", 12, 12)],  # six steps an epoch
)
def test_a_run_interrupted_before_the_weights_change_loses_no_step(
    tmp_path: Path, mode: str, where: str, call: int, step: int
) -> None:
    config, task, file = replace(CONFIG, epochs=3, mode=mode), regression(), tmp_path / "run"

    def stopping(act: Callable[..., Any], name: str) -> Callable[..., Any]:
        left = iter(range(call - 1))

        def stopped(*args: Any) -> Any:
            found = act(*args)
            if name == where and next(left, None) is None:
                raise KeyboardInterrupt
            return found

        return stopped

    stopped = replace(
        task, loss=stopping(task.loss, "loss"), holdout=stopping(task.holdout, "holdout")
    )
    report = stopping(lambda _: None, "report")
    with pytest.raises(KeyboardInterrupt):
        train(network(), stopped, config, checkpoint=file, report=report)
    steps: list[ProgressEvent] = []
    resumed = train(network(), task, config, checkpoint=file, report=steps.append)
    assert steps[0].done == step + 1
    assert bits(resumed) == bits(train(network(), task, config))


def test_a_run_interrupted_while_the_weights_change_keeps_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, expected = tmp_path / "run", train(network(), regression(), CONFIG)
    step, left = torch.optim.Adam.step, iter(range(8))

    def torn(*args: Any) -> Any:
        step(*args)
        if next(left, None) is None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", torn)
        with pytest.raises(KeyboardInterrupt):
            train(network(), regression(), CONFIG, checkpoint=file)
    assert not file.exists()
    assert bits(train(network(), regression(), CONFIG, checkpoint=file)) == bits(expected)


def test_a_finished_run_is_returned_without_a_step(tmp_path: Path) -> None:
    first = train(network(), regression(), CONFIG, checkpoint=tmp_path / "run")
    steps: list[ProgressEvent] = []
    again = train(network(), regression(), CONFIG, checkpoint=tmp_path / "run", report=steps.append)
    assert not steps
    assert bits(again) == bits(first)


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"config": replace(CONFIG, learning_rate=0.1)}, "settings differ"),
        ({"task": replace(regression(), identity="other")}, "images or aims differ"),
        ({"model": nn.Linear(6, 2)}, "network differ"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_and_kept(
    tmp_path: Path, changed: dict[str, Any], difference: str
) -> None:
    file = tmp_path / "run"
    train(network(), regression(), CONFIG, checkpoint=file)
    before = file.read_bytes()
    given = {"model": network(), "task": regression(), "config": CONFIG} | changed
    with pytest.raises(CheckpointError, match=re.escape(f"another run ({difference}")) as refused:
        train(given["model"], given["task"], given["config"], checkpoint=file)
    assert "choose another place, or remove this one" in str(refused.value)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda b: b[: len(b) // 2], "was cut short or changed: remove it to start again"),
        (lambda b: b[:-9] + bytes([b[-9] ^ 1]) + b[-8:], "was cut short or changed"),
        (lambda _: b"", "is no checkpoint of this entrim: choose a file that does not exist yet"),
        (lambda _: b"my thesis", "is no checkpoint of this entrim"),
    ],
)
def test_a_damaged_checkpoint_is_refused_and_kept(
    tmp_path: Path, spoil: Any, sentence: str
) -> None:
    file = tmp_path / "run"
    train(network(), regression(), CONFIG, checkpoint=file)
    file.write_bytes(spoil(file.read_bytes()))
    before = file.read_bytes()
    with pytest.raises(CheckpointError, match=re.escape(sentence)):
        train(network(), regression(), CONFIG, checkpoint=file)
    assert file.read_bytes() == before


def test_a_path_that_cannot_contain_a_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot be read .* choose another file"):
        train(network(), regression(), CONFIG, checkpoint=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(SaveError, match=r"cannot be written .* choose another place"):
        write_checkpoint(tmp_path / "file" / "run", {}, {})


def test_a_checkpoint_returns_the_state_that_was_written(tmp_path: Path) -> None:
    state = {"a": torch.arange(3), "b": [1.5, "x"], "c": torch.ones((), dtype=torch.bfloat16)}
    file = tmp_path / "new" / "run"
    assert read_checkpoint(file, {"x": "1"}) is None
    write_checkpoint(file, {"x": "1"}, state)
    found = read_checkpoint(file, {"x": "1"})
    assert found is not None
    assert found["b"] == state["b"]
    assert fingerprint([found["a"], found["c"]]) == fingerprint([state["a"], state["c"]])
