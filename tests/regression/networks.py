"""Small float64 networks and images whose values are the same bits on every CPU.

All values are drawn as integers from a raw bit stream and scaled by powers of two, so that no
rounding, and no vectorized random generator, can make them differ between machines.
"""

import math
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 6
SIZE = 12
RATIO = 0.75
"""The scale of one channel relative to the next larger one: importances differ clearly."""
GRID = 2.0**-10
"""BatchNorm statistics are rounded to multiples of this: rounding errors vanish in it."""


class Draw:
    """A source of values that depend on its seed only."""

    def __init__(self, seed: int) -> None:
        self.bits = np.random.PCG64(seed)

    def integers(self, *shape: int) -> np.ndarray:
        """Return bell-shaped integers of at most 17 bits, with mean 0."""
        raw = self.bits.random_raw(shape)
        fields = [(raw >> np.uint64(shift)) & np.uint64(0xFFFF) for shift in (0, 16, 32, 48)]
        total = sum(part.astype(np.int64) for part in fields)
        return np.asarray(total) - 2 * 0xFFFF

    def normal(self, *shape: int) -> Tensor:
        """Return approximately normal values with a standard deviation of 0.58."""
        return torch.from_numpy(self.integers(*shape) / 2.0**16)

    def permutation(self, count: int) -> np.ndarray:
        """Return the numbers below `count` in random order."""
        return np.argsort(self.bits.random_raw(count), kind="stable")

    def scales(self, count: int, ratio: float = RATIO) -> Tensor:
        """Return a geometric sequence from 1 down, in random order."""
        falling = np.cumprod(np.full(count, ratio)) / ratio
        return torch.from_numpy(falling[self.permutation(count)])


def images(count: int = 192, channels: int = 3, seed: int = 0) -> Tensor:
    """Return mixtures of a few smooth patterns plus noise, (count, channels, 12, 12)."""
    draw, rank = Draw(1_000 + seed), 10
    coarse = draw.integers(rank, channels, SIZE // 3, SIZE // 3) >> 6
    patterns = coarse.repeat(3, axis=2).repeat(3, axis=3).reshape(rank, -1)
    codes = draw.integers(count, rank) >> 6
    noise = draw.integers(count, patterns.shape[1]) << 2
    values = codes @ patterns + noise
    return torch.from_numpy(values / 2.0**20).view(count, channels, SIZE, SIZE)


class LeNet(nn.Module):
    """Two convolutions with pooling and three linear layers, without BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 5, padding=2)
        self.conv2 = nn.Conv2d(8, 12, 3)
        self.fc1 = nn.Linear(12 * 4, 20)
        self.fc2 = nn.Linear(20, 12)
        self.fc3 = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(self.conv1(x).relu(), 2)
        x = functional.max_pool2d(self.conv2(x).relu(), 2).flatten(1)
        return self.fc3(self.fc2(self.fc1(x).relu()).relu())


class Block(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut: padded with zeros, or a 1 x 1 convolution."""

    def __init__(self, before: int, width: int, stride: int = 1, projected: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.stride, self.extra = stride, width - before
        self.projection = nn.Conv2d(before, width, 1, stride) if projected else None

    def forward(self, x: Tensor) -> Tensor:
        return (self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())) + self.shortcut(x)).relu()

    def shortcut(self, x: Tensor) -> Tensor:
        if self.projection is not None:
            return self.projection(x)
        if self.extra == 0:
            return x
        half = self.extra // 2
        x = x[:, :, :: self.stride, :: self.stride]
        return functional.pad(x, (0, 0, 0, 0, half, self.extra - half))


