"""Small training tasks, and a network with everything that resuming can get wrong."""

from typing import Any

import torch
from torch import Tensor, nn

from entrim.distillation.trainer import TrainingConfig, TrainingResult, TrainingTask
from entrim.storage.checkpoint import fingerprint
from entrim.surgery.prune import values_of

CONFIG = TrainingConfig(epochs=4, batch=16, learning_rate=1e-2)


def network() -> nn.Module:
    """Return a network with everything that resuming can get wrong: dropout, BatchNorm."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 2)
        )


def regression(count: int = 90, noise: float = 0.1) -> TrainingTask:
    """Return the task of fitting a curve, on inputs with random noise."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(count + 40, 6, generator=g)
    y = torch.stack([x[:, 0].sin(), x[:, 1] * x[:, 2]], 1)

    def loss(model: nn.Module, index: Tensor, generator: torch.Generator) -> Tensor:
        moved = x[index] + noise * torch.randn(len(index), 6, generator=generator)
        return nn.functional.mse_loss(model(moved), y[index])

    return TrainingTask(
        count=count,
        loss=loss,
        holdout=lambda model: float(nn.functional.mse_loss(model(x[count:]), y[count:])),
        identity=fingerprint([x, y]),
    )


def scripted(losses: list[float]) -> TrainingTask:
    """Return a task with given losses on the hold-out images, the first one at the start."""
    values = iter(losses)
    return TrainingTask(
        count=4,
        loss=lambda model, index, _: model(torch.ones(len(index), 6)).square().mean(),
        holdout=lambda _: next(values),
        identity="scripted",
    )


def bits(trained: TrainingResult) -> tuple[str, Any, int, str]:
    """Return everything of a result except its seconds."""
    return (
        fingerprint(values_of(trained.model).values()),
        trained.history,
        trained.best,
        trained.ending,
    )
