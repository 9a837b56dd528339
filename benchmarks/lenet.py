"""The LeNet of the paper, trained by its recipe, and the moments of its prunable layers."""

from collections.abc import Callable

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from entrim.experiments import LeNet, cache_folder, load_mnist, normalisation


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the percentage of `images` that `model` classifies right."""
    hits = sum(
        int((model(x).argmax(1) == y).sum())
        for x, y in zip(images.split(1000), labels.split(1000), strict=True)
    )
    return 100 * hits / len(images)


def trained_lenet(seed: int = 0, say: Callable[[str], None] = print) -> LeNet:
    """Return LeNet trained on 50,000 images by the paper's recipe, from the cache when it is there.

    Adam from 1e-3, halved every 7 of 20 epochs. The paper states no batch size; 128 here.
    """
    file = cache_folder() / f"lenet-mnist-seed{seed}.safetensors"
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LeNet()
        if file.exists():
            model.load_state_dict(load_file(file))
            return model.eval()
        mnist = load_mnist("train")[:50_000]
        images, labels = mnist.normalised(normalisation.MNIST), mnist.labels
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.StepLR(optimiser, step_size=7, gamma=0.5)
        for epoch in range(20):
            for rows in torch.randperm(len(images)).split(128):
                optimiser.zero_grad()
                F.cross_entropy(model(images[rows]), labels[rows]).backward()
                optimiser.step()
            schedule.step()
            say(f"LeNet, epoch {epoch + 1} of 20")
    save_file(model.state_dict(), file)
    return model.eval()


@torch.no_grad()
def layer_rows(model: nn.Module, name: str, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows (inputs, outputs) that the Linear layer `name` sees on `images`."""
    rows: list[tuple[Tensor, Tensor]] = []
    layer = model.get_submodule(name)
    hook = layer.register_forward_hook(lambda _, x, y: rows.append((x[0].detach(), y.detach())))
    try:
        model(images)
    finally:
        hook.remove()
    return rows[0]
