"""Distillation: the smaller network comes closer to the original, and everything stays in step."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import entrim
from entrim.calibration.data import CalibrationData
from entrim.distillation.augment import Augmentation
from entrim.distillation.loss import distillation_task
from entrim.errors import BadImagesError, BadSettingError, CheckpointError, DivergedWarning
from entrim.storage.checkpoint import fingerprint
from entrim.surgery.structure import values_of
from tests.pipeline.networks import chain, images

X = images(200, 3, 8, 8)
MORE = images(900, 3, 8, 8, seed=2)
LONG = {"epochs": 8, "batch": 30, "learning_rate": 3e-3, "patience": None}
FEW = {"epochs": 2, "batch": 50, "shift": 0.0}


def sure(seed: int = 0) -> nn.Sequential:
    """Return a network that is sure of its classes, as a trained one is."""
    net = chain(seed)
    with torch.no_grad():
        values_of(net)["9.weight"].mul_(20)
    return net


def values(model: nn.Module) -> str:
    return fingerprint(values_of(model).values())


@pytest.fixture(scope="module")
def cut() -> entrim.SparsifyResult:
    return entrim.sparsify(sure(), X[:60], widths={"*": 0.5}, selector="greedy")


@pytest.fixture(scope="module")
def better(cut: entrim.SparsifyResult) -> entrim.SparsifyResult:
    return entrim.distill(cut, MORE, **LONG)


@torch.no_grad()
def divergence(model: nn.Module, teacher: nn.Module, x: Tensor) -> float:
    own, aim = (net(x).log_softmax(1) for net in (model, teacher))
    return float((aim.exp() * (aim - own)).sum(1).mean())


def test_the_network_comes_closer_to_the_original_on_images_never_seen(
    cut: entrim.SparsifyResult, better: entrim.SparsifyResult
) -> None:
    new = images(300, 3, 8, 8, seed=1)
    done = better.record.distilled
    assert done is not None
    assert done.after < 0.8 * done.before
    before, after = (divergence(r.model, cut.original, new) for r in (cut, better))
    assert after < 0.8 * before


def test_digits_are_read_as_the_original_reads_them_more_often() -> None:
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
    result = entrim.sparsify(net, pixels[:400], widths={"*": 0.25}, selector="greedy")
    taught = entrim.distill(result, pixels[:1000])
    with torch.no_grad():
        said, small, learned = (
            model(pixels[1000:]).argmax(1) for model in (net, result.model, taught.model)
        )
    assert (learned == said).sum() > (small == said).sum()
    assert (learned == labels[1000:]).sum() > (small == labels[1000:]).sum()


def test_nothing_that_was_handed_over_is_touched() -> None:
    result = entrim.sparsify(chain().train(), X, widths={"*": 0.5}, selector="greedy")
    before = values(result.model), values(result.original), copy.deepcopy(result.plan.weights)
    random = torch.get_rng_state()
    taught = entrim.distill(result, X, **FEW)
    assert (values(result.model), values(result.original)) == before[:2]
    assert fingerprint(result.plan.weights.values()) == fingerprint(before[2].values())
    assert result.original.training
    assert taught.model.training == result.model.training
    assert taught.original is result.original
    assert all(parameter.grad is None for parameter in result.original.parameters())
    assert torch.equal(torch.get_rng_state(), random)


def test_what_is_saved_is_what_was_learned(tmp_path: Path, better: entrim.SparsifyResult) -> None:
    better.save(tmp_path / "small")
    assert values(entrim.load(chain(), tmp_path / "small")) == values(better.model)


def test_the_plan_makes_the_same_network_again(better: entrim.SparsifyResult) -> None:
    again = entrim.apply_plan(better.original, better.plan, X[:4])
    assert values(again) == values(better.model)


def test_the_record_says_what_was_done(
    cut: entrim.SparsifyResult, better: entrim.SparsifyResult, tmp_path: Path
) -> None:
    done = better.record.distilled
    assert done is not None
    assert cut.record.distilled is None
    assert (done.images, done.holdout, done.epochs) == (810, 90, 8)
    assert 1 <= done.best <= 8
    assert done.ending == "all epochs were run"
    assert done.seconds > 0
    assert done.settings["epochs"] == 8
    assert done.settings["temperature"] == 4
    assert "distilled on 810 images for 8 epochs" in str(better.record)
    assert '"distilled": {"images": 810' in better.record.to_json()


def test_the_same_seed_gives_the_same_bits_and_another_one_others(
    cut: entrim.SparsifyResult,
) -> None:
    found = [values(entrim.distill(cut, X, epochs=2, seed=s).model) for s in (0, 0, 1)]
    assert found[0] == found[1] != found[2]


def test_batches_with_labels_give_the_same_as_one_tensor(cut: entrim.SparsifyResult) -> None:
    pairs = [(x, torch.zeros(len(x))) for x in X.split(30)]
    one, other = (entrim.distill(cut, given, **FEW) for given in (X, pairs))
    assert values(one.model) == values(other.model)


def test_a_run_goes_on_from_its_checkpoint_and_refuses_other_images(
    cut: entrim.SparsifyResult, tmp_path: Path
) -> None:
    file = tmp_path / "run"
    first = entrim.distill(cut, X, checkpoint=file, **FEW)
    steps: list[entrim.ProgressEvent] = []
    again = entrim.distill(cut, X, checkpoint=file, on_step=steps.append, **FEW)
    assert not steps
    assert values(again.model) == values(first.model)
    for other in ({"images": X + 1}, {"temperature": 1.0}, {"teacher": chain(seed=1)}):
        given = {"images": X, **FEW, **other}
        with pytest.raises(CheckpointError, match="images or aims differ"):
            entrim.distill(cut, checkpoint=file, **given)


def test_another_teacher_is_learned_from(cut: entrim.SparsifyResult) -> None:
    other = sure(seed=5)
    taught = entrim.distill(cut, X, teacher=other, **LONG)
    assert divergence(taught.model, other, X) < 0.5 * divergence(cut.model, other, X)


def test_no_better_epoch_means_an_early_stop_and_the_start(cut: entrim.SparsifyResult) -> None:
    same = entrim.distill(cut, X, teacher=cut.model, epochs=9, patience=2)
    done = same.record.distilled
    assert done is not None
    assert (done.before, done.after, done.best, done.epochs) == (0, 0, 0, 2)
    assert done.ending == "stopped early: no better for 2 epochs"
    assert values(same.model) == values(cut.model)


def test_a_run_that_diverges_warns_and_keeps_what_was_good(cut: entrim.SparsifyResult) -> None:
    with pytest.warns(DivergedWarning, match="lower learning_rate"):
        taught = entrim.distill(cut, X, learning_rate=1e37, epochs=3)
    assert values(taught.model) == values(cut.model)
    assert "lower learning_rate" in taught.record.notes[-1]


class Detector(nn.Module):
    """Two outputs in a dict, neither of them scores of classes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Conv2d(3, 12, 3, padding=1)
        self.map, self.box = nn.Conv2d(12, 2, 1), nn.Linear(12, 1)

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        x = self.body(pixels).relu()
        return {"map": self.map(x), "box": self.box(x.mean((2, 3)))}


