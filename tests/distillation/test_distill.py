"""Distillation: the pruned network approaches the original, and the record describes it."""

import copy
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import entrim
from entrim.calibration.data import read_images
from entrim.distillation.augment import Augmentation
from entrim.distillation.loss import distillation_task
from entrim.errors import BadImagesError, BadSettingError, DivergedWarning, OtherRunError
from entrim.storage.checkpoint import fingerprint
from entrim.surgery.prune import values_of
from tests.callbacks import Recorder, StopAt, StopError
from tests.pipeline.networks import chain, images

X = images(200, 3, 8, 8)
MORE = images(900, 3, 8, 8, seed=2)
LONG = entrim.Distillation(epochs=8, batch_size=30, learning_rate=3e-3)
PLAIN = replace(LONG, shift=0.0, mix=False)
SHORT = entrim.Distillation(epochs=2, batch_size=50, shift=0.0)


def confident(seed: int = 0) -> nn.Sequential:
    """Return a network with confident predictions, like those of a trained one."""
    net = chain(seed)
    with torch.no_grad():
        values_of(net)["9.weight"].mul_(20)
    return net


def values(model: nn.Module) -> str:
    return fingerprint(values_of(model).values())


@pytest.fixture(scope="module")
def pruned() -> entrim.SparsifyResult:
    return entrim.sparsify(confident(), X[:60], entrim.Widths(0.5), selector="greedy")


@pytest.fixture(scope="module")
def better(pruned: entrim.SparsifyResult) -> entrim.SparsifyResult:
    return entrim.distill(pruned, MORE, LONG)


@torch.no_grad()
def divergence(model: nn.Module, teacher: nn.Module, x: Tensor) -> float:
    own, target = (net(x).log_softmax(1) for net in (model, teacher))
    return float((target.exp() * (target - own)).sum(1).mean())


def test_the_network_approaches_the_original_on_new_images(
    pruned: entrim.SparsifyResult, better: entrim.SparsifyResult
) -> None:
    new = images(300, 3, 8, 8, seed=1)
    done = better.record.distilled
    assert done is not None
    assert done.after < 0.8 * done.before
    before, after = (divergence(r.model, pruned.original, new) for r in (pruned, better))
    assert after < 0.8 * before


def test_a_distilled_network_agrees_with_the_original_more_often() -> None:
    flat, classes = load_digits(return_X_y=True)
    pixels = torch.as_tensor(flat).float().view(-1, 1, 8, 8) / 16
    labels = torch.as_tensor(classes)
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 24, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(96, 10),
    )
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(4):
        for rows in torch.randperm(1000).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(pixels[rows]), labels[rows]).backward()
            optimizer.step()
    net.eval()
    result = entrim.sparsify(net, pixels[:400], entrim.Widths(0.25), selector="greedy")
    distilled = entrim.distill(result, pixels[:1000])
    with torch.no_grad():
        original, small, better = (
            model(pixels[1000:]).argmax(1) for model in (net, result.model, distilled.model)
        )
    assert (better == original).sum() > (small == original).sum()
    assert (better == labels[1000:]).sum() > (small == labels[1000:]).sum()


def test_the_arguments_are_not_modified() -> None:
    result = entrim.sparsify(chain().train(), X, entrim.Widths(0.5), selector="greedy")
    before = values(result.model), values(result.original), copy.deepcopy(result.plan.weights)
    random = torch.get_rng_state()
    distilled = entrim.distill(result, X, SHORT)
    assert (values(result.model), values(result.original)) == before[:2]
    assert fingerprint(result.plan.weights.values()) == fingerprint(before[2].values())
    assert result.original.training
    assert distilled.model.training == result.model.training
    assert distilled.original is result.original
    assert all(parameter.grad is None for parameter in result.original.parameters())
    assert torch.equal(torch.get_rng_state(), random)


def test_the_distilled_network_is_saved(tmp_path: Path, better: entrim.SparsifyResult) -> None:
    better.save(tmp_path / "small")
    assert values(entrim.load(chain(), tmp_path / "small")) == values(better.model)


def test_the_plan_produces_the_same_network(better: entrim.SparsifyResult) -> None:
    again = entrim.apply_plan(better.original, better.plan, X[:4])
    assert values(again) == values(better.model)


def test_the_record_describes_the_training(
    pruned: entrim.SparsifyResult, better: entrim.SparsifyResult, tmp_path: Path
) -> None:
    done = better.record.distilled
    assert done is not None
    assert pruned.record.distilled is None
    assert (done.images, done.holdout, done.epochs) == (810, 90, 8)
    assert 1 <= done.best <= 8
    assert done.ending == "all epochs were run"
    assert done.seconds > 0
    assert done.settings == asdict(LONG)
    assert "distilled on 810 images for 8 epochs" in str(better.record)
    assert '"distilled": {"images": 810' in better.record.to_json()


