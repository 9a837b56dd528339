"""More views of the images to refit the layers on: mirror images, and mixtures of few images.

The original network provides the targets of every view, so that no view needs a label. Mixtures are
no images of the distribution, but near it, and better than overfitting few images.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

import torch
from jaxtyping import Bool
from torch import Tensor

from entrim.calibration.collect import Pass
from entrim.calibration.mixture import Mixture
from entrim.config import Reconstruction
from entrim.errors import BadSettingError
from entrim.graph.eager import ExampleInputs
from entrim.metrics import is_image, mirror

INNER_SPLIT = 5
"""Every fifth image judges the ridge of a layer that is fitted on the others."""
ENOUGH_IMAGES = 500
"""Number of images, every view counted, up to which views are added for few images."""


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
