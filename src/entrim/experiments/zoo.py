"""The networks of the experiments, exact to the tables of the papers that they come from."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_KERAS_EPS = 1e-3
_VGG_WIDTHS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
"""Of the convolutions; 0 is a max pooling."""


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
        """Return the logits of images 1 x 28 x 28."""
        x = F.avg_pool2d(F.relu(self.conv0(x)), 2)
        x = F.avg_pool2d(F.relu(self.conv1(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))


class VGG16(nn.Module):
    """14,728,266 parameters: thirteen convolutions with BatchNorm and one Linear, for 32 x 32."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for width in _VGG_WIDTHS:
            if width == 0:
                layers.append(nn.MaxPool2d(2))
                continue
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            before = width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images 3 x 32 x 32."""
        return self.classifier(self.features(x).flatten(1))


class PaddedShortcut(nn.Module):
    """Option A of He et al.: every second pixel, and zeros for the channels that are new."""

    def __init__(self, extra: int) -> None:
        super().__init__()
        self.extra = extra

    def forward(self, x: Tensor) -> Tensor:
        """Return a quarter of the size; the new channels stand half before and half after."""
        half = self.extra // 2
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, half, half))


def projected(before: int, width: int, stride: int, eps: float = 1e-5) -> nn.Module:
    """Return a shortcut by a 1 x 1 convolution where the shape changes."""
    if stride == 1 and before == width:
        return nn.Sequential()
    norm = nn.BatchNorm2d(width, eps)
    return nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), norm)


def padded(before: int, width: int, stride: int) -> nn.Module:
    """Return a shortcut without parameters."""
    return nn.Sequential() if stride == 1 else PaddedShortcut(width - before)


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut."""

    def __init__(self, before: int, width: int, stride: int, shortcut: nn.Module) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both ways, rectified."""
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


class CifarResNet(nn.Module):
    """A residual network for 32 x 32: a 3 x 3 stem, then stages that double the width."""

    def __init__(
        self,
        widths: tuple[int, ...],
        blocks: int,
        shortcut: Callable[[int, int, int], nn.Module],
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.stages = [f"layer{number}" for number in range(1, len(widths) + 1)]
        before = widths[0]
        for stage, width in zip(self.stages, widths, strict=True):
            layer = nn.Sequential()
            for block in range(blocks):
                stride = 2 if stage != "layer1" and block == 0 else 1
                layer.append(BasicBlock(before, width, stride, shortcut(before, width, stride)))
                before = width
            self.add_module(stage, layer)
        self.linear = nn.Linear(before, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images 3 x 32 x 32."""
        x = F.relu(self.bn1(self.conv1(x)))
        for stage in self.stages:
            x = self.get_submodule(stage)(x)
        return self.linear(F.adaptive_avg_pool2d(x, 1).flatten(1))


class ResNet18(CifarResNet):
    """11,173,962 parameters: two blocks a stage, shortcuts by 1 x 1 convolutions."""

    def __init__(self) -> None:
        super().__init__((64, 128, 256, 512), 2, projected)


class ResNet20(CifarResNet):
    """269,722 parameters: three blocks a stage, shortcuts padded with zeros."""

    def __init__(self) -> None:
        super().__init__((16, 32, 64), 3, padded)


class ResNet56(CifarResNet):
    """853,018 parameters: nine blocks a stage, shortcuts padded with zeros."""

    def __init__(self) -> None:
        super().__init__((16, 32, 64), 9, padded)


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions beside a shortcut; the first of them strides."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 1, stride, bias=False)
        self.bn1 = nn.BatchNorm2d(width, _KERAS_EPS)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width, _KERAS_EPS)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width, _KERAS_EPS)
        self.downsample = projected(before, 4 * width, stride, _KERAS_EPS)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both ways, rectified."""
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(out)))))
        return F.relu(out + self.downsample(x))


def bottlenecks(before: int, width: int, stride: int, blocks: int) -> nn.Sequential:
    """Return one stage: a bottleneck with `stride`, then more of the same width."""
    rest = (Bottleneck(4 * width, width, 1) for _ in range(blocks - 1))
    return nn.Sequential(Bottleneck(before, width, stride), *rest)


class ResNet50(nn.Module):
    """25,557,032 parameters: bottlenecks 3, 4, 6, 3 for 224 x 224 and 1000 classes.

    In the form of Keras: stride on the first 1 x 1 of a block, as He et al. have it, and an eps of
    1e-3 in every BatchNorm.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64, _KERAS_EPS)
        self.layer1 = bottlenecks(64, 64, 1, blocks=3)
        self.layer2 = bottlenecks(256, 128, 2, blocks=4)
        self.layer3 = bottlenecks(512, 256, 2, blocks=6)
        self.layer4 = bottlenecks(1024, 512, 2, blocks=3)
        self.fc = nn.Linear(2048, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images 3 x 224 x 224."""
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


@dataclass(frozen=True, slots=True)
class Entry:
    """A network of the zoo, and the shape of one image for it.

    >>> lenet = ZOO["LeNet"]
    >>> lenet.model()(lenet.images(2)).shape
    torch.Size([2, 10])
    """

    build: Callable[[], nn.Module]
    params: int
    image: tuple[int, int, int]

    def model(self) -> nn.Module:
        """Return the network in eval mode; random weights, statistics and biases from seed 0.

        BatchNorm is not left as new: its zeros and ones would hide a wrong cut.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            net = self.build().eval()
            for name, tensor in (*net.named_parameters(), *net.named_buffers()):
                if tensor.dim() == 1 and name.endswith(("weight", "running_var")):
                    nn.init.uniform_(tensor, 0.5, 1.5)
                elif tensor.dim() == 1:
                    nn.init.normal_(tensor, std=0.1)
        return net

    def images(self, batch: int) -> Tensor:
        """Return random images."""
        return torch.randn(batch, *self.image, generator=torch.Generator().manual_seed(1))


ZOO = {
    "LeNet": Entry(LeNet, 61_706, (1, 28, 28)),
    "VGG-16": Entry(VGG16, 14_728_266, (3, 32, 32)),
    "ResNet18": Entry(ResNet18, 11_173_962, (3, 32, 32)),
    "ResNet-20": Entry(ResNet20, 269_722, (3, 32, 32)),
    "ResNet-56": Entry(ResNet56, 853_018, (3, 32, 32)),
    "ResNet-50": Entry(ResNet50, 25_557_032, (3, 224, 224)),
}
