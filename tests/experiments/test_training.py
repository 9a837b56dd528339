"""Training with labels: the configurations as published, and the classification task."""

import pytest
import torch
from torch import nn

from entrim.distillation.trainer import OPTIMIZERS, train
from experiments.datasets import Dataset
from experiments.normalization import Normalization
from experiments.training import (
    accuracy,
    cifar_fine_tuning,
    cifar_training,
    classification_task,
    lenet_fine_tuning,
    lenet_training,
    reinitialize,
)

PLAIN = Normalization((0.0,), (1.0,))


class ReadsThePixel(nn.Module):
    """Predicts the class that is the value of the first pixel."""

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
    factors = [lenet_training().factor(epoch, 1) for epoch in range(20)]
    assert factors == [1] * 7 + [0.5] * 7 + [0.25] * 6
    factors = [lenet_fine_tuning().factor(epoch, 1) for epoch in range(10)]
    assert factors == [1] * 4 + [0.5] * 4 + [0.25] * 2
    assert (lenet_training().learning_rate, lenet_fine_tuning().learning_rate) == (1e-3, 1e-4)


def test_the_cifar_networks_follow_a_cosine_from_a_tenth_to_nothing() -> None:
    config = cifar_training()
    assert (config.epochs, config.weight_decay) == (200, 5e-4)
    rates = [config.learning_rate * config.factor(epoch, 1) for epoch in (0, 100, 200)]
    assert rates == pytest.approx([0.1, 0.05, 0.0])
    assert {cifar_fine_tuning(50).factor(epoch, 1) for epoch in range(50)} == {1}
    assert cifar_fine_tuning(50).learning_rate == 1e-3


def test_bfloat16_is_a_training_of_its_own_and_close_to_float32() -> None:
    torch.manual_seed(0)
    some = Dataset(torch.randint(0, 256, (64, 1, 8, 8), dtype=torch.uint8), torch.arange(64) % 4)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
    tasks = [classification_task(some, some, PLAIN, bfloat16=half) for half in (False, True)]
    assert tasks[0].identity != tasks[1].identity
    exact, rounded = (
        task.loss(model, torch.arange(64), torch.Generator()).item() for task in tasks
    )
    assert 0 < abs(exact - rounded) < 0.01 * exact
    done = [train(model, task, lenet_training(epochs=1)).model for task in tasks]
    values = [[value.detach() for value in model.parameters()] for model in done]
    for one, other in zip(*values, strict=True):
        assert other.dtype == torch.float32
        assert float((one - other).norm()) < 0.05 * float(one.norm())


def test_plain_momentum_is_heavy_ball_and_not_nesterov() -> None:
    x = nn.Parameter(torch.tensor(1.0))
    optimizer = OPTIMIZERS["momentum"]([x], lr=0.1)
    for expected in (0.9, 0.72):  # v = 1, x = 1 - 0.1; v = 0.9 + 0.9, x = 0.9 - 0.18
        optimizer.zero_grad()
        (x.square() / 2).backward()
        optimizer.step()
        assert x.item() == pytest.approx(expected)


def test_accuracy_counts_correct_images_beyond_one_chunk() -> None:
    assert accuracy(ReadsThePixel(), digits(1200, wrong=300), PLAIN) == 75.0


def test_the_validation_loss_is_the_percentage_of_errors() -> None:
    task = classification_task(digits(20, wrong=0), digits(40, wrong=10), PLAIN)
    done = train(ReadsThePixel(), task, lenet_training(epochs=2))
    assert done.before == done.after == 25.0
    assert (done.best, task.count) == (2, 20)


def test_another_training_set_has_another_identity() -> None:
    same, other = digits(20, wrong=0), digits(20, wrong=1)
    assert (
        classification_task(same, same, PLAIN).identity
        != classification_task(other, same, PLAIN).identity
    )


def test_new_weights_follow_from_the_seed_and_leave_the_network_unchanged() -> None:
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2))
    with torch.no_grad():
        for tensor in (*net.parameters(), *net.buffers()):
            tensor.fill_(7)
    one, same, other = (reinitialize(net, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(one["0.weight"], same["0.weight"])
    assert not torch.equal(one["0.weight"], other["0.weight"])
    assert one["1.running_mean"].abs().max() == 0
    assert all((tensor == 7).all() for tensor in net.state_dict().values())
