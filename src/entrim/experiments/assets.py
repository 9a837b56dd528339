"""Pre-trained networks and sample images: files too large to come along, found by `ENTRIM_ASSETS`.

The folder holds `weights/<name>.safetensors` and `data/imagenet-samples/*.jpg`.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from entrim.errors import BadSettingError, DataError, MissingExtraError
from entrim.experiments import normalisation
from entrim.experiments.datasets import Dataset
from entrim.experiments.normalisation import Normalisation
from entrim.experiments.zoo import VGG16, ResNet20, ResNet50, ResNet56

_SAMPLES, _CROP = 1000, 224


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A trained network: what it is, how it wants its images, and what it is known to reach."""

    build: Callable[[], nn.Module]
    file: str
    normalisation: Normalisation
    accuracy: float
    """In percent: on the 10,000 test images of CIFAR-10, or on 250 of the ImageNet samples."""


PRETRAINED = {
    "cifar10_resnet20": Pretrained(
        ResNet20, "cifar10_resnet20.safetensors", normalisation.IMAGENET, 91.73
    ),
    "cifar10_resnet56": Pretrained(
        ResNet56, "cifar10_resnet56.safetensors", normalisation.IMAGENET, 93.39
    ),
    "cifar10_vgg16": Pretrained(
        VGG16, "cifar10_vgg16.fp16.safetensors", normalisation.CIFAR10, 90.51
    ),
    "imagenet_resnet50": Pretrained(
        ResNet50, "imagenet_resnet50.fp16.safetensors", normalisation.KERAS, 92.4
    ),
}


def pretrained(name: str) -> nn.Module:
    """Return the trained network called `name` in eval mode and float32.

    `PRETRAINED` lists the names, each with the normalisation that its images need.

    >>> pretrained("cifar10_resnet18")
    Traceback (most recent call last):
    ...
    entrim.errors.BadSettingError: no pre-trained 'cifar10_resnet18': use one of cifar10_resnet20, \
cifar10_resnet56, cifar10_vgg16, imagenet_resnet50
    """
    if name not in PRETRAINED:
        raise BadSettingError(f"no pre-trained {name!r}: use one of {', '.join(PRETRAINED)}")
    known = PRETRAINED[name]
    file = _asset("weights", known.file)
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


def imagenet_samples(classes: Sequence[int] | None = None) -> Dataset:
    """Return one image of every class 0 to 999, or of `classes` only: 224 x 224 out of the middle.

    The files are named `<wordnet id>_<name>.jpg`; in the order of their names they are the classes.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("reading JPEG files", "pillow", "experiments") from error

    folder = _asset("data", "imagenet-samples")
    files = sorted(folder.glob("*.jpg"))
    if len(files) != _SAMPLES:
        raise DataError(f"{folder} holds {len(files)} of {_SAMPLES} images: copy it again")
    chosen = list(range(_SAMPLES) if classes is None else classes)
    outside = [label for label in chosen if not 0 <= label < _SAMPLES]
    if outside or not chosen:
        raise BadSettingError(f"classes {outside} of ImageNet: hand over some of 0 to 999")
    images = []
    for label in chosen:
        with Image.open(files[label]) as picture:
            images.append(_middle(np.asarray(picture.convert("RGB"))))
    return Dataset(torch.from_numpy(np.stack(images)), torch.tensor(chosen))


def _middle(pixels: np.ndarray) -> np.ndarray:
    """Return the middle of an image (H, W, 3) as (3, 224, 224)."""
    top, left = ((size - _CROP) // 2 for size in pixels.shape[:2])
    return pixels[top : top + _CROP, left : left + _CROP].transpose(2, 0, 1)


def _asset(kind: str, name: str) -> Path:
    """Return the path of a file or folder that is there."""
    root = os.environ.get("ENTRIM_ASSETS")
    if not root:
        raise DataError(
            f"{name} is looked for in the folder that the environment variable ENTRIM_ASSETS "
            f"names, and it is unset: set it to a folder that holds {kind}/{name}"
        )
    path = Path(root, kind, name)
    if not path.exists():
        raise DataError(f"{path} is missing: put it there, or point ENTRIM_ASSETS elsewhere")
    return path
