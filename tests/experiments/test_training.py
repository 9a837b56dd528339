"""The recipes with labels: as published, and the task that they teach."""

import pytest
import torch
from torch import nn

from entrim.distillation.trainer import OPTIMIZERS, train
from experiments.datasets import Dataset
from experiments.normalization import Normalization
from experiments.training import (
    cifar_fine_tuning,
    cifar_growing,
    cifar_training,
    classification,
    fresh,
    lenet_fine_tuning,
    lenet_training,
    percent_right,
)

PLAIN = Normalization((0.0,), (1.0,))


class ReadsThePixel(nn.Module):
    """Names the class that the first pixel holds."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        classes = (255 * x[:, 0, 0, 0]).round().long()
        return self.scale * nn.functional.one_hot(classes, 10).float()


def digits(count: int, wrong: int) -> Dataset:
    """Return images whose first pixel is the label, but for the first `wrong` of them."""
    labels = torch.arange(count) % 10
    images = torch.zeros(count, 1, 4, 4, dtype=torch.uint8)
    images[:, 0, 0, 0] = labels.to(torch.uint8)
    labels[:wrong] = (labels[:wrong] + 1) % 10
    return Dataset(images, labels)


def test_lenet_is_trained_and_fine_tuned_as_published() -> None:
    rates = [lenet_training().rate(epoch, epoch / 20) for epoch in range(20)]
    assert rates == [1e-3] * 7 + [5e-4] * 7 + [2.5e-4] * 6
    rates = [lenet_fine_tuning().rate(epoch, epoch / 10) for epoch in range(10)]
    assert rates == [1e-4] * 4 + [5e-5] * 4 + [2.5e-5] * 2


def test_the_cifar_networks_follow_a_cosine_from_a_tenth_to_nothing() -> None:
    recipe = cifar_training()
    assert (recipe.epochs, recipe.weight_decay) == (200, 5e-4)
    rates = [recipe.rate(epoch, epoch / 200) for epoch in (0, 100, 200)]
    assert rates == pytest.approx([0.1, 0.05, 0.0])
    assert {cifar_fine_tuning(50).rate(epoch, epoch / 50) for epoch in range(50)} == {1e-3}


def test_a_short_training_rises_and_falls_on_images_that_grow() -> None:
    sides, recipes = zip(*cifar_growing(), strict=True)
    assert sides == tuple(sorted(sides))
    assert sides[-1] == 32
    for recipe in recipes:
        rates = [recipe.rate(0, done) / recipe.learning_rate for done in (0.0, 0.1, 0.2, 0.6, 1.0)]
        assert rates == pytest.approx([0, 0.5, 1, 0.5, 0])


def test_images_are_shrunk_to_the_means_of_their_parts_to_learn_and_watched_whole() -> None:
    seen: list[torch.Tensor] = []

    class Watching(ReadsThePixel):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x)
            return super().forward(x)

    some = digits(20, wrong=0)
    task = classification(some, some, PLAIN, side=2)
    task.loss(Watching(), torch.arange(20), torch.Generator())
    task.holdout(Watching())
    means = PLAIN(some.images).view(20, 1, 2, 2, 2, 2).mean((3, 5))
    assert torch.allclose(seen[0], means)
    assert torch.equal(seen[1], PLAIN(some.images))
    assert task.identity != classification(some, some, PLAIN).identity


def test_plain_momentum_is_heavy_ball_and_not_nesterov() -> None:
    x = nn.Parameter(torch.tensor(1.0))
    optimizer = OPTIMIZERS["momentum"]([x], lr=0.1)
    for wanted in (0.9, 0.72):  # v = 1, x = 1 - 0.1; v = 0.9 + 0.9, x = 0.9 - 0.18
        optimizer.zero_grad()
        (x.square() / 2).backward()
        optimizer.step()
        assert x.item() == pytest.approx(wanted)


def test_accuracy_counts_what_is_named_right_beyond_one_chunk() -> None:
    assert percent_right(ReadsThePixel(), digits(1200, wrong=300), PLAIN) == 75.0


def test_what_is_watched_is_the_percentage_named_wrong() -> None:
    task = classification(digits(20, wrong=0), digits(40, wrong=10), PLAIN)
    done = train(ReadsThePixel(), task, lenet_training(epochs=2))
    assert done.before == done.after == 25.0
    assert (done.best, task.count) == (2, 20)


def test_another_lesson_has_another_identity() -> None:
    same, other = digits(20, wrong=0), digits(20, wrong=1)
    assert classification(same, same, PLAIN).identity != classification(other, same, PLAIN).identity


def test_fresh_weights_follow_from_the_seed_and_leave_the_network_alone() -> None:
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2))
    with torch.no_grad():
        for tensor in (*net.parameters(), *net.buffers()):
            tensor.fill_(7)
    one, same, other = (fresh(net, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(one["0.weight"], same["0.weight"])
    assert not torch.equal(one["0.weight"], other["0.weight"])
    assert one["1.running_mean"].abs().max() == 0
    assert all((tensor == 7).all() for tensor in net.state_dict().values())
