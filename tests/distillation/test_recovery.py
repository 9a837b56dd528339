"""Recovery from the images of the cut: which images are used for what, and what is reported."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import entrim
from entrim.calibration.data import read_images
from entrim.calibration.tensor_store import Scratch, TensorStore
from entrim.distillation.augment import Augmentation
from entrim.distillation.loss import DistillationLoss
from entrim.errors import BadImagesError
from entrim.metrics import MIRROR_ERROR, compare, mirror_error
from entrim.reconstruction.views import Mixture
from entrim.storage.checkpoint import fingerprint
from entrim.surgery.prune import values_of
from tests.pipeline.networks import chain, images

X = images(200, 3, 8, 8)
SHORT = entrim.Distillation(epochs=12, batch_size=30, learning_rate=3e-3, warmup=2)


def confident() -> nn.Sequential:
    """Return a network with confident predictions, like those of a trained one."""
    net = chain()
    with torch.no_grad():
        values_of(net)["9.weight"].mul_(20)
    return net


def values(model: nn.Module) -> str:
    return fingerprint(values_of(model).values())


@pytest.fixture(scope="module")
def pruned() -> entrim.SparsifyResult:
    return entrim.sparsify(confident(), X, entrim.Widths(0.5), selector="greedy")


@pytest.fixture(scope="module")
def better(pruned: entrim.SparsifyResult) -> entrim.SparsifyResult:
    return entrim.distill(pruned, distillation=SHORT)


def test_the_images_of_the_run_are_used_without_its_hold_out_images(
    pruned: entrim.SparsifyResult, better: entrim.SparsifyResult
) -> None:
    done = better.record.distilled
    assert pruned.record.holdout is not None
    assert done is not None
    assert done.images + done.holdout + pruned.record.holdout.images == len(X)
    assert values(entrim.distill(pruned, X, SHORT).model) == values(better.model)


def test_the_final_network_is_measured_on_the_hold_out_images(
    pruned: entrim.SparsifyResult, better: entrim.SparsifyResult
) -> None:
    before, after = pruned.record.holdout, better.record.holdout
    unseen = pruned.holdout_images
    assert before is not None
    assert after is not None
    assert unseen is not None
    assert (after.images, after.outputs) == (before.images, before.outputs)
    found = compare(better.model, pruned.original, unseen.batches(64), ("logits",))
    assert after.divergence == found.divergence()
    assert after.divergence is not None
    assert before.divergence is not None
    assert after.divergence.value != before.divergence.value


def test_a_loaded_result_needs_images_and_recognizes_its_hold_out_images(
    pruned: entrim.SparsifyResult, better: entrim.SparsifyResult, tmp_path: Path
) -> None:
    pruned.save(tmp_path / "small")
    loaded = entrim.SparsifyResult.load(pruned.original, tmp_path / "small")
    with pytest.raises(BadImagesError, match="because it was loaded or they were on disk"):
        entrim.distill(loaded)
    again = entrim.distill(loaded, X, SHORT)
    assert values(again.model) == values(better.model)
    found, expected = again.record.holdout, better.record.holdout
    assert found is not None
    assert expected is not None
    assert (found.images, found.agreement) == (expected.images, expected.agreement)
    other = entrim.distill(loaded, images(90, 3, 8, 8, seed=3), SHORT)
    assert other.record.holdout is None


def test_images_on_disk_are_not_kept(tmp_path: Path) -> None:
    batches = [(x, torch.zeros(len(x))) for x in X.split(50)]
    with TensorStore(0, Scratch(tmp_path)) as store:
        assert read_images(batches, chain(), store=store).in_memory() is None
    with TensorStore(math.inf) as store:
        read = read_images(batches, chain(), store=store)
        kept = read.subset(torch.tensor([70, 3])).in_memory()
    assert kept is not None
    batch = kept.batch(slice(0, 2))
    assert isinstance(batch, Tensor)
    assert torch.equal(batch, X[[70, 3]])


def test_a_training_without_gain_returns_the_network_before_it_and_says_so(
    pruned: entrim.SparsifyResult,
) -> None:
    same = entrim.distill(pruned, distillation=SHORT, teacher=pruned.model)
    done = same.record.distilled
    assert done is not None
    assert not done.gained
    assert (done.before, done.after, done.best, done.epochs) == (0, 0, 0, 12)
    assert str(done).endswith("and nothing was gained: the network is unchanged")
    assert values(same.model) == values(pruned.model)


def test_a_training_that_makes_the_network_worse_returns_the_one_before_it(
    pruned: entrim.SparsifyResult,
) -> None:
    wild = entrim.distill(pruned, distillation=replace(SHORT, epochs=2, learning_rate=30.0))
    done = wild.record.distilled
    assert done is not None
    assert not done.gained
    assert done.best == 0
    assert values(wild.model) == values(pruned.model)


def test_a_guarantee_does_not_survive_the_training() -> None:
    budget = entrim.Budget(agreement=0.5, confidence=0.9)
    small = entrim.sparsify(chain(), X, budget)
    assert small.record.holdout is not None
    assert small.record.holdout.guarantee is not None
    trained = entrim.distill(small, distillation=replace(SHORT, epochs=1)).record.holdout
    assert trained is not None
    assert trained.guarantee is None
    assert trained.selection_images == small.record.holdout.selection_images


@pytest.mark.parametrize(("count", "epochs"), [(450, 125), (4500, 15), (10**6, 2), (10, 1000)])
def test_the_default_number_of_epochs_makes_a_thousand_steps(count: int, epochs: int) -> None:
    assert entrim.Distillation().epochs_for(count) == epochs
    assert entrim.Distillation(epochs=7).epochs_for(count) == 7


def test_mixup_averages_every_image_with_its_partner() -> None:
    mixture = Mixture(torch.tensor([1, 0, 2]), torch.tensor([0.25, 1.0, 0.5]), None)
    mixed = mixture(X[:3])
    torch.testing.assert_close(mixed[0], 0.25 * X[0] + 0.75 * X[1])
    torch.testing.assert_close(mixed[1], X[1])
    torch.testing.assert_close(mixed[2], X[2])


def test_cutmix_takes_one_box_from_the_partner() -> None:
    mixed = Mixture(torch.tensor([1, 0]), torch.zeros(2), (0.5, 0.0, 0.5))(X[:2])
    rows, columns = slice(2, 6), slice(0, 2)
    inside = torch.zeros(8, 8, dtype=torch.bool)
    inside[rows, columns] = True
    assert torch.equal(mixed, torch.where(inside, X[:2].flip(0), X[:2]))


def test_half_of_the_batches_are_mixed_by_mixup() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = [Mixture.draw(8, generator) for _ in range(200)]
    assert 70 < sum(mixture.box is None for mixture in drawn) < 130


def test_only_images_are_mixed_and_all_of_them_alike() -> None:
    tokens, rows = torch.arange(40).view(20, 2), torch.randn(20, 4)
    batch = {"a": X[:20], "b": 2 * X[:20], "tokens": tokens, "rows": rows, "flag": True}
    seen = Augmentation(mix=True)(batch, torch.Generator().manual_seed(0))
    assert isinstance(seen, dict)
    assert not torch.equal(seen["a"], X[:20])
    torch.testing.assert_close(seen["b"], 2 * seen["a"])
    assert torch.equal(seen["tokens"], tokens)
    assert torch.equal(seen["rows"], rows)
    assert seen["flag"] is True
    assert not Augmentation(mix=True).changes(rows)


class LeftHalf(nn.Module):
    """Class scores that depend on the left half of an image."""

    def forward(self, x: Tensor) -> Tensor:
        return x[..., :4].mean(3).mean(2)


class Whole(nn.Module):
    """Class scores that depend on all pixels alike, and the position of the brightest column."""

    def __init__(self, position: bool) -> None:
        super().__init__()
        self.position = position

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        scores = x.mean((2, 3))
        place = x.mean((1, 2)).softmax(1) @ torch.arange(8.0)
        return (scores, place[:, None]) if self.position else scores


def test_mirror_invariance_is_measured_on_every_output() -> None:
    assert mirror_error(Whole(position=False), [X], ("logits",)) == pytest.approx(0, abs=1e-10)
    left = mirror_error(LeftHalf(), [X], ("logits",))
    position = mirror_error(Whole(position=True), [X], ("logits", "values"))
    assert left is not None
    assert position is not None
    assert min(left, position) > MIRROR_ERROR
    assert mirror_error(nn.Linear(8, 3), [torch.randn(20, 8)], ("logits",)) is None


class TwoHeads(nn.Module):
    """Logits, and the probabilities of a segmentation."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return 3 * x.mean((2, 3)), (2 * x).softmax(1)


