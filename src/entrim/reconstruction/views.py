"""More views of the images to refit the layers on: mirror images, mixup and CutMix of few images.

The original network provides the targets of every view, so that no view needs a label. Mixtures are
no images of the distribution, but near it, and better than overfitting few images.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from entrim.calibration.collect import Pass
from entrim.config import Reconstruction
from entrim.errors import BadSettingError
from entrim.graph.eager import ExampleInputs
from entrim.metrics import is_image, mirror

INNER_SPLIT = 5
"""Every fifth image judges the ridge of a layer that is fitted on the others."""
ENOUGH_IMAGES = 500
"""Number of images, every view counted, up to which views are added for few images."""


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


@dataclass(frozen=True, slots=True)
class Views(Sequence[ExampleInputs]):
    """All batches, the same batches mirrored, and mixed several times; made on demand."""

    task: Pass
    is_mirrored: bool
    mixtures: int

    @property
    def per_image(self) -> int:
        """The number of views of each image."""
        return 1 + self.is_mirrored + self.mixtures

    @overload
    def __getitem__(self, index: int) -> ExampleInputs: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ExampleInputs]: ...
    def __getitem__(self, index: int | slice) -> "ExampleInputs | Sequence[ExampleInputs]":
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        view, number = divmod(index % len(self), len(self.task.batches))
        batch = self.task.batches[number]
        if self.is_mirrored and view % 2:
            batch = mirror(batch)
        if view < self.per_image - self.mixtures:
            return batch
        assert isinstance(batch, Tensor)
        generator = self.task.drawing(f"mixture {view} of batch {number}")
        mixture = Mixture.draw(len(batch), generator)
        return mixture.within(judging_images(self.task, number))(batch)

    def __len__(self) -> int:
        return self.per_image * len(self.task.batches)


def add_views(task: Pass, *, mirrored: bool = False, mixtures: int = 0) -> Pass:
    """Return a pass over the images of `task`, their mirror images and several mixtures each."""
    views = Views(task, mirrored, mixtures)
    if views.per_image == 1:
        return task
    programs = [*task.programs] * views.per_image
    return replace(task, programs=programs, batches=views, views=views.per_image)


def mixtures_for(config: Reconstruction, task: Pass, *, mirrored: bool) -> int:
    """Return the number of mixtures of each image; by default none if there are enough images.

    Raises a BadSettingError if mixtures of other inputs than images are requested.
    """
    if not is_image(task.batches[0]):
        if config.mixtures not in ("auto", 0):
            raise BadSettingError(
                f"mixtures={config.mixtures} needs a network whose only input is a batch of images "
                "(images, channels, height, width): leave mixtures out"
            )
        return 0
    if config.mixtures != "auto":
        return config.mixtures
    if config.batchnorm == "reestimate":  # mixtures have other statistics
        return 0
    return max(0, ENOUGH_IMAGES // task.images - 1 - mirrored)


def judging_images(task: Pass, batch: int) -> Bool[Tensor, " images"]:
    """Return which images of a batch judge the ridge; the others are fitted on.

    All views of an image are on the same side, and only images of one side are mixed.
    """
    numbers = torch.tensor(task.image_numbers(batch))
    period = min(INNER_SPLIT, task.images // task.views)
    return (numbers % period == period - 1) & (period > 1)
