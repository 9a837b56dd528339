"""The LeNet of the paper, trained as published, and the rows of its layers."""

import torch
from torch import Tensor, nn

from experiments import models
from experiments.models import LeNet
from experiments.work import Work, work_folder


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the percentage of `images` that `model` classifies correctly."""
    hits = sum(
        int((model(x).argmax(1) == y).sum())
        for x, y in zip(images.split(1000), labels.split(1000), strict=True)
    )
    return 100 * hits / len(images)


def load_lenet(seed: int = 0) -> LeNet:
    """Return LeNet trained as in the paper, from the cache if it is there."""
    model = models.lenet(Work(work_folder()), seed).model
    assert isinstance(model, LeNet)
    return model


@torch.no_grad()
def layer_rows(model: nn.Module, name: str, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows (inputs, outputs) of the Linear layer `name` on `images`."""
    rows: list[tuple[Tensor, Tensor]] = []
    layer = model.get_submodule(name)
    hook = layer.register_forward_hook(lambda _, x, y: rows.append((x[0].detach(), y.detach())))
    try:
        model(images)
    finally:
        hook.remove()
    return rows[0]
