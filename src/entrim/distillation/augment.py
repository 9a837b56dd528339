"""Random augmentation of images: shifts, flips and mixtures."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from entrim.errors import BadSettingError
from entrim.metrics import is_image
from entrim.reconstruction.views import Mixture

Batch = Tensor | tuple[Any, ...] | Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Augmentation:
    """Random shifts with reflection padding, horizontal flips, and mixtures of two images.

    Shifts preserve the class of nearly every image. Flips may not: a mirrored digit is not a digit.
    Mixtures have no class: their target must be computed.
    """

    shift: float = 0.0
    """The largest shift, as a fraction of height and width."""
    flip: bool = False
    mix: bool = False
    """Mix by mixup or CutMix, one or the other for a whole batch."""

    def __post_init__(self) -> None:
        if not 0 <= self.shift <= 0.5:
            raise BadSettingError(
                f"shift must be a fraction of the image from 0 to 0.5, got {self.shift}"
            )

    def changes(self, batch: Batch) -> bool:
        """Return whether the augmentation can change anything in `batch`."""
        return any(
            self.flip or self.mix or any(self._most(tensor))
            for tensor in _values(batch)
            if is_image(tensor)
        )

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Return `batch` with every image augmented, in the same way in all arguments."""
        if not self.changes(batch):
            return batch
        count = next(len(tensor) for tensor in _values(batch) if is_image(tensor))
        share = torch.rand(2, count, generator=generator)
        flipped = torch.rand(count, generator=generator) < 0.5
        moved = _map_images(lambda images: self._shift(images, share, flipped), batch)
        if not self.mix or count < 2:
            return moved
        mixture = Mixture.draw(count, generator)
        return _map_images(mixture, moved)

    def _most(self, images: Tensor) -> list[int]:
        """Return the largest vertical and horizontal shift, in pixels."""
        return [round(self.shift * side) for side in images.shape[2:]]

    def _shift(self, images: Tensor, share: Tensor, flipped: Tensor) -> Tensor:
        (high, wide), (height, width) = self._most(images), images.shape[2:]
        padded = F.pad(images, (wide, wide, high, high), mode="reflect")
        top = (share[0] * (2 * high + 1)).long()[:, None] + torch.arange(height)
        left = (share[1] * (2 * wide + 1)).long()[:, None] + torch.arange(width)
        if self.flip:
            left = torch.where(flipped[:, None], left.flip(1), left)
        every, planes = torch.arange(len(images)), torch.arange(images.shape[1])
        place = (every[:, None, None, None], planes[:, None, None], top[:, None, :, None])
        return padded[(*place, left[:, None, None, :])]


def _map_images(change: Callable[[Tensor], Tensor], batch: Batch) -> Batch:
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, tuple):
        return tuple(change(value) if is_image(value) else value for value in batch)
    return {name: change(value) if is_image(value) else value for name, value in batch.items()}


def _values(batch: Batch) -> list[Any]:
    if isinstance(batch, Tensor):
        return [batch]
    return list(batch.values() if isinstance(batch, Mapping) else batch)
