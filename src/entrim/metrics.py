"""Compare the outputs of two networks image by image, with confidence intervals."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from entrim.config import OUTPUT_KINDS
from entrim.errors import BadSettingError
from entrim.graph.eager import (
    ExampleInputs,
    call,
    copy_without_hooks,
    isolate_random_state,
    leaves,
    samples,
)
from entrim.records import Estimate, Guarantee, Holdout

Kind = Literal["logits", "probabilities", "values"]
CONFIDENCE = 0.95
"""Confidence of the reported intervals."""
NEARLY_CONSTANT = 1e-6
"""Variance of outputs, relative to their mean square, below which errors are relative to the
latter: rounding errors would be large relative to the variance."""
_LEAST = 1e-12
"""Smallest probability of a class."""
MIRROR_ERROR = 0.2
"""A network is invariant to mirroring if it changes no output by more than this error, relative to
its variance. CIFAR-10 networks trained with mirrored images have 0.04 to 0.10; a LeNet for digits
has 1.06."""
MIRROR_IMAGES = 128
"""Number of images on which the invariance is measured."""
LARGE_GAP, SMALL_ERROR = 2.0, 0.01
"""A note explains an error on unseen images, above the second value, that is this many times the
error on fitting images."""
_MOST_IMAGES = 10**6
"""Largest number of images that is suggested."""


def output_kinds(
    outputs: Sequence[Tensor], images: int | None = None, requested: str | Sequence[str] = "auto"
) -> tuple[Kind, ...]:
    """Return what each output is: logits or probabilities with classes in axis 1, or values.

    Outputs whose first axis does not have one entry for each of `images` are values.
    """
    kinds = [requested] * len(outputs) if isinstance(requested, str) else list(requested)
    if len(kinds) != len(outputs):
        raise BadSettingError(
            f"outputs names {len(kinds)} kinds, but the network has {len(outputs)} outputs: pass "
            "one kind for each"
        )
    for number, (kind, output) in enumerate(zip(kinds, outputs, strict=True)):
        if kind in ("logits", "probabilities") and not _has_classes(output, images):
            raise BadSettingError(
                f"output {number} of the network cannot be {kind}: it has the type {output.dtype} "
                f"and the shape {tuple(output.shape)}, but images must be in axis 0 and classes in "
                f"axis 1; pass one of {', '.join(OUTPUT_KINDS)} for each output"
            )
    found = [
        _recognize(output, images) if kind == "auto" else kind
        for kind, output in zip(kinds, outputs, strict=True)
    ]
    return tuple(cast("Kind", kind) for kind in found)


def _has_classes(output: Tensor, images: int | None) -> bool:
    matrix = output.is_floating_point() and output.dim() > 1
    return matrix and images in (None, len(output))


def _recognize(output: Tensor, images: int | None) -> Kind:
    if not _has_classes(output, images) or output.shape[1] < 2:
        return "values"
    tolerance = max(1e-3, 4 * torch.finfo(output.dtype).eps)
    wide = output.double()
    if bool((wide >= 0).all()) and bool(((wide.sum(1) - 1).abs() <= tolerance).all()):
        return "probabilities"
    return "logits" if output.dim() == 2 else "values"


def log_probabilities(output: Tensor, output_kind: Kind) -> Tensor:
    """Return the logarithms of the class probabilities; a single column is a binary classifier."""
    wide = output.double()
    if output_kind == "logits":
        both = torch.cat([torch.zeros_like(wide), wide], 1) if wide.shape[1] == 1 else wide
        return functional.log_softmax(both, 1)
    both = torch.cat([1 - wide, wide], 1) if wide.shape[1] == 1 else wide
    return both.clamp_min(_LEAST).log()


def kl_divergence(found: Tensor, reference: Tensor, output_kind: Kind) -> Tensor:
    """Return KL(reference || found) of every image, averaged over positions."""
    new, old = (log_probabilities(output, output_kind) for output in (found, reference))
    return (old.exp() * (old - new)).sum(1).reshape(len(old), -1).mean(1)


def agreement(found: Tensor, reference: Tensor, output_kind: Kind) -> Tensor:
    """Return the share of positions of every image with the same predicted class."""
    new, old = (log_probabilities(output, output_kind).argmax(1) for output in (found, reference))
    return (new == old).double().reshape(len(old), -1).mean(1)


@dataclass(slots=True)
class Comparison:
    """The differences between two networks, one value per image."""

    kinds: tuple[Kind, ...]
    agreements: list[Tensor] = field(default_factory=list)
    divergences: list[Tensor] = field(default_factory=list)
    squared_errors: list[Tensor] = field(default_factory=list)
    squared_norms: list[Tensor] = field(default_factory=list)
    """Of the outputs of the original minus `origins`."""
    powers: list[Tensor] = field(default_factory=list)
    """Squared norms of the outputs of the original, without subtraction."""
    origins: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    """Mean of every output over the first batch; subtracting it avoids cancellation.

    Keys are the number of the output and its elements per image.
    """
    sums: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    """Sum of every output of the original minus its origin, over all images."""
    counts: dict[tuple[int, int], int] = field(default_factory=dict)
    """Number of images of every sum."""

    def add(self, found: Sequence[Tensor], reference: Sequence[Tensor], images: int) -> None:
        """Add the outputs of both networks for one batch."""
        pairs = list(zip(found, reference, self.kinds, strict=True))
        classes = [pair for pair in pairs if pair[2] != "values"]
        if classes:
            self.agreements.append(_sum([agreement(*pair) for pair in classes]) / len(classes))
            self.divergences.append(_sum([kl_divergence(*pair) for pair in classes]))
        rows = [(_rows(a, images), _rows(b, images)) for a, b, _ in pairs]
        self.squared_errors.append(_sum([(a - b).square().sum(1) for a, b in rows]))
        norms = []
        for number, (_, b) in enumerate(rows):
            key = (number, b.shape[1])
            shifted = b - self.origins.setdefault(key, b.mean(0))
            norms.append(shifted.square().sum(1))
            self.sums[key] = self.sums.get(key, 0.0) + shifted.sum(0)
            self.counts[key] = self.counts.get(key, 0) + images
        self.squared_norms.append(_sum(norms))
        self.powers.append(_sum([b.square().sum(1) for _, b in rows]))

    @property
    def images(self) -> int:
        """The number of images."""
        return sum(map(len, self.squared_errors))

    def agreement(self) -> Estimate | None:
        """Return the share of equal predicted classes, with an exact interval."""
        if not self.agreements:
            return None
        shares = torch.cat(self.agreements)
        tail = (1 - CONFIDENCE) / 2
        return Estimate(
            value=float(shares.mean()),
            low=lower_bound(shares, 1 - tail),
            high=1 - lower_bound(1 - shares, 1 - tail),
        )

    def divergence(self) -> Estimate | None:
        """Return the mean KL divergence of the class probabilities, summed over the outputs."""
        if not self.divergences:
            return None
        values = torch.cat(self.divergences).clamp_min(0)
        return _ratio(values, torch.ones_like(values))

    def error(self) -> Estimate | None:
        """Return the squared error relative to the variance; None if the outputs are constant.

        It is relative to a millionth of the mean square of outputs that vary less.
        """
        if not self.images:
            return None
        means = [
            float(total.square().sum()) / self.counts[key] / self.images
            for key, total in self.sums.items()
        ]
        norms = torch.cat(self.squared_norms)
        spread = norms - sum(means)
        if float(spread.sum()) <= 1e-12 * float(norms.sum()):
            return None
        least = NEARLY_CONSTANT * torch.cat(self.powers)
        if float(spread.sum()) < float(least.sum()):
            spread = least
        return _ratio(torch.cat(self.squared_errors), spread)

    def agreement_bound(self, confidence: float) -> "AgreementBound":
        """Return the agreement with its one-sided lower confidence bound."""
        shares = torch.cat(self.agreements)
        return AgreementBound(
            share=float(shares.mean()), images=len(shares), low=lower_bound(shares, confidence)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreementBound:
    """The measured agreement, and its lower confidence bound."""

    share: float
    images: int
    low: float


def compare(
    small: nn.Module,
    original: nn.Module,
    batches: Iterable[ExampleInputs],
    kinds: tuple[Kind, ...],
) -> Comparison:
    """Return the differences between two networks in eval mode. Cost: one pass of each."""
    still = [copy_without_hooks(model).eval() for model in (small, original)]
    found = Comparison(kinds)
    with torch.no_grad(), isolate_random_state():
        for batch in batches:
            new, old = (leaves(call(model, batch)) for model in still)
            found.add(new, old, samples(batch))
    return found


def holdout_record(
    found: Comparison,
    in_sample: float | None,
    *,
    recognized: bool,
    selection_images: int,
    guarantee: Guarantee | None,
) -> Holdout:
    """Return the record of a comparison on hold-out images.

    `in_sample` is the error on the images that the weights were fitted on; `recognized` is whether
    the kinds of the outputs were recognized.
    """
    return Holdout(
        images=found.images,
        outputs=found.kinds,
        recognized=recognized,
        agreement=found.agreement(),
        divergence=found.divergence(),
        error=found.error(),
        selection_images=selection_images,
        guarantee=guarantee,
        note=_overfitting_note(in_sample, found.error()),
    )


def _overfitting_note(in_sample: float | None, unseen: Estimate | None) -> str | None:
    """Return the explanation of a much larger error on unseen images."""
    if in_sample is None or unseen is None:
        return None
    if unseen.low < SMALL_ERROR or LARGE_GAP * in_sample >= unseen.low:
        return None
    return (
        f"the error is {in_sample:.1%} on the images that the weights were fitted on, but "
        f"{unseen.value:.1%} on unseen images, because the weights are fitted too closely: "
        "pass more images, a larger ridge, or a milder target"
    )


def is_image(value: object) -> bool:
    """Return whether an input is a batch of images: floating-point, with four dimensions."""
    return isinstance(value, Tensor) and value.dim() == 4 and value.is_floating_point()


def mirror(inputs: ExampleInputs) -> ExampleInputs:
    """Return the inputs with all images mirrored horizontally."""
    return pytree.tree_map(lambda leaf: leaf.flip(3) if is_image(leaf) else leaf, inputs)


def mirror_error(
    model: nn.Module, batches: Iterable[ExampleInputs], kinds: tuple[Kind, ...]
) -> float | None:
    """Return the squared difference between the outputs for images and for their mirror images.

    Relative to the variance, the largest of all outputs, on at most `MIRROR_IMAGES` images up to a
    whole batch; None if no input is an image or all outputs are constant. Cost: two passes of these
    images.
    """
    still = copy_without_hooks(model).eval()
    found = [Comparison((kind,)) for kind in kinds]
    with torch.no_grad(), isolate_random_state():
        for batch in batches:
            if not any(map(is_image, pytree.tree_leaves(batch))):
                return None
            pairs = (leaves(call(still, inputs)) for inputs in (mirror(batch), batch))
            for one, mirrored, plain in zip(found, *pairs, strict=True):
                one.add([mirrored], [plain], samples(batch))
            if found[0].images >= MIRROR_IMAGES:
                break
    errors = [error.value for one in found if (error := one.error()) is not None]
    return max(errors, default=None)


def mirroring_helps(
    model: nn.Module,
    batches: Sequence[ExampleInputs],
    kinds: tuple[Kind, ...],
    requested: bool | Literal["auto"],
) -> tuple[bool, str | None]:
    """Return whether a network is refitted on mirror images too, and a note if it was measured."""
    if requested is False or not is_image(batches[0]):
        if requested is True:
            raise BadSettingError(
                "mirror=True needs a network whose only input is a batch of images (images, "
                "channels, height, width): leave mirror out"
            )
        return False, None
    if requested is True:
        return True, None
    error = mirror_error(model, batches, kinds)
    if error is None or not error <= MIRROR_ERROR:
        return False, None
    return True, (
        "the layers are also refitted on mirror images, because mirroring changes the "
        f"outputs by only {error:.1%} (mirror=False disables this)"
    )


def lower_bound(shares: Tensor, confidence: float) -> float:
    """Return a lower confidence bound for the mean of shares of independent images.

    Exact (Clopper-Pearson) if every share is 0 or 1. Otherwise the Chernoff-Hoeffding bound
    exp(-n kl(mean, p)) replaces the binomial tail; it holds for any values between 0 and 1.
    """
    images, total = len(shares), float(shares.sum())
    binary = bool(((shares == 0) | (shares == 1)).all())
    low, high = 0.0, total / images
    for _ in range(60):
        middle = (low + high) / 2
        if _tail(total, images, middle, binary) <= 1 - confidence:
            low = middle
        else:
            high = middle
    return low


def _tail(total: float | int, images: int, p: float, binary: bool) -> float:
    """Return the probability of a sum of at least `total`, or a bound of it, if the mean is p."""
    if not binary:
        return math.exp(-images * _bernoulli_kl(total / images, p))
    if p >= 1:
        return 1.0
    k = torch.arange(round(total), images + 1, dtype=torch.float64)
    n = torch.tensor(float(images), dtype=torch.float64)
    ways = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    logs = ways + torch.xlogy(k, torch.tensor(p, dtype=torch.float64)) + (n - k) * math.log1p(-p)
    return math.exp(min(0.0, float(torch.logsumexp(logs, 0))))


def _bernoulli_kl(a: float, p: float) -> float:
    """Return the KL divergence of Bernoulli variables with the means a >= p."""
    if p <= 0 or p >= 1:
        return 0.0 if a == p else math.inf
    rest = 0.0 if a >= 1 else (1 - a) * math.log((1 - a) / (1 - p))
    return (0.0 if a <= 0 else a * math.log(a / p)) + rest


def min_images(target: float, confidence: float) -> int:
    """Return the number of images that show an agreement of `target` if all of them agree.

    >>> min_images(0.95, 0.95)
    59
    """
    return math.ceil(math.log(1 - confidence) / math.log(target))


def images_needed(share: float, target: float, confidence: float) -> int | None:
    """Return the number of images at which a measured agreement of `share` shows `target`.

    None if no reasonable number is enough.

    >>> images_needed(1.0, 0.95, 0.95), images_needed(0.9, 0.95, 0.95)
    (59, None)
    """

    def shows(images: int) -> bool:
        agreed = math.floor(share * images)
        return agreed > target * images and _tail(agreed, images, target, True) <= 1 - confidence

    low, high = 0, min_images(target, confidence)
    if share <= target:
        return None
    while not shows(high):
        low, high = high, 2 * high
        if high > _MOST_IMAGES:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if shows(middle) else (middle, high)
    return high


def _ratio(parts: Tensor, wholes: Tensor) -> Estimate | None:
    """Return sum(parts) / sum(wholes) over several images; None if it is not finite.

    The interval is a normal approximation of the logarithm, widened for few images.
    """
    images, whole = len(parts), float(wholes.sum())
    value = float(parts.sum()) / whole
    if not math.isfinite(value) or images < 2:
        return None
    if value == 0:
        return Estimate(value=0.0, low=0.0, high=0.0)
    residuals = parts - value * wholes
    deviation = math.sqrt(float(residuals.square().sum()) * images / (images - 1)) / whole
    z = float(torch.special.ndtri(torch.tensor((1 + CONFIDENCE) / 2, dtype=torch.float64)))
    factor = math.exp(min(50.0, (z + (z**3 + z) / (4 * (images - 1))) * deviation / value))
    return Estimate(value=value, low=value / factor, high=value * factor)


def _rows(output: Tensor, images: int) -> Tensor:
    """Return an output as real numbers in double precision, one row per image.

    If no axis has `images` entries, several rows of the first axis may belong to each image, as
    frames of a video do. Other outputs are divided among all images.
    """
    real = torch.view_as_real(output) if output.is_complex() else output
    wide = torch.atleast_1d(real).double()
    fitting = [axis for axis, size in enumerate(wide.shape) if size == images]
    if not fitting and len(wide) and len(wide) % images == 0:
        return wide.reshape(images, -1)
    if not fitting:
        return wide.reshape(1, -1).expand(images, -1) / math.sqrt(images)
    return wide.movedim(fitting[0], 0).reshape(images, -1)


def _sum(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack([part.cpu() for part in parts]).sum(0)
