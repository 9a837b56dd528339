"""The training loop: the same bits after a kill, the best state handed out, bad input refused."""

import math
import multiprocessing as mp
import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from entrim.checkpoints import fingerprint, read_checkpoint, write_checkpoint
from entrim.errors import BadSettingError, CheckpointError, SaveError
from entrim.network.form import values_of
from entrim.recipes import Recipe, Task, Trained
from entrim.records import Step
from entrim.training import train

RECIPE = Recipe(epochs=4, batch=16, learning_rate=1e-2)


def network() -> nn.Module:
    """Return a network with everything that a resume can get wrong: dropout, BatchNorm."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 2)
        )


def regression(count: int = 90, noise: float = 0.1) -> Task:
    """Return the task of fitting a curve, on inputs that are disturbed at random."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(count + 40, 6, generator=g)
    y = torch.stack([x[:, 0].sin(), x[:, 1] * x[:, 2]], 1)

    def loss(model: nn.Module, index: Tensor, generator: torch.Generator) -> Tensor:
        moved = x[index] + noise * torch.randn(len(index), 6, generator=generator)
        return nn.functional.mse_loss(model(moved), y[index])

    return Task(
        count=count,
        loss=loss,
        held_out=lambda model: float(nn.functional.mse_loss(model(x[count:]), y[count:])),
        identity=fingerprint([x, y]),
    )


def scripted(losses: list[float]) -> Task:
    """Return a task whose losses on images held out are given, the first at the start."""
    said = iter(losses)
    return Task(
        count=4,
        loss=lambda model, index, _: model(torch.ones(len(index), 6)).square().mean(),
        held_out=lambda _: next(said),
        identity="scripted",
    )


def bits(trained: Trained) -> tuple[str, Any, int, str]:
    """Return all of a result but its seconds."""
    return (
        fingerprint(values_of(trained.model).values()),
        trained.history,
        trained.best,
        trained.ending,
    )


def train_slowly(file: Path, recipe: Recipe) -> None:
    torch.set_num_threads(1)
    train(
        network(),
        regression(),
        recipe,
        checkpoint=file,
        every=0.0,
        on_step=lambda _: time.sleep(0.01),
    )


def kill_when_written(file: Path, recipe: Recipe, times: int) -> None:
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
    steps: list[Step] = []
    resumed = train(network(), regression(), recipe, checkpoint=file, on_step=steps.append)
    assert 7 <= steps[0].done < steps[-1].done == 24
    assert bits(resumed) == bits(whole)
    assert {entry.name for entry in tmp_path.iterdir()} <= {file.name}


class StopError(Exception):
    pass


@pytest.mark.parametrize(
    ("schedule", "optimiser", "mode"),
    [("constant", "sgd", "eval"), ("cosine", "adam", "train"), ("steps", "sgd", "train")],
)
def test_a_run_stopped_within_or_between_epochs_ends_with_the_same_bits(
    tmp_path: Path, schedule: str, optimiser: str, mode: str
) -> None:
    recipe = replace(
        RECIPE, epochs=2, schedule=schedule, optimiser=optimiser, mode=mode, patience=1
    )
    whole = train(network(), regression(), recipe)
    for last in (1, 6, 7, 12):

        def stop(step: Step, last: int = last) -> None:
            if step.done == last:
                raise StopError

        file = tmp_path / str(last)
        with pytest.raises(StopError):
            train(network(), regression(), recipe, checkpoint=file, every=0.0, on_step=stop)
        assert bits(train(network(), regression(), recipe, checkpoint=file)) == bits(whole)


def test_a_finished_run_is_handed_out_again_without_a_step(tmp_path: Path) -> None:
    first = train(network(), regression(), RECIPE, checkpoint=tmp_path / "run")
    steps: list[Step] = []
    again = train(
        network(), regression(), RECIPE, checkpoint=tmp_path / "run", on_step=steps.append
    )
    assert not steps
    assert bits(again) == bits(first)


def test_the_network_learns_and_neither_it_nor_the_callers_random_numbers_are_touched() -> None:
    net = network()
    before, random = fingerprint(values_of(net).values()), torch.get_rng_state()
    trained = train(net, regression(), replace(RECIPE, epochs=20))
    assert trained.after < 0.7 * trained.before
    assert trained.after == min(held_out for _, held_out in trained.history)
    assert trained.after == trained.history[trained.best - 1][1]
    with torch.no_grad():
        assert regression().held_out(trained.model.eval()) == trained.after
    assert fingerprint(values_of(net).values()) == before
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is None for parameter in trained.model.parameters())


def test_modes_come_back_as_they_were() -> None:
    net = network().eval()
    net[3].train()  # pyright: ignore[reportIndexIssue]
    trained = train(net, regression(), replace(RECIPE, epochs=1))
    assert [m.training for m in trained.model.modules()] == [m.training for m in net.modules()]


