"""A training goes on from its checkpoint to the same bits; others are refused and kept."""

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

from entrim.distillation.trainer import TrainingConfig, train
from entrim.errors import BadSettingError, CheckpointError, SaveError
from entrim.records import ProgressEvent
from entrim.storage.checkpoint import fingerprint, read_checkpoint, write_checkpoint
from tests.tasks import RECIPE, bits, network, regression, scripted


def train_slowly(file: Path, recipe: TrainingConfig) -> None:
    torch.set_num_threads(1)
    train(
        network(),
        regression(),
        recipe,
        checkpoint=file,
        every=0.0,
        on_step=lambda _: time.sleep(0.01),
    )


def kill_when_written(file: Path, recipe: TrainingConfig, times: int) -> None:
    """Run in another process, and kill it as soon as the checkpoint was written `times` times."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    child = context.Process(target=train_slowly, args=(file, recipe))
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


def test_a_run_killed_again_and_again_ends_with_the_same_bits(tmp_path: Path) -> None:
    recipe, file = RECIPE, tmp_path / "run"
    whole = train(network(), regression(), recipe)
    for times in (2, 5):
        kill_when_written(file, recipe, times)
    steps: list[ProgressEvent] = []
    resumed = train(network(), regression(), recipe, checkpoint=file, on_step=steps.append)
    assert 7 <= steps[0].done < steps[-1].done == 24
    assert bits(resumed) == bits(whole)
    assert {entry.name for entry in tmp_path.iterdir()} <= {file.name}


@pytest.mark.parametrize("halve_every", [None, 1])
def test_a_longer_run_goes_on_from_a_shorter_one_to_the_same_bits(
    tmp_path: Path, halve_every: int | None
) -> None:
    longer = replace(RECIPE, schedule="constant", halve_every=halve_every, hand_out="last")
    whole = train(network(), regression(), longer)
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
        on_step=steps.append,
    )
    assert steps[0].done == 7  # six batches an epoch
    assert bits(done) == bits(whole)
    assert (tmp_path / "brief").read_bytes() == before
    again = train(
        network(), regression(), longer, checkpoint=tmp_path / "longer", on_step=steps.append
    )
    assert bits(again) == bits(whole)
    assert steps[-1].done == 24


def test_a_longer_run_stops_where_the_shorter_one_had_lost_its_patience(tmp_path: Path) -> None:
    longer = replace(RECIPE, schedule="constant", patience=1, learning_rate=1e-9)
    brief = replace(longer, epochs=1)
    losses = [1.0, 2.0, 3.0]
    train(network(), scripted(losses), brief, checkpoint=tmp_path / "brief")
    shorter = (brief, tmp_path / "brief")
    done = train(network(), scripted([]), longer, shorter=shorter)
    assert done.ending == "stopped early: no better for 1 epochs"


@pytest.mark.parametrize(
    "change", [{"schedule": "cosine"}, {"epochs": 4}, {"learning_rate": 1.0}, {"seed": 1}]
)
def test_a_run_that_is_no_beginning_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    recipe = replace(RECIPE, schedule=change.get("schedule", "constant"))
    other = replace(recipe, **{"epochs": 1, **change})
    with pytest.raises(BadSettingError, match="no beginning"):
        train(network(), regression(), recipe, shorter=(other, tmp_path / "other"))


class StopError(Exception):
    pass


@pytest.mark.parametrize(
    ("schedule", "optimizer", "mode"),
    [("constant", "sgd", "eval"), ("cosine", "adam", "train"), ("steps", "sgd", "train")],
)
def test_a_run_stopped_within_or_between_epochs_ends_with_the_same_bits(
    tmp_path: Path, schedule: str, optimizer: str, mode: str
) -> None:
    recipe = replace(
        RECIPE, epochs=2, schedule=schedule, optimizer=optimizer, mode=mode, patience=1
    )
    whole = train(network(), regression(), recipe)
    for last in (1, 6, 7, 12):

        def stop(step: ProgressEvent, last: int = last) -> None:
            if step.done == last:
                raise StopError

        file = tmp_path / str(last)
        with pytest.raises(StopError):
            train(network(), regression(), recipe, checkpoint=file, every=0.0, on_step=stop)
        assert bits(train(network(), regression(), recipe, checkpoint=file)) == bits(whole)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(
    ("where", "call", "step"),
    [("loss", 8, 7), ("held out", 2, 6), ("told", 9, 9), ("told", 12, 12)],  # six steps an epoch
)
def test_a_run_interrupted_before_the_weights_move_loses_no_step(
    tmp_path: Path, mode: str, where: str, call: int, step: int
) -> None:
    recipe, task, file = replace(RECIPE, epochs=3, mode=mode), regression(), tmp_path / "run"

    def stopping(act: Callable[..., Any], name: str) -> Callable[..., Any]:
        left = iter(range(call - 1))

        def stopped(*args: Any) -> Any:
            found = act(*args)
            if name == where and next(left, None) is None:
                raise KeyboardInterrupt
            return found

        return stopped

    stopped = replace(
        task, loss=stopping(task.loss, "loss"), held_out=stopping(task.holdout, "held out")
    )
    told = stopping(lambda _: None, "told")
    with pytest.raises(KeyboardInterrupt):
        train(network(), stopped, recipe, checkpoint=file, on_step=told)
    steps: list[ProgressEvent] = []
    resumed = train(network(), task, recipe, checkpoint=file, on_step=steps.append)
    assert steps[0].done == step + 1
    assert bits(resumed) == bits(train(network(), task, recipe))


def test_a_run_interrupted_while_the_weights_move_keeps_what_was_written_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, whole = tmp_path / "run", train(network(), regression(), RECIPE)
    step, left = torch.optim.Adam.step, iter(range(8))

    def torn(*args: Any) -> Any:
        step(*args)
        if next(left, None) is None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", torn)
        with pytest.raises(KeyboardInterrupt):
            train(network(), regression(), RECIPE, checkpoint=file)
    assert not file.exists()
    assert bits(train(network(), regression(), RECIPE, checkpoint=file)) == bits(whole)


def test_a_finished_run_is_handed_out_again_without_a_step(tmp_path: Path) -> None:
    first = train(network(), regression(), RECIPE, checkpoint=tmp_path / "run")
    steps: list[ProgressEvent] = []
    again = train(
        network(), regression(), RECIPE, checkpoint=tmp_path / "run", on_step=steps.append
    )
    assert not steps
    assert bits(again) == bits(first)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"recipe": replace(RECIPE, learning_rate=0.1)}, "settings differ"),
        ({"task": replace(regression(), identity="other")}, "images or aims differ"),
        ({"model": nn.Linear(6, 2)}, "network differ"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_and_kept(
    tmp_path: Path, changed: dict[str, Any], what: str
) -> None:
    file = tmp_path / "run"
    train(network(), regression(), RECIPE, checkpoint=file)
    before = file.read_bytes()
    given = {"model": network(), "task": regression(), "recipe": RECIPE} | changed
    with pytest.raises(CheckpointError, match=re.escape(f"another run ({what}")) as refused:
        train(**given, checkpoint=file)
    assert "choose another place, or remove this one" in str(refused.value)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda b: b[: len(b) // 2], "was cut short or changed: remove it to start again"),
        (lambda b: b[:-9] + bytes([b[-9] ^ 1]) + b[-8:], "was cut short or changed"),
        (lambda _: b"", "is no checkpoint of this entrim: choose a file that does not exist yet"),
        (lambda _: b"my thesis", "is no checkpoint of this entrim"),
    ],
)
def test_a_damaged_checkpoint_is_refused_and_kept(
    tmp_path: Path, damage: Any, sentence: str
) -> None:
    file = tmp_path / "run"
    train(network(), regression(), RECIPE, checkpoint=file)
    file.write_bytes(damage(file.read_bytes()))
    before = file.read_bytes()
    with pytest.raises(CheckpointError, match=re.escape(sentence)):
        train(network(), regression(), RECIPE, checkpoint=file)
    assert file.read_bytes() == before


def test_a_place_that_cannot_hold_a_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot be read .* choose another file"):
        train(network(), regression(), RECIPE, checkpoint=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(SaveError, match=r"cannot be written .* choose another place"):
        write_checkpoint(tmp_path / "file" / "run", {}, {})


def test_a_checkpoint_gives_back_what_was_put_in(tmp_path: Path) -> None:
    state = {"a": torch.arange(3), "b": [1.5, "x"], "c": torch.ones((), dtype=torch.bfloat16)}
    file = tmp_path / "new" / "run"
    assert read_checkpoint(file, {"x": "1"}) is None
    write_checkpoint(file, {"x": "1"}, state)
    found = read_checkpoint(file, {"x": "1"})
    assert found is not None
    assert found["b"] == state["b"]
    assert fingerprint([found["a"], found["c"]]) == fingerprint([state["a"], state["c"]])
