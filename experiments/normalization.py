"""How the images of a network are normalized."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Normalization:
    """(x / scale - mean) / std, channel by channel; x is 0 to 255 in the order red, green, blue.

    >>> import torch
    >>> Normalization((0.5,), (0.25,))(torch.full((1, 1, 1, 1), 255, dtype=torch.uint8)).item()
    2.0
    """

    mean: Sequence[float]
    std: Sequence[float]
    scale: float = 255.0
    bgr: bool = False
    """Blue first; mean and std are then in that order too."""

    def __call__(self, images: UInt8[Tensor, "N C H W"]) -> Float[Tensor, "N C H W"]:
        """Return normalized images in float32; the given ones are not modified."""
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        x = (images.flip(1) if self.bgr else images).float()
        return x.div_(self.scale).sub_(mean).div_(std)


PIXELS = Normalization((0.0,), (1.0,))
"""Values from 0 to 1, not normalized."""
MNIST = Normalization((0.1307,), (0.3081,))
FASHION_MNIST = Normalization((0.2860,), (0.3530,))
CIFAR10 = Normalization((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
IMAGENET = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
KERAS = Normalization((103.939, 116.779, 123.68), (1.0, 1.0, 1.0), scale=1.0, bgr=True)
LITE = Normalization((127.0,) * 3, (128.0,) * 3, scale=1.0)
