"""Random augmentation of images: shifts, flips and mixtures."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from entrim.errors import BadSettingError
from entrim.metrics import is_image

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


@dataclass(frozen=True, slots=True)
class Mixture:
    """How each image of a batch is mixed with another image of it."""

    partners: Tensor
    shares: Tensor
    """Mixup: the share of each image in its mixture."""
    box: tuple[float, float, float] | None
    """CutMix: center and relative side of the box that is taken from the partner; None for mixup.
    """

    @classmethod
    def draw(cls, count: int, generator: torch.Generator) -> "Mixture":
        """Return mixup with shares from Beta(1, 1), or CutMix with one box, with equal chances.

        The area of the box is uniform too, except for what is outside of the image.
        """
        partners = torch.randperm(count, generator=generator)
        shares = torch.rand(count, generator=generator)
        cut, area, top, left = torch.rand(4, generator=generator).tolist()
        return cls(partners, shares, (top, left, math.sqrt(area)) if cut < 0.5 else None)

    def __call__(self, images: Tensor) -> Tensor:
        """Return the mixed images."""
        others = images[self.partners]
        if self.box is None:
            shares = self.shares.to(images)[:, None, None, None]
            return shares * images + (1 - shares) * others
        *center, side = self.box
        rows, columns = (
            _inside(middle, side, size)
            for middle, size in zip(center, images.shape[2:], strict=True)
        )
        mixed = images.clone()
        mixed[:, :, rows, columns] = others[:, :, rows, columns]
        return mixed


def _inside(center: float, side: float, size: int) -> slice:
    """Return the pixels of a side of the box that are inside of the image."""
    low, high = (round(size * (center + sign * side / 2)) for sign in (-1, 1))
    return slice(max(low, 0), min(high, size))


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
