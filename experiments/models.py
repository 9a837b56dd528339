"""The networks of the experiments, with random, pre-trained and trained weights.

Architectures are those of the tables in their papers. Pre-trained weights are too large for the
repository: `weights/<name>.safetensors` in the folder that `ENTRIM_ASSETS` names.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from entrim import ProgressEvent
from entrim.distillation.augment import Augmentation
from entrim.distillation.trainer import TrainingConfig, TrainingTask
from entrim.errors import BadSettingError, DataError
from experiments import normalization, training
from experiments.datasets import Dataset, FetchEvent, load_cifar10, load_mnist
from experiments.normalization import Normalization
from experiments.storage import asset
from experiments.work import Work

_KERAS_EPS = 1e-3
_VGG_WIDTHS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
"""Of the convolutions; 0 is a max pooling."""
QUICK_TRAIN_IMAGES, QUICK_TEST_IMAGES = 2000, 1000
"""Images of a quick run."""
QUICK_TRAINING_EPOCHS = 6
"""Epochs of training the network itself in a quick run."""
_LENET_TRAIN_IMAGES, _VAL_IMAGES = 50_000, 1000


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


def projection_shortcut(before: int, width: int, stride: int, eps: float = 1e-5) -> nn.Module:
    """Return a shortcut by a 1 x 1 convolution where the shape changes."""
    if stride == 1 and before == width:
        return nn.Sequential()
    norm = nn.BatchNorm2d(width, eps)
    return nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), norm)


def padding_shortcut(before: int, width: int, stride: int) -> nn.Module:
    """Return a shortcut without parameters."""
    return nn.Sequential() if stride == 1 else PaddedShortcut(width - before)


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions with a shortcut."""

    def __init__(self, before: int, width: int, stride: int, shortcut: nn.Module) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Return the rectified sum of both paths."""
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
        super().__init__((64, 128, 256, 512), 2, projection_shortcut)


class ResNet20(CifarResNet):
    """269,722 parameters: three blocks a stage, shortcuts padded with zeros."""

    def __init__(self) -> None:
        super().__init__((16, 32, 64), 3, padding_shortcut)


class ResNet56(CifarResNet):
    """853,018 parameters: nine blocks a stage, shortcuts padded with zeros."""

    def __init__(self) -> None:
        super().__init__((16, 32, 64), 9, padding_shortcut)


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions with a shortcut; the first of them strides."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 1, stride, bias=False)
        self.bn1 = nn.BatchNorm2d(width, _KERAS_EPS)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width, _KERAS_EPS)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width, _KERAS_EPS)
        self.downsample = projection_shortcut(before, 4 * width, stride, _KERAS_EPS)

    def forward(self, x: Tensor) -> Tensor:
        """Return the rectified sum of both paths."""
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

        BatchNorm is not left as new: its zeros and ones would hide errors.
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


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A network with pre-trained weights: its normalization and its known accuracy."""

    build: Callable[[], nn.Module]
    file: str
    normalization: Normalization
    accuracy: float
    """In percent: on the 10,000 test images of CIFAR-10, or on 250 of the ImageNet samples."""


_LITE0 = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
"""Stages of EfficientNet-Lite0: blocks, kernel, stride of the first block, expansion, width."""


