"""The LeNet of the paper, trained by its recipe, and the moments of its prunable layers."""

from collections.abc import Callable

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.mnist import cache_folder, load_mnist


class LeNet(nn.Module):
    """61,706 parameters: two 5x5 convolutions with average pooling, then three Linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv0 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv1 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(400, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(F.relu(self.conv0(x)), 2)
        x = F.avg_pool2d(F.relu(self.conv1(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))


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
        images, labels = (part[:50_000] for part in load_mnist("train"))
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