def test_other_outputs_are_matched_by_their_error_relative_to_the_variance() -> None:
    net, given = Detector(), {"pixels": X}
    result = entrim.sparsify(net, given, widths={"*": 0.4}, selector="greedy")
    task = distillation_task(net, CalibrationData({"pixels": X}), 50, Augmentation(), 1.0, 0)
    out = torch.randperm(200, generator=torch.Generator().manual_seed(0))[:50]
    with torch.no_grad():
        wanted, found = net(X[out]), result.model(X[out])
        relative = [
            (found[k] - wanted[k]).square().sum() / (wanted[k] - wanted[k].mean(0)).square().sum()
            for k in ("map", "box")
        ]
        assert task.holdout(net) == 0
        assert task.holdout(result.model) == pytest.approx(float(sum(relative)) / 2, rel=1e-4)
    done = entrim.distill(result, given, epochs=4).record.distilled
    assert done is not None
    assert done.after < done.before


def test_divergence_is_that_of_the_softened_softmax(cut: entrim.SparsifyResult) -> None:
    task = distillation_task(cut.original, CalibrationData({"": X}), 50, Augmentation(), 3.0, 0)
    out = torch.randperm(200, generator=torch.Generator().manual_seed(0))[:50]
    with torch.no_grad():
        own, aim = ((m(X[out]) / 3).log_softmax(1) for m in (cut.model, cut.original))
        assert task.holdout(cut.model) == pytest.approx(
            9 * float((aim.exp() * (aim - own)).sum(1).mean()), rel=1e-4
        )


def test_a_shifted_image_is_a_window_on_its_reflection() -> None:
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


def test_flips_mirror_some_images_and_arguments_alike() -> None:
    x = images(40, 3, 8, 8)
    seen = Augmentation(flip=True)({"a": x, "b": 2 * x, "n": 3}, torch.Generator().manual_seed(0))
    assert isinstance(seen, dict)
    mirrored = [bool(torch.equal(a, b.flip(2))) for a, b in zip(seen["a"], x, strict=True)]
    assert 5 < sum(mirrored) < 35
    assert torch.equal(seen["b"], 2 * seen["a"])
    assert seen["n"] == 3


def test_what_is_no_image_is_not_moved() -> None:
    rows = torch.randn(5, 8)
    augment = Augmentation(shift=0.2, flip=True)
    assert not augment.changes(rows)
    assert augment(rows, torch.Generator()) is rows
    assert not Augmentation().changes(X)


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"epochs": 0}, BadSettingError, "epochs is 0: hand over a whole number from 1"),
        ({"learning_rate": -1.0}, BadSettingError, "learning_rate is -1.0: it must be positive"),
        ({"temperature": 0.0}, BadSettingError, "temperature is 0.0: it must be positive"),
        ({"shift": 0.9}, BadSettingError, "shift is 0.9: it is a part of the image"),
        ({"held_out": 1.0}, BadSettingError, "held_out is 1.0: it is a part of the images"),
        ({"images": X[:12]}, BadImagesError, "12 images leave 1 to hold out and 11 to learn from"),
        ({"images": X[:4], "held_out": 0.9}, BadImagesError, "for at least 2 of each"),
        ({"images": []}, BadImagesError, "there are no images"),
    ],
)
def test_what_cannot_work_is_refused(
    cut: entrim.SparsifyResult, options: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=re.escape(sentence)):
        entrim.distill(cut, **{"images": X, **options})
