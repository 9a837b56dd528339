"""The images that a network is looked at with: read, checked, and laid in batches."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from entrim.errors import BadImagesError

Images = Tensor | Iterable[Any]
"""A tensor or array (images first), or batches: tensors, (images, labels) pairs, or dicts."""


@dataclass(frozen=True, slots=True)
class CalibrationData:
    """All images, one tensor for each argument of the network."""

    arguments: Mapping[str, Tensor]
    """By keyword; one unnamed tensor under ""."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Further keyword arguments, the same for every batch: numbers, flags, single values."""

    @property
    def count(self) -> int:
        """The number of images."""
        return len(next(iter(self.arguments.values())))

    def batch(self, index: slice | Tensor) -> Tensor | dict[str, Any]:
        """Return some of the images as the network is called with them."""
        if "" in self.arguments:
            return self.arguments[""][index]
        return {name: tensor[index] for name, tensor in self.arguments.items()} | dict(self.fixed)

    def batches(self, batch_size: int) -> list[Tensor | dict[str, Any]]:
        """Return all images in batches of at most `batch_size`, of equal size where possible."""
        least = math.ceil(self.count / batch_size)
        even = [k for k in range(least, 2 * least + 1) if self.count % k == 0]
        number = even[0] if even else least
        edges = [round(k * self.count / number) for k in range(number + 1)]
        return [self.batch(slice(a, b)) for a, b in pairwise(edges)]

    def resample(self, generator: torch.Generator | None) -> "CalibrationData":
        """Return as many images, drawn from these with replacement."""
        index = torch.randint(self.count, (self.count,), generator=generator)
        drawn = {name: tensor[index] for name, tensor in self.arguments.items()}
        return CalibrationData(drawn, self.fixed)


def read_images(
    images: Images,
    device: torch.device,
    dtype: torch.dtype,
    batch_to_inputs: Callable[[Any], Any] | None = None,
) -> CalibrationData:
    """Return the images on `device`, floating ones in `dtype`; bad ones are refused by name."""
    batches = _iterate_batches(images)
    if batch_to_inputs is not None:
        batches = map(batch_to_inputs, batches)
    parts = [_arguments(batch) for batch in batches]
    if not parts:
        raise BadImagesError("there are no images: hand over a few hundred")
    names = parts[0].keys()
    if any(part.keys() != names for part in parts):
        raise BadImagesError("the batches have different arguments: hand over batches of one kind")
    fixed = {name: value for name, value in parts[0].items() if not _holds_images(value)}
    joined = {
        name: _concatenate([part[name] for part in parts]) for name in names if name not in fixed
    }
    if not joined:
        raise BadImagesError("the batches hold no tensor of images: hand over tensors")
    lengths = {len(tensor) for tensor in joined.values()}
    if len(lengths) > 1 or 0 in lengths:
        raise BadImagesError(f"the arguments hold {sorted(lengths)} images: hand over as many each")
    for tensor in joined.values():
        _check(tensor)
    _check_variety([tensor for tensor in joined.values() if tensor.is_floating_point()])
    return CalibrationData(
        {
            name: _trainable(tensor).to(
                device, dtype if tensor.is_floating_point() else tensor.dtype
            )
            for name, tensor in joined.items()
        },
        fixed,
    )


def _trainable(tensor: Tensor) -> Tensor:
    """Return the tensor outside of inference mode, so that a network can learn from it."""
    return tensor.clone() if tensor.is_inference() else tensor


def _iterate_batches(images: Images) -> Iterable[Any]:
    if isinstance(images, Tensor | np.ndarray | Mapping):
        return [images]
    if isinstance(images, str | bytes) or not isinstance(images, Iterable):
        raise BadImagesError(
            f"the images are a {type(images).__name__}: hand over a tensor (images, channels, "
            "height, width) or an iterable of batches"
        )
    return images


def _holds_images(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


def _arguments(batch: Any) -> dict[str, Any]:
    """Return the network's arguments in `batch`; labels behind the images are left out."""
    if isinstance(batch, Mapping):
        return {str(name): value for name, value in batch.items()}
    if isinstance(batch, Sequence) and not isinstance(batch, str) and len(batch):
        batch = batch[0]
    return {"": _tensor(batch)}


def _tensor(value: Any) -> Tensor:
    try:
        tensor = torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadImagesError(
            f"a batch is a {type(value).__name__}: hand over tensors, or (images, labels) pairs"
        ) from error
    if tensor.dim() == 0:
        raise BadImagesError("a batch is a single number: hand over tensors with images first")
    return tensor


def _concatenate(tensors: Sequence[Tensor]) -> Tensor:
    if not all(_holds_images(tensor) for tensor in tensors):
        raise BadImagesError("a batch holds no images: hand over tensors with images first")
    shapes = {tuple(tensor.shape[1:]) for tensor in tensors}
    if len(shapes) > 1:
        raise BadImagesError(
            f"the images have shapes {sorted(shapes)}: resize or crop them to one shape (a pair "
            "of images and labels is one batch: hand over [(images, labels)])"
        )
    return torch.cat(list(tensors)) if len(tensors) > 1 else tensors[0]


def _check(tensor: Tensor) -> None:
    if not tensor.is_floating_point():
        if tensor.dtype in (torch.uint8, torch.int8) and tensor.dim() > 2:
            raise BadImagesError(
                f"the images are {tensor.dtype}: convert them to float and normalise them as in "
                "the network's training"
            )
        return
    flat = tensor.flatten(1) if tensor.dim() > 1 else tensor[:, None]
    bad = (~torch.isfinite(flat).all(1)).nonzero()[:, 0]
    if len(bad):
        raise BadImagesError(
            f"{len(bad)} of {len(tensor)} images hold NaN or infinity, the first is number "
            f"{int(bad[0])}: remove them"
        )


def _check_variety(tensors: Sequence[Tensor]) -> None:
    """Refuse images that are all the same; one input of several, a mask, may be constant."""
    if not tensors or len(tensors[0]) == 1:
        return
    if all(bool((tensor == tensor[:1]).all()) for tensor in tensors):
        raise BadImagesError(
            f"all {len(tensors[0])} images are the same: hand over different ones, as the network "
            "will see them in use"
        )
