"""Mirror images: more images to refit the layers of a network that is invariant to mirroring."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

import torch
from torch import Tensor, nn

from entrim.calibration.collect import Pass
from entrim.graph.eager import (
    ExampleInputs,
    call,
    copy_without_hooks,
    isolate_random_state,
    leaves,
    samples,
)
from entrim.metrics import Comparison, Kind

MAX_ERROR = 0.2
"""A network is invariant if mirroring changes its outputs by at most this error, relative to their
variance. CIFAR-10 networks trained with mirrored images have 0.04 to 0.10; a LeNet for digits
has 1.06."""
MAX_IMAGES = 128
"""Number of images on which the invariance is measured."""


def is_image_batch(batch: ExampleInputs) -> bool:
    """Whether the only input is a batch of images, N x C x H x W."""
    return isinstance(batch, Tensor) and batch.dim() == 4 and batch.is_floating_point()


def mirror(batch: ExampleInputs) -> Tensor:
    """Return a batch of images with left and right exchanged."""
    assert isinstance(batch, Tensor)
    return batch.flip(-1)


def mirror_error(
    model: nn.Module, batches: Sequence[ExampleInputs], kinds: tuple[Kind, ...]
) -> float | None:
    """Return the squared difference between the outputs for images and for their mirror images.

    Relative to the variance of the outputs, on at most `MAX_IMAGES` images up to a whole batch;
    None if the outputs are constant. Cost: two passes of these images.
    """
    still = copy_without_hooks(model).eval()
    found = Comparison(kinds)
    with torch.no_grad(), isolate_random_state():
        for batch in batches:
            new, old = (leaves(call(still, images)) for images in (mirror(batch), batch))
            found.add(new, old, samples(batch))
            if found.images >= MAX_IMAGES:
                break
    error = found.error()
    return None if error is None else error.value


@dataclass(frozen=True, slots=True)
class MirroredBatches(Sequence[ExampleInputs]):
    """All batches, followed by the same batches mirrored; made on demand."""

    batches: Sequence[ExampleInputs]

    @overload
    def __getitem__(self, index: int) -> ExampleInputs: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ExampleInputs]: ...
    def __getitem__(self, index: int | slice) -> "ExampleInputs | Sequence[ExampleInputs]":
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        copy, number = divmod(index % len(self), len(self.batches))
        return mirror(self.batches[number]) if copy else self.batches[number]

    def __len__(self) -> int:
        return 2 * len(self.batches)


def add_mirrored(task: Pass) -> Pass:
    """Return a pass over the images of `task` and their mirror images."""
    return replace(
        task,
        programs=[*task.programs, *task.programs],
        batches=MirroredBatches(task.batches),
        views=2,
    )
