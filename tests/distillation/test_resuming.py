"""An interrupted training continues after its last finished epoch, with the same result."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from entrim.callbacks import ProgressEvent
from entrim.distillation.trainer import TrainingConfig, TrainingResult, TrainingTask, train
from entrim.errors import OtherRunError
from entrim.storage.checkpoint import CheckpointStore
from tests.tasks import CONFIG, bits, network, regression, scripted

ROOT = Path(__file__).parents[2]
CONSTANT = replace(CONFIG, schedule="constant")


def run(
    folder: Path,
    config: TrainingConfig = CONFIG,
    task: TrainingTask | None = None,
    model: nn.Module | None = None,
    stop: Callable[[ProgressEvent], Any] = lambda _: None,
) -> tuple[TrainingResult, list[int]]:
    """Return the result, and the numbers of the steps that were taken."""
    steps: list[int] = []

    def report(event: ProgressEvent) -> None:
        steps.append(event.done)
        stop(event)

    store = CheckpointStore.at(folder)
    found = train(
        model or network(), task or regression(), config, checkpoints=store, report=report
    )
    return found, steps


CHILD = """
import os, signal, sys, torch
from pathlib import Path
from tests.distillation.test_resuming import run

def stop(event):
    if event.done == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

torch.set_num_threads(1)
run(Path(sys.argv[1]), stop=stop)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="kills by signal")
def test_a_killed_training_continues_with_the_same_result(tmp_path: Path) -> None:
    folder, path = tmp_path / "run", os.pathsep.join(map(str, (ROOT / "src", ROOT)))
    for last in (9, 18):  # six steps an epoch
        command = [sys.executable, "-c", CHILD, str(folder), str(last)]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False)
        assert done.returncode == -signal.SIGKILL
    resumed, steps = run(folder)
    assert steps == list(range(13, 25))
    assert bits(resumed) == bits(train(network(), regression(), CONFIG))


def interrupt(function: Callable[..., Any], calls: int) -> Callable[..., Any]:
    """Return the function with an interruption after this number of calls."""
    left = iter(range(calls - 1))

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        if next(left, None) is None:
            raise KeyboardInterrupt
        return found

    return interrupted


@pytest.mark.parametrize(
    ("schedule", "optimizer", "mode"),
    [("constant", "sgd", "eval"), ("cosine", "adam", "train"), ("steps", "momentum", "train")],
)
@pytest.mark.parametrize(
    ("where", "call"), [("loss", 3), ("loss", 8), ("holdout", 2), ("holdout", 3), ("step", 11)]
)
def test_a_training_interrupted_anywhere_continues_after_its_last_epoch(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    schedule: str,
    optimizer: str,
    mode: str,
    where: str,
    call: int,
) -> None:
    config = replace(CONFIG, epochs=3, schedule=schedule, optimizer=optimizer, mode=mode)
    task = regression()
    with monkeypatch.context() as patch:
        if where == "step":
            place = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
            patch.setattr(place, "step", interrupt(place.step, call))
        else:
            task = replace(task, **{where: interrupt(getattr(task, where), call)})
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "run", config, task)
    finished = (call - 1) // 6 if where != "holdout" else call - 2
    assert (tmp_path / "run").exists() == (finished > 0)
    resumed, steps = run(tmp_path / "run", config)
    assert steps == list(range(6 * finished + 1, 19))
    assert bits(resumed) == bits(train(network(), regression(), config))


@pytest.mark.parametrize("step_size", [None, 1])
def test_runs_of_several_lengths_share_a_folder(tmp_path: Path, step_size: int | None) -> None:
    longer = replace(CONSTANT, step_size=step_size, return_state="last")
    brief = replace(longer, epochs=1)
    first, _ = run(tmp_path, brief)
    found, steps = run(tmp_path, longer)
    assert steps == list(range(7, 25))
    assert bits(found) == bits(train(network(), regression(), longer))
    for config, expected in ((longer, found), (brief, first)):
        again, steps = run(tmp_path, config)
        assert not steps
        assert bits(again) == bits(expected)


def test_a_longer_run_ends_where_the_patience_of_the_shorter_one_ended(tmp_path: Path) -> None:
    longer = replace(CONSTANT, patience=1, learning_rate=1e-9)
    run(tmp_path, replace(longer, epochs=1), scripted([1.0, 2.0, 3.0]))
    done, _ = run(tmp_path, longer, scripted([]))
    assert done.ending == "stopped early: no better for 1 epochs"


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"config": replace(CONFIG, epochs=5)}, "settings"),
        ({"config": replace(CONFIG, learning_rate=0.1)}, "settings"),
        ({"task": replace(regression(), identity="other")}, "images or targets"),
        ({"model": nn.Linear(6, 2)}, "network"),
    ],
)
def test_a_folder_of_another_training_is_refused_and_kept(
    tmp_path: Path, changed: dict[str, Any], difference: str
) -> None:
    first, _ = run(tmp_path)
    with pytest.raises(OtherRunError, match=rf"another run \({difference} differ\)"):
        run(tmp_path, **changed)
    again, steps = run(tmp_path)
    assert not steps
    assert bits(again) == bits(first)
