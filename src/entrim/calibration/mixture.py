"""Mixtures of two images: mixup and CutMix."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Mixture:
    """How each image of a batch is mixed with another image of it."""

    partners: Int[Tensor, " N"]
    shares: Float[Tensor, " N"]
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

    def within(self, chosen: Bool[Tensor, " N"]) -> "Mixture":
        """Return the same mixture with partners of an image's own kind, `chosen` or not."""
        partners = torch.empty_like(self.partners)
        for side in (chosen, ~chosen):
            partners[side] = self.partners[side[self.partners]]
        return Mixture(partners, self.shares, self.box)

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