class ResNet(nn.Module):
    """Three stages as in ResNet-20, with one shortcut of either kind between them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(Block(8, 8), Block(8, 8))
        self.layer2 = nn.Sequential(Block(8, 12, stride=2))
        self.layer3 = nn.Sequential(Block(12, 16, stride=2, projected=True))
        self.linear = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv1(x)).relu()
        return self.linear(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


def vgg() -> nn.Sequential:
    """Return four convolutions with BatchNorm in two stages, and two linear layers."""
    layers: list[nn.Module] = []
    before = 3
    for width in (8, 8, 12, 12):
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        if len(layers) in (6, 13):
            layers.append(nn.MaxPool2d(2))
        before = width
    layers += [nn.Flatten(), nn.Linear(before * 9, 16), nn.ReLU(), nn.Linear(16, CLASSES)]
    return nn.Sequential(*layers)


class Branches(nn.Module):
    """Depthwise and grouped convolutions, then two branches that are concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 10, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(10, 10, 3, padding=1, groups=10, bias=False)
        self.bn1 = nn.BatchNorm2d(10)
        self.pointwise = nn.Conv2d(10, 12, 1)
        self.grouped = nn.Conv2d(12, 12, 3, padding=1, groups=3, bias=False)
        self.bn2 = nn.BatchNorm2d(12)
        self.left = nn.Conv2d(12, 8, 1)
        self.right = nn.Conv2d(12, 8, 3, padding=1)
        self.merge = nn.Conv2d(16, 12, 3)
        self.linear = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(self.depthwise(self.stem(x).relu())).relu()
        x = self.bn2(self.grouped(self.pointwise(x).relu())).relu()
        x = torch.cat([self.left(x).relu(), self.right(x).relu()], 1)
        return self.linear(self.merge(x).relu().mean((2, 3)))


def lenet_network() -> nn.Module:
    return _fill(LeNet(), images(channels=1), seed=1)


def resnet_network() -> nn.Module:
    return _fill(ResNet(), images(), seed=2)


def vgg_network() -> nn.Module:
    return _fill(vgg(), images(), seed=3)


def branches_network() -> nn.Module:
    return _fill(Branches(), images(), seed=4)


@torch.no_grad()
def _fill(model: nn.Module, seen: Tensor, seed: int) -> nn.Module:
    """Return `model` in float64 and eval mode with drawn values, fit to the images `seen`.

    Channels get unequal scales: behind a BatchNorm by its weight, elsewhere by the layer's own.
    """
    draw = Draw(seed)
    model = model.double().eval()
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear | nn.BatchNorm2d)]
    for layer, following in pairwise([*layers, None]):
        if isinstance(layer, nn.BatchNorm2d):
            _fill_norm(layer, _inputs(model, layer, seen), draw)
        elif layer is not None:
            _fill_weights(layer, draw, equal=following is None or _is_norm(following))
            _rescale(layer, _inputs(model, layer, seen), centred=following is None)
    return model


def _is_norm(layer: nn.Module) -> bool:
    return isinstance(layer, nn.BatchNorm2d)


def _inputs(model: nn.Module, layer: nn.Module, seen: Tensor) -> Tensor:
    """Return what `layer` reads when `model` runs on the images `seen`."""
    caught: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
    model(seen)
    hook.remove()
    return caught[0]


def _fill_weights(layer: nn.Conv2d | nn.Linear, draw: Draw, *, equal: bool) -> None:
    """Give the layer drawn weights, its outputs geometric scales unless they shall be `equal`."""
    outputs = layer.weight.shape[0]
    ones = torch.ones(outputs, dtype=torch.float64)
    scales = ones if equal else draw.scales(outputs)
    weight = draw.normal(*layer.weight.shape)
    layer.weight.copy_(weight * scales.view(-1, *[1] * (weight.dim() - 1)))
    if layer.bias is not None:
        layer.bias.copy_(draw.normal(outputs) * scales / 4)


def _rescale(layer: nn.Conv2d | nn.Linear, inputs: Tensor, *, centred: bool) -> None:
    """Scale the weights by a power of two, so that the outputs have a deviation of about 1."""
    dims = (0, 2, 3) if isinstance(layer, nn.Conv2d) else (0,)
    spread = float(layer(inputs).var(dims).max().sqrt())
    layer.weight.mul_(2.0 ** -round(math.log2(spread)))
    if centred:
        assert layer.bias is not None
        layer.bias.sub_(_rounded(layer(inputs).mean(dims)))


def _fill_norm(norm: nn.BatchNorm2d, inputs: Tensor, draw: Draw) -> None:
    """Give the BatchNorm the rounded statistics of its inputs, a little disturbed."""
    count = norm.num_features
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.weight.copy_(2 * draw.scales(count))
    norm.bias.copy_(draw.normal(count) * norm.weight / 2)
    spread = inputs.std((0, 2, 3))
    mean = inputs.mean((0, 2, 3)) + spread * draw.normal(count) / 4
    variance = spread.square() * (1 + draw.normal(count) / 4)
    norm.running_mean.copy_(_rounded(mean))
    norm.running_var.copy_(_rounded(variance).clamp_min(GRID))


def _rounded(values: Tensor) -> Tensor:
    return (values / GRID).round() * GRID
