"""The training configurations of the paper, field by field."""

import pytest

from entrim.distillation.trainer import TrainingConfig
from experiments.training import (
    cifar_fine_tuning,
    cifar_training,
    lenet_fine_tuning,
    lenet_training,
)


def adam(epochs: int, learning_rate: float, step_size: int, seed: int) -> TrainingConfig:
    return TrainingConfig(
        epochs=epochs,
        batch=128,
        learning_rate=learning_rate,
        optimizer="adam",
        weight_decay=0.0,
        schedule="constant",
        step_size=step_size,
        mode="train",
        patience=None,
        return_state="last",
        seed=seed,
    )


def momentum(epochs: int, learning_rate: float, schedule: str, seed: int) -> TrainingConfig:
    return TrainingConfig(
        epochs=epochs,
        batch=128,
        learning_rate=learning_rate,
        optimizer="momentum",
        weight_decay=5e-4,
        schedule=schedule,
        step_size=None,
        mode="train",
        patience=None,
        return_state="last",
        seed=seed,
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (lenet_training(), adam(20, 1e-3, 7, 0)),
        (lenet_training(3, 4), adam(3, 1e-3, 7, 4)),
        (lenet_fine_tuning(), adam(10, 1e-4, 4, 0)),
        (lenet_fine_tuning(3, 4), adam(3, 1e-4, 4, 4)),
        (cifar_training(), momentum(200, 0.1, "cosine", 0)),
        (cifar_training(3, 4), momentum(3, 0.1, "cosine", 4)),
        (cifar_fine_tuning(), momentum(50, 1e-3, "constant", 0)),
        (cifar_fine_tuning(3, 4), momentum(3, 1e-3, "constant", 4)),
    ],
)
def test_a_recipe_is_the_one_of_the_paper(found: TrainingConfig, expected: TrainingConfig) -> None:
    assert found == expected