def test_eval_mode_leaves_the_statistics_of_batchnorm_and_train_mode_moves_them() -> None:
    for mode, same in (("eval", True), ("train", False)):
        trained = train(network(), regression(), replace(RECIPE, mode=mode, epochs=10))
        assert trained.best > 0
        found = values_of(trained.model)["1.running_mean"]
        assert torch.equal(found, values_of(network())["1.running_mean"]) == same


def test_parameters_that_ask_for_no_gradients_stay() -> None:
    net = network()
    net[0].requires_grad_(False)  # pyright: ignore[reportIndexIssue]
    found = values_of(train(net, regression(), replace(RECIPE, epochs=10)).model)
    assert torch.equal(found["0.weight"], values_of(net)["0.weight"])
    assert not torch.equal(found["4.weight"], values_of(net)["4.weight"])


def test_patience_stops_and_the_best_state_is_handed_out() -> None:
    recipe = replace(RECIPE, epochs=9, patience=2)
    trained = train(network(), scripted([5, 4, 3, 3.5, 3, 0]), recipe)
    assert trained.ending == "stopped early: no better for 2 epochs"
    assert (trained.before, trained.after, trained.best, len(trained.history)) == (5, 3, 2, 4)
    two = train(network(), scripted([5, 4, 3]), replace(recipe, epochs=2, schedule="constant"))
    four = train(network(), scripted([5, 4, 3, 3.5, 3]), replace(recipe, schedule="constant"))
    assert bits(two)[0] == bits(four)[0]


def test_the_start_is_handed_out_where_nothing_was_better() -> None:
    trained = train(network(), scripted([1, 2, 3, 4, 5]), RECIPE)
    assert (trained.best, trained.after) == (0, 1)
    assert fingerprint(values_of(trained.model).values()) == fingerprint(
        values_of(network()).values()
    )


def test_a_run_that_diverges_keeps_the_best_state_and_says_what_to_do() -> None:
    trained = train(network(), regression(), replace(RECIPE, learning_rate=1e30, optimiser="sgd"))
    assert trained.diverged
    assert trained.ending == "the loss became NaN or infinite in epoch 1: lower learning_rate"
    assert trained.after == trained.before
    assert all(bool(tensor.isfinite().all()) for tensor in values_of(trained.model).values())


def test_a_loss_that_is_nan_from_the_start_is_refused() -> None:
    with pytest.raises(BadSettingError, match="before anything is trained: check that both"):
        train(network(), scripted([math.nan]), RECIPE)


def test_steps_tell_epoch_loss_and_the_time_that_is_left() -> None:
    steps: list[Step] = []
    train(network(), regression(), RECIPE, stage="distill", on_step=steps.append)
    assert [step.done for step in steps] == list(range(1, 25))
    assert {step.total for step in steps} == {24}
    assert [steps[0].name, steps[-1].name] == ["epoch 1", "epoch 4"]
    assert {step.stage for step in steps} == {"distill"}
    assert all(step.loss is not None and step.loss > 0 for step in steps)
    assert steps[-1].seconds_left == 0
    assert all(step.seconds_left is not None and step.seconds_left > 0 for step in steps[:-1])


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
    assert "choose another file, or remove this one" in str(refused.value)
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


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epochs": 0}, "epochs is 0: hand over a whole number from 1"),
        ({"batch": 0}, "batch is 0: hand over a whole number from 1"),
        ({"patience": 0}, "patience is 0: hand over a whole number from 1"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0: it must be positive"),
        ({"learning_rate": math.nan}, "learning_rate is nan: it must be positive"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0: hand over 0 or more"),
        ({"optimiser": "lion"}, "optimiser is 'lion': choose one of 'adam', 'sgd'"),
        ({"schedule": "saw"}, "schedule is 'saw': choose one of 'constant', 'cosine', 'steps'"),
        ({"mode": "test"}, "mode is 'test': choose one of 'train', 'eval'"),
    ],
)
def test_recipes_that_cannot_work_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadSettingError, match=re.escape(sentence)):
        replace(RECIPE, **options)


def test_a_network_without_anything_to_learn_is_refused() -> None:
    with pytest.raises(BadSettingError, match=re.escape("call model.requires_grad_(True)")):
        train(network().requires_grad_(False), regression(), RECIPE)


def test_the_last_state_is_handed_out_where_the_recipe_says_so() -> None:
    told = replace(RECIPE, epochs=3, hand_out="last")
    done = train(network(), scripted([4.0, 1.0, 2.0, 3.0]), told)
    best = train(network(), scripted([4.0, 1.0, 2.0, 3.0]), replace(told, hand_out="best"))
    assert (done.after, done.best, best.after, best.best) == (3.0, 3, 1.0, 1)
    assert bits(done)[0] != bits(best)[0]


def test_the_last_state_before_infinity_is_handed_out() -> None:
    told = replace(RECIPE, epochs=3, hand_out="last")
    done = train(network(), scripted([4.0, 5.0, math.inf]), told)
    assert (done.after, done.best, done.diverged) == (5.0, 1, True)