def test_several_outputs_are_compared_relative_to_their_mean_prediction() -> None:
    teacher = TwoHeads()
    loss = DistillationLoss.of(teacher, [X], 4.0)
    assert loss.kinds == ("logits", "probabilities")
    target = list(teacher(X))
    assert float(loss.distance(target, target)) == pytest.approx(0, abs=1e-6)
    logs = [(target[0] / 4).log_softmax(1), (target[1].log() / 4).log_softmax(1)]
    means = [log.exp().mean(0, keepdim=True).expand_as(log) for log in logs]
    constant = [(4 * means[0].log()), (4 * means[1].log()).softmax(1)]
    assert float(loss.distance(constant, target)) == pytest.approx(1, rel=1e-3)


class Probabilities(nn.Module):
    """The softmax of the scores of `Whole`."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)).softmax(1)


def test_probabilities_have_the_loss_of_their_logits() -> None:
    target = X.mean((2, 3))
    other = target.flip(1)
    of_logits = DistillationLoss.of(Whole(position=False), [X], 4.0)
    of_shares = DistillationLoss.of(Probabilities(), [X], 4.0)
    assert (of_logits.kinds, of_shares.kinds) == (("logits",), ("probabilities",))
    assert float(of_shares.distance([other.softmax(1)], [target.softmax(1)])) == pytest.approx(
        float(of_logits.distance([other], [target])), rel=1e-4
    )
