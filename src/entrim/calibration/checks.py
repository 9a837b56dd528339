"""Compare the calibration images with the running statistics of BatchNorm layers."""

import math
from dataclasses import dataclass

import torch

from entrim.calibration.collect import ChannelStats, Pass, batchnorm_of, in_double
from entrim.calibration.executor import Execution, advance
from entrim.errors import BadImagesError

MAX_SHIFT, MAX_RATIO = 1.0, 3.0
"""Limits for the shift of the mean in a BatchNorm, in its standard deviations, and for the ratio of
variances in the first one. With ResNet-20 and VGG-16, CIFAR-10 images in a wrong scale (0 to 1,
0 to 255, half the contrast) exceed them; eight correct images or a single class do not."""


@dataclass(frozen=True, slots=True)
class BatchNormShift:
    """The deviation of the images from the running statistics of one BatchNorm."""

    layer: str
    shift: float
    """Root mean square over channels of (mean - running mean) / sqrt(running variance)."""
    variance: float
    """Median over channels of variance / running variance."""


def check_images(task: Pass) -> str | None:
    """Return a warning if the images differ from those of the training; raise an error for NaN."""
    norms = batchnorm_shifts(task)
    if any(math.isnan(norm.shift) for norm in norms):
        raise BadImagesError(
            "the network computes NaN on these images: normalize them as in training"
        )
    shifted = [norm for norm in norms if norm.shift > MAX_SHIFT]
    scaled = [norm for norm in norms[:1] if not 1 / MAX_RATIO <= norm.variance <= MAX_RATIO]
    if not shifted and not scaled:
        return None
    worst = scaled[0] if scaled else max(shifted, key=lambda norm: norm.shift)
    return (
        f"the images differ from those of the training: at {worst.layer} means are shifted by "
        f"{worst.shift:.1f} standard deviations, and variances are {worst.variance:.2g} times the "
        "running variance: normalize the images as in the training of the network"
    )


def batchnorm_shifts(task: Pass) -> list[BatchNormShift]:
    """Return the deviation of the first batch from the statistics of every BatchNorm."""
    found = []
    program = task.programs[0]
    with torch.no_grad(), task.new_store() as shelf:
        stream = Execution([program], [task.batches[0]], dict(task.tensors), shelf)
        for place, node in enumerate(program.nodes):
            norm = batchnorm_of(program, node)
            if norm is not None:
                tally = ChannelStats()
                tally.add(stream.value(norm.input, 0))
                mean, variance = (in_double(task.tensors[name]) for name in (norm.mean, norm.var))
                shift = (tally.mean - mean) / variance.clamp_min(1e-12).sqrt()
                ratio = tally.variance / variance.clamp_min(1e-12)
                found.append(
                    BatchNormShift(
                        norm.name, float(shift.square().mean().sqrt()), float(ratio.median())
                    )
                )
            advance([stream], place, place + 1)
    return found