def test_the_same_seed_gives_the_same_weights(
    pruned: entrim.SparsifyResult,
) -> None:
    configs = [replace(PLAIN, epochs=3, seed=seed) for seed in (0, 0, 1)]
    found = [values(entrim.distill(pruned, X, config).model) for config in configs]
    assert found[0] == found[1] != found[2]


def test_batches_with_labels_give_the_same_result_as_one_tensor(
    pruned: entrim.SparsifyResult,
) -> None:
    pairs = [(x, torch.zeros(len(x))) for x in X.split(30)]
    one, other = (entrim.distill(pruned, given, SHORT) for given in (X, pairs))
    assert values(one.model) == values(other.model)


def test_the_images_of_a_pruner_are_used(pruned: entrim.SparsifyResult) -> None:
    with entrim.Pruner(confident(), X) as pruner:
        assert values(entrim.distill(pruned, pruner, SHORT).model) == values(
            entrim.distill(pruned, X, SHORT).model
        )


def test_an_interrupted_call_continues_and_refuses_other_images(
    pruned: entrim.SparsifyResult, tmp_path: Path
) -> None:
    folder, recorder = tmp_path / "checkpoints", Recorder()
    with pytest.raises(StopError):
        entrim.distill(
            pruned, X, SHORT, checkpoint_dir=folder, callbacks=[StopAt(lambda e: e.done == 5)]
        )
    changes: list[dict[str, Any]] = [
        {"images": X + 1},
        {"distillation": replace(SHORT, temperature=1.0)},
        {"teacher": chain(seed=1)},
    ]
    for change in changes:
        arguments = {"images": X, "distillation": SHORT, **change}
        with pytest.raises(OtherRunError, match="images or targets differ"):
            entrim.distill(pruned, checkpoint_dir=folder, **arguments)
    resumed = entrim.distill(pruned, X, SHORT, checkpoint_dir=folder, callbacks=[recorder])
    assert [event.done for event in recorder.events] == [0, 5, 6, 7, 8]  # of two epochs
    assert values(resumed.model) == values(entrim.distill(pruned, X, SHORT).model)
    assert not folder.exists()


def test_every_batch_is_reported_between_begin_and_end(pruned: entrim.SparsifyResult) -> None:
    recorder = Recorder()
    entrim.distill(pruned, X, SHORT, callbacks=[recorder])
    steps = 1 + 2 * 4  # the estimate, and two epochs of 169 images
    expected = [("begin", "distill"), *[("step", "distill")] * steps, ("end", "distill")]
    assert recorder.calls == expected
    estimate, *rest = recorder.events
    assert (estimate.done, estimate.total) == (0, 8)
    assert estimate.seconds_left is not None
    assert estimate.seconds_left > 0
    assert all(event.loss is not None for event in rest)


def test_another_teacher_can_be_used(pruned: entrim.SparsifyResult) -> None:
    other = confident(seed=5)
    distilled = entrim.distill(pruned, X, PLAIN, teacher=other)
    assert divergence(distilled.model, other, X) < 0.5 * divergence(pruned.model, other, X)


def test_without_a_better_epoch_the_run_stops_early_with_the_initial_state(
    pruned: entrim.SparsifyResult,
) -> None:
    config = entrim.Distillation(epochs=9, patience=2)
    same = entrim.distill(pruned, X, config, teacher=pruned.model)
    done = same.record.distilled
    assert done is not None
    assert (done.before, done.after, done.best, done.epochs) == (0, 0, 0, 2)
    assert done.ending == "stopped early: no better for 2 epochs"
    assert values(same.model) == values(pruned.model)


def test_a_run_that_diverges_warns_and_returns_the_best_state(
    pruned: entrim.SparsifyResult,
) -> None:
    config = entrim.Distillation(learning_rate=1e37, epochs=3, warmup=0)
    with pytest.warns(DivergedWarning, match="lower learning_rate"):
        distilled = entrim.distill(pruned, X, config)
    assert values(distilled.model) == values(pruned.model)
    assert "lower learning_rate" in distilled.record.notes[-1]


