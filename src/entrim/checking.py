"""Whether the images are like those of the training."""

import math

from entrim.calibration.collect import familiarity
from entrim.deciding import Scene
from entrim.errors import BadImagesError, CalibrationWarning
from entrim.run import Run

SHIFT, SPREAD = 1.0, 3.0
"""Images are strange if a BatchNorm sees means so many of its own deviations off, or the first one
variances so many times larger or smaller. CIFAR-10 in the wrong scale (0 to 1, 0 to 255, half the
contrast) lies outside for ResNet-20 and VGG-16, eight right images or a single class inside."""


def check_images(run: Run, scene: Scene) -> None:
    """Warn where the images cannot be like those of the training."""
    norms = familiarity(scene.task)
    if any(math.isnan(norm.shift) for norm in norms):
        raise BadImagesError("the network computes NaN on these images: scale them as in training")
    shifted = [norm for norm in norms if norm.shift > SHIFT]
    scaled = [norm for norm in norms[:1] if not 1 / SPREAD <= norm.spread <= SPREAD]
    if not shifted and not scaled:
        return
    worst = scaled[0] if scaled else max(shifted, key=lambda norm: norm.shift)
    run.warn(
        f"the images are not like those of the training: {worst.layer} sees means "
        f"{worst.shift:.1f} standard deviations off and variances {worst.spread:.2g} times the "
        "usual: normalise the images as in the network's training",
        CalibrationWarning,
    )