class SamePadConv(nn.Conv2d):
    """A convolution with the padding of TensorFlow: at stride 2, one more on the far sides."""

    def __init__(
        self, before: int, width: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__(before, width, kernel, stride, groups=groups, bias=False)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Return the outputs for images whose sides are multiples of the stride."""
        total = self.kernel_size[0] - self.stride[0]
        first, last = total // 2, total - total // 2
        return super().forward(F.pad(input, (first, last, first, last)))


class InvertedResidual(nn.Module):
    """Expansion by a 1 x 1 convolution, a depthwise convolution and a projection, with ReLU6."""

    def __init__(self, before: int, width: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = expansion * before
        self.expands, self.adds = expansion > 1, stride == 1 and before == width
        if self.expands:
            self._expand_conv = nn.Conv2d(before, inner, 1, bias=False)
            self._bn0 = nn.BatchNorm2d(inner, _KERAS_EPS)
        self._depthwise_conv = SamePadConv(inner, inner, kernel, stride, inner)
        self._bn1 = nn.BatchNorm2d(inner, _KERAS_EPS)
        self._project_conv = nn.Conv2d(inner, width, 1, bias=False)
        self._bn2 = nn.BatchNorm2d(width, _KERAS_EPS)

    def forward(self, x: Tensor) -> Tensor:
        """Return the projection, added to the input if the shape is the same."""
        out = F.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        out = self._bn2(self._project_conv(F.relu6(self._bn1(self._depthwise_conv(out)))))
        return out + x if self.adds else out


class EfficientNetLite0(nn.Module):
    """4,652,008 parameters: inverted residuals for 224 x 224 and 1000 classes."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem = SamePadConv(3, 32, 3, 2)
        self._bn0 = nn.BatchNorm2d(32, _KERAS_EPS)
        self._blocks = nn.Sequential()
        before = 32
        for blocks, kernel, stride, expansion, width in _LITE0:
            for number in range(blocks):
                step = stride if number == 0 else 1
                self._blocks.append(InvertedResidual(before, width, kernel, step, expansion))
                before = width
        self._conv_head = nn.Conv2d(before, 1280, 1, bias=False)
        self._bn1 = nn.BatchNorm2d(1280, _KERAS_EPS)
        self._fc = nn.Linear(1280, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images 3 x 224 x 224."""
        x = self._blocks(F.relu6(self._bn0(self._conv_stem(x))))
        x = F.relu6(self._bn1(self._conv_head(x)))
        return self._fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


PRETRAINED = {
    "cifar10_resnet20": Pretrained(
        ResNet20, "cifar10_resnet20.safetensors", normalization.IMAGENET, 91.73
    ),
    "cifar10_resnet56": Pretrained(
        ResNet56, "cifar10_resnet56.safetensors", normalization.IMAGENET, 93.39
    ),
    "cifar10_vgg16": Pretrained(
        VGG16, "cifar10_vgg16.fp16.safetensors", normalization.CIFAR10, 91.94
    ),
    "cifar10_resnet18": Pretrained(
        ResNet18, "cifar10_resnet18.fp16.safetensors", normalization.PIXELS, 94.23
    ),
    "imagenet_efficientnet_lite0": Pretrained(
        EfficientNetLite0,
        "imagenet_efficientnet_lite0.fp16.safetensors",
        normalization.LITE,
        86.7,
    ),
    "imagenet_resnet50": Pretrained(
        ResNet50, "imagenet_resnet50.fp16.safetensors", normalization.KERAS, 92.4
    ),
}


def load_pretrained(name: str) -> nn.Module:
    """Return the trained network called `name` in eval mode and float32.

    `PRETRAINED` lists the names, each with the normalization that its images need.

    >>> load_pretrained("cifar10_vgg19")
    Traceback (most recent call last):
    ...
    entrim.errors.BadSettingError: no pre-trained 'cifar10_vgg19': use one of cifar10_resnet20, \
cifar10_resnet56, cifar10_vgg16, cifar10_resnet18, imagenet_efficientnet_lite0, imagenet_resnet50
    """
    if name not in PRETRAINED:
        raise BadSettingError(f"no pre-trained {name!r}: use one of {', '.join(PRETRAINED)}")
    known = PRETRAINED[name]
    file = asset("weights", known.file)
    model = known.build()
    counters = {
        key: tensor for key, tensor in model.state_dict().items() if key.endswith("_tracked")
    }
    try:
        tensors = {key: tensor.float() for key, tensor in load_file(file).items()}
        model.load_state_dict(counters | tensors)
    except (SafetensorError, RuntimeError, OSError) as error:
        raise DataError(f"{file} is not the {name} known here ({error}): copy it again") from error
    return model.eval()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainedModel:
    """A trained network with its data: for pruning without labels, for training and testing."""

    network: str
    """Its name in the zoo and in the published tables."""
    seed: int
    model: nn.Module
    normalization: Normalization
    train_set: Dataset
    val_set: Dataset
    """Evaluated after every epoch; nothing is selected by it."""
    test_set: Dataset
    augment: Augmentation
    training: Callable[[int, int], TrainingConfig]
    """The configuration for these epochs and this seed."""
    fine_tuning: Callable[[int, int], TrainingConfig]
    origin: str
    """Where the weights come from, in words."""
    bfloat16: bool = False
    """Whether layers are trained in bfloat16, where the CPU has it; tests are in float32."""

    def images(self, count: int) -> Tensor:
        """Return unlabeled training images, normalized and drawn by the seed."""
        if not 1 <= count <= len(self.train_set):
            raise BadSettingError(
                f"count must be an integer from 1 to {len(self.train_set):,}, got {count}"
            )
        generator = torch.Generator().manual_seed(self.seed)
        drawn = torch.randperm(len(self.train_set), generator=generator)[:count]
        return self.normalization(self.train_set.images[drawn])

    def task(self) -> TrainingTask:
        """Return the training task of the network."""
        return training.classification_task(
            self.train_set,
            self.val_set,
            self.normalization,
            self.augment,
            bfloat16=self.bfloat16,
        )

    def accuracy(self, model: nn.Module) -> float:
        """Return the percentage of test images that `model` classifies correctly."""
        return training.accuracy(model.eval(), self.test_set, self.normalization)


def lenet(work: Work, seed: int = 0, *, quick: bool = False) -> TrainedModel:
    """Return LeNet on MNIST, trained as in the paper on 50,000 images."""
    data, test_set = (load_mnist(part, _fetch_reporter(work)) for part in ("train", "test"))
    train_set, val_set = data[:_LENET_TRAIN_IMAGES], data[_LENET_TRAIN_IMAGES:]
    if quick:
        train_set, val_set = train_set[:QUICK_TRAIN_IMAGES], val_set[:QUICK_TEST_IMAGES]
        test_set = test_set[:QUICK_TEST_IMAGES]
    config = training.lenet_training(QUICK_TRAINING_EPOCHS if quick else 20, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LeNet()
    task = training.classification_task(train_set, val_set, normalization.MNIST)
    model = work.train(f"LeNet seed {seed} training", model, task, config)
    return TrainedModel(
        network="LeNet",
        seed=seed,
        model=model.eval(),
        normalization=normalization.MNIST,
        train_set=train_set,
        val_set=val_set,
        test_set=test_set,
        augment=training.NO_AUGMENTATION,
        training=training.lenet_training,
        fine_tuning=training.lenet_fine_tuning,
        origin=f"trained for {config.epochs} epochs on {len(train_set):,} images",
    )


def vgg16(work: Work, seed: int = 0, *, quick: bool = False) -> TrainedModel:
    """Return VGG-16 on CIFAR-10 with the weights `cifar10_vgg16` of the assets."""
    return _pretrained_cifar(work, "VGG-16", "cifar10_vgg16", seed, quick)


def resnet20(work: Work, seed: int = 0, *, quick: bool = False) -> TrainedModel:
    """Return ResNet-20 on CIFAR-10 with the weights `cifar10_resnet20` of the assets."""
    return _pretrained_cifar(work, "ResNet-20", "cifar10_resnet20", seed, quick)


def resnet56(work: Work, seed: int = 0, *, quick: bool = False) -> TrainedModel:
    """Return ResNet-56 on CIFAR-10 with the weights `cifar10_resnet56` of the assets."""
    return _pretrained_cifar(work, "ResNet-56", "cifar10_resnet56", seed, quick)


def resnet18(work: Work, seed: int = 0, *, quick: bool = False) -> TrainedModel:
    """Return ResNet18 on CIFAR-10 with the weights `cifar10_resnet18` of the assets."""
    return _pretrained_cifar(work, "ResNet18", "cifar10_resnet18", seed, quick)


def _pretrained_cifar(work: Work, network: str, name: str, seed: int, quick: bool) -> TrainedModel:
    model = load_pretrained(name)  # first: it may be missing, and the images may be a download
    train_set, test_set = (load_cifar10(part, _fetch_reporter(work)) for part in ("train", "test"))
    if quick:
        train_set, test_set = train_set[:QUICK_TRAIN_IMAGES], test_set[:QUICK_TEST_IMAGES]
    return TrainedModel(
        network=network,
        seed=seed,
        model=model,
        normalization=PRETRAINED[name].normalization,
        train_set=train_set,
        val_set=test_set[:_VAL_IMAGES],
        test_set=test_set,
        augment=training.SHIFT_AND_FLIP,
        training=training.cifar_training,
        fine_tuning=training.cifar_fine_tuning,
        origin=f"the pre-trained {name}",
    )


def _fetch_reporter(work: Work) -> Callable[[FetchEvent], None]:
    """Return a function that reports how much of a dataset has arrived."""

    def show(event: FetchEvent) -> None:
        done, total = event.done or 0, event.total or event.done or 1
        detail = f"bytes of {event.source}" if event.done else f"{event.source}: {event.note}"
        work.report(
            ProgressEvent(
                stage=f"fetch {event.dataset}", name="", done=done, total=total, detail=detail
            )
        )

    return show