class Detector(nn.Module):
    """Two outputs in a dict, neither of them logits."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Conv2d(3, 12, 3, padding=1)
        self.map, self.box = nn.Conv2d(12, 2, 1), nn.Linear(12, 1)

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        x = self.body(pixels).relu()
        return {"map": self.map(x), "box": self.box(x.mean((2, 3)))}


def test_other_outputs_are_compared_by_their_error_relative_to_the_variance() -> None:
    net, given = Detector(), {"pixels": X}
    result = entrim.sparsify(net, given, entrim.Widths(0.4), selector="greedy")
    task = distillation_task(net, read_images({"pixels": X}, net), 50, Augmentation(), 1.0, 0)
    out = torch.randperm(200, generator=torch.Generator().manual_seed(0))[:50]
    with torch.no_grad():
        expected, found = net(X[out]), result.model(X[out])
        relative = [
            (found[k] - expected[k]).square().sum()
            / (expected[k] - expected[k].mean(0)).square().sum()
            for k in ("map", "box")
        ]
        assert task.holdout(net) == 0
        assert task.holdout(result.model) == pytest.approx(float(sum(relative)) / 2, rel=1e-4)
    done = entrim.distill(result, given, LONG).record.distilled
    assert done is not None
    assert done.after < done.before


def test_the_loss_of_a_classifier_is_the_divergence_at_the_temperature(
    pruned: entrim.SparsifyResult,
) -> None:
    task = distillation_task(
        pruned.original, read_images(X, pruned.original), 50, Augmentation(), 3.0, 0
    )
    out = torch.randperm(200, generator=torch.Generator().manual_seed(0))[:50]
    with torch.no_grad():
        own, target = ((m(X[out]) / 3).log_softmax(1) for m in (pruned.model, pruned.original))
        assert task.holdout(pruned.model) == pytest.approx(
            9 * float((target.exp() * (target - own)).sum(1).mean()), rel=1e-4
        )


def test_a_shifted_image_is_padded_by_reflection() -> None:
    x = torch.arange(6 * 2 * 8 * 16.0).view(6, 2, 8, 16)
    moved = Augmentation(shift=0.25)(x, torch.Generator().manual_seed(0))
    padded = nn.functional.pad(x, (4, 4, 2, 2), mode="reflect")
    windows = padded.unfold(2, 8, 1).unfold(3, 16, 1).flatten(2, 3)
    assert isinstance(moved, Tensor)
    places = [
        [bool(torch.equal(windows[n, :, w], moved[n])) for w in range(windows.shape[2])]
        for n in range(6)
    ]
    assert all(any(place) for place in places)
    assert len({place.index(True) for place in places}) > 1


def test_a_flip_mirrors_some_images_in_all_arguments() -> None:
    x = images(40, 3, 8, 8)
    seen = Augmentation(flip=True)({"a": x, "b": 2 * x, "n": 3}, torch.Generator().manual_seed(0))
    assert isinstance(seen, dict)
    mirrored = [bool(torch.equal(a, b.flip(2))) for a, b in zip(seen["a"], x, strict=True)]
    assert 5 < sum(mirrored) < 35
    assert torch.equal(seen["b"], 2 * seen["a"])
    assert seen["n"] == 3


def test_a_shift_of_more_than_half_of_the_image_is_refused() -> None:
    with pytest.raises(
        BadSettingError, match=r"shift must be a fraction of the image from 0 to 0\.5, got 0\.9"
    ):
        Augmentation(shift=0.9)


def test_only_images_are_augmented() -> None:
    rows = torch.randn(5, 8)
    augment = Augmentation(shift=0.2, flip=True)
    assert not augment.changes(rows)
    assert augment(rows, torch.Generator()) is rows
    assert not Augmentation().changes(X)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epochs": 0}, "epochs must be a positive integer, got 0"),
        ({"batch_size": 0}, "batch_size must be a positive integer, got 0"),
        ({"patience": 0}, "patience must be a positive integer, got 0"),
        ({"warmup": -1}, "warmup must be 0 or a number of steps, got -1"),
        ({"learning_rate": -1.0}, "learning_rate must be positive, got -1.0"),
        ({"temperature": 0.0}, "temperature must be positive, got 0.0"),
        ({"shift": 0.9}, "shift must be a fraction from 0 to 0.5, got 0.9"),
        ({"holdout": 1.0}, "holdout must be a fraction such as 0.1, got 1.0"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadSettingError, match=re.escape(sentence)):
        entrim.Distillation(**options)


@pytest.mark.parametrize(
    ("given", "holdout", "sentence"),
    [
        (MORE[:12], 0.1, "12 images leave 1 to hold out and 11 to train on"),
        (MORE[:4], 0.9, "for at least 2 of each"),
        ([], 0.1, "there are no images"),
    ],
)
def test_too_few_images_are_refused(
    pruned: entrim.SparsifyResult, given: Any, holdout: float, sentence: str
) -> None:
    with pytest.raises(BadImagesError, match=sentence):
        entrim.distill(pruned, given, entrim.Distillation(holdout=holdout))
