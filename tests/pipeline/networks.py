"""Small networks and images for the tests of the pipeline."""

from typing import TypeVar

import torch
from torch import Tensor, nn

N = TypeVar("N", bound=nn.Module)


def images(count: int, *shape: int, seed: int = 0) -> Tensor:
    """Return smooth random images: neighbouring pixels are alike, as in photographs."""
    g = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, shape[0], *(max(1, s // 2) for s in shape[1:]), generator=g)
    fine = 0.3 * torch.randn(count, *shape, generator=g)
    return nn.functional.interpolate(coarse, shape[1:]) + fine if len(shape) == 3 else fine


def chain(seed: int = 0) -> nn.Sequential:
    """Return two convolutions with BatchNorm, a Flatten and two Linear layers."""
    torch.manual_seed(seed)
    return settled(
        nn.Sequential(
            nn.Conv2d(3, 12, 3, stride=2, padding=1),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.Conv2d(12, 16, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * 4, 20),
            nn.ReLU(),
            nn.Linear(20, 5),
        )
    )


class Residual(nn.Module):
    """A stem, one block with a skip path, and a head; the stream is the sum of both."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.stem = nn.Conv2d(3, 10, 3, padding=1)
        self.conv1 = nn.Conv2d(10, 14, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(14)
        self.conv2 = nn.Conv2d(14, 10, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(10)
        self.conv3 = nn.Conv2d(10, 14, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(14)
        self.conv4 = nn.Conv2d(14, 10, 3, padding=1, bias=False)
        self.bn4 = nn.BatchNorm2d(10)
        self.head = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stream(x).mean((2, 3)))

    def stream(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = (self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())) + x).relu()
        return self.bn4(self.conv4(self.bn3(self.conv3(x)).relu())) + x


def residual(seed: int = 0) -> Residual:
    """Return a residual network whose BatchNorms know the images."""
    return settled(Residual(seed))


def settled(model: N) -> N:
    """Return `model` in eval mode, its BatchNorms at the statistics of the images."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
    with torch.no_grad():
        model.train()(images(64, 3, 8, 8))
    return model.eval()
