"""The training loop: the returned state, its progress, and invalid configurations."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from entrim.callbacks import ProgressEvent
from entrim.distillation.trainer import train
from entrim.errors import BadSettingError
from entrim.storage.checkpoint import fingerprint
from entrim.surgery.prune import values_of
from tests.tasks import CONFIG, bits, network, regression, scripted


def test_the_network_learns_on_a_copy_and_the_random_state_does_not_change() -> None:
    net = network()
    before, random = fingerprint(values_of(net).values()), torch.get_rng_state()
    trained = train(net, regression(), replace(CONFIG, epochs=20))
    assert trained.after < 0.7 * trained.before
    assert trained.after == min(loss for _, loss in trained.history if loss is not None)
    assert trained.after == trained.history[trained.best - 1][1]
    with torch.no_grad():
        assert regression().holdout(trained.model.eval()) == trained.after
    assert fingerprint(values_of(net).values()) == before
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is None for parameter in trained.model.parameters())


def test_modules_keep_their_training_modes() -> None:
    net = network().eval()
    net[3].train()  # pyright: ignore[reportIndexIssue]
    trained = train(net, regression(), replace(CONFIG, epochs=1))
    assert [m.training for m in trained.model.modules()] == [m.training for m in net.modules()]


def test_batchnorm_keeps_its_statistics_in_eval_mode_only() -> None:
    for mode, same in (("eval", True), ("train", False)):
        trained = train(network(), regression(), replace(CONFIG, mode=mode, epochs=10))
        assert trained.best > 0
        found = values_of(trained.model)["1.running_mean"]
        assert torch.equal(found, values_of(network())["1.running_mean"]) == same


def test_parameters_without_gradients_do_not_change() -> None:
    net = network()
    net[0].requires_grad_(False)  # pyright: ignore[reportIndexIssue]
    found = values_of(train(net, regression(), replace(CONFIG, epochs=10)).model)
    assert torch.equal(found["0.weight"], values_of(net)["0.weight"])
    assert not torch.equal(found["4.weight"], values_of(net)["4.weight"])


def test_patience_ends_the_training_and_the_best_state_is_returned() -> None:
    config = replace(CONFIG, epochs=9, patience=2)
    trained = train(network(), scripted([5, 4, 3, 3.5, 3, 0]), config)
    assert trained.ending == "stopped early: no better for 2 epochs"
    assert (trained.before, trained.after, trained.best, len(trained.history)) == (5, 3, 2, 4)
    two = train(network(), scripted([5, 4, 3]), replace(config, epochs=2, schedule="constant"))
    four = train(network(), scripted([5, 4, 3, 3.5, 3]), replace(config, schedule="constant"))
    assert bits(two)[0] == bits(four)[0]


def test_the_initial_state_is_returned_where_no_epoch_was_better() -> None:
    trained = train(network(), scripted([1, 2, 3, 4, 5]), CONFIG)
    assert (trained.best, trained.after) == (0, 1)
    assert fingerprint(values_of(trained.model).values()) == fingerprint(
        values_of(network()).values()
    )


def test_a_run_that_diverges_returns_the_best_state_and_a_remedy() -> None:
    trained = train(network(), regression(), replace(CONFIG, learning_rate=1e30, optimizer="sgd"))
    assert trained.diverged
    assert trained.ending == "the loss became NaN or infinite in epoch 1: lower learning_rate"
    assert trained.after == trained.before
    assert all(bool(tensor.isfinite().all()) for tensor in values_of(trained.model).values())


def test_a_loss_that_is_nan_from_the_start_is_refused() -> None:
    with pytest.raises(BadSettingError, match="before the training: check that both"):
        train(network(), scripted([math.nan]), CONFIG)


def test_events_contain_epoch_loss_and_remaining_time() -> None:
    steps: list[ProgressEvent] = []
    train(network(), regression(), CONFIG, stage="distill", report=steps.append)
    assert [step.done for step in steps] == list(range(1, 25))
    assert {step.total for step in steps} == {24}
    assert [steps[0].name, steps[-1].name] == ["epoch 1", "epoch 4"]
    assert {step.stage for step in steps} == {"distill"}
    assert all(step.loss is not None and step.loss > 0 for step in steps)
    assert steps[-1].seconds_left == 0
    assert all(step.seconds_left is not None and step.seconds_left > 0 for step in steps[:-1])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epochs": 0}, "epochs must be a positive integer, got 0"),
        ({"batch": 0}, "batch must be a positive integer, got 0"),
        ({"patience": 0}, "patience must be a positive integer, got 0"),
        ({"learning_rate": 0.0}, "learning_rate must be positive, got 0.0"),
        ({"learning_rate": math.nan}, "learning_rate must be positive, got nan"),
        ({"weight_decay": -1.0}, "weight_decay must be at least 0, got -1.0"),
        (
            {"optimizer": "lion"},
            "optimizer must be one of 'adam', 'adamw', 'sgd', 'momentum', got 'lion'",
        ),
        ({"step_size": 0}, "step_size must be a positive integer, got 0"),
        (
            {"return_state": "first"},
            "return_state must be one of 'best', 'last', 'better', got 'first'",
        ),
        ({"schedule": "saw"}, "schedule must be one of 'constant', 'cosine', 'steps'"),
        ({"mode": "test"}, "mode must be one of 'train', 'eval', got 'test'"),
    ],
)
def test_invalid_configurations_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadSettingError, match=re.escape(sentence)):
        replace(CONFIG, **options)


def test_a_network_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(BadSettingError, match=re.escape("call model.requires_grad_(True)")):
        train(network().requires_grad_(False), regression(), CONFIG)


def test_the_last_state_is_returned_on_request() -> None:
    config = replace(CONFIG, epochs=3, return_state="last")
    done = train(network(), scripted([4.0, 1.0, 2.0, 3.0]), config)
    best = train(network(), scripted([4.0, 1.0, 2.0, 3.0]), replace(config, return_state="best"))
    assert (done.after, done.best, best.after, best.best) == (3.0, 3, 1.0, 1)
    assert bits(done)[0] != bits(best)[0]


def test_the_last_finite_state_is_returned() -> None:
    config = replace(CONFIG, epochs=3, return_state="last")
    done = train(network(), scripted([4.0, 5.0, math.inf]), config)
    assert (done.after, done.best, done.diverged) == (5.0, 1, True)


def test_the_better_of_the_first_and_the_last_state_is_returned_on_request() -> None:
    config = replace(CONFIG, epochs=3, return_state="better")
    worse = train(network(), scripted([4.0, 5.0]), config)
    better = train(network(), scripted([4.0, 3.0]), config)
    assert (worse.after, worse.best, better.after, better.best) == (4.0, 0, 3.0, 3)
    assert [loss for _, loss in better.history] == [None, None, 3.0]
    start = {name: tensor.clone() for name, tensor in network().state_dict().items()}
    assert all(torch.equal(start[k], v) for k, v in worse.model.state_dict().items())


def test_the_learning_rate_rises_before_it_decreases() -> None:
    config = replace(CONFIG, epochs=2, warmup=4, schedule="constant")
    assert [config.factor(step, 5) for step in (0, 1, 3, 9)] == [0.25, 0.5, 1.0, 1.0]


def test_patience_needs_a_loss_after_every_epoch() -> None:
    with pytest.raises(BadSettingError, match="leave one of them out"):
        replace(CONFIG, patience=2, return_state="better")
