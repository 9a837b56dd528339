"""The distillation loss between the outputs of two networks, and the training task with it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entrim.allocation.sensitivity import OutputGap
from entrim.calibration.data import CalibrationData
from entrim.distillation.augment import Augmentation, Batch
from entrim.distillation.trainer import TrainingTask
from entrim.errors import BadSettingError
from entrim.graph.eager import call, copy_without_hooks, leaves, samples
from entrim.metrics import (
    MIRROR_ERROR,
    MIRROR_IMAGES,
    Kind,
    log_probabilities,
    mirror_error,
    output_kinds,
)
from entrim.storage.checkpoint import fingerprint
from entrim.surgery.prune import values_of

VIEWS = 4
"""Number of augmented views of every validation image."""
_CHUNK = 250


def distillation_task(
    teacher: nn.Module,
    images: CalibrationData,
    held: int,
    augment: Augmentation,
    temperature: float,
    seed: int,
    kinds: str | Sequence[str] = "auto",
) -> TrainingTask:
    """Return the task of reproducing the outputs of `teacher`, with `held` validation images.

    Validation images are shifted and flipped once, but not mixed: the loss on images that were used
    for reconstruction is too optimistic, less so on shifted views of them. Without augmentation,
    the teacher runs only once on each image.
    """
    still = copy_without_hooks(teacher).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    out, rest = torch.randperm(images.count, generator=generator).tensor_split([held])
    first, view = images.batch(slice(0, 1)), replace(augment, mix=False)
    moves = augment.changes(first)
    criterion = DistillationLoss.of(
        still,
        [
            view(images.batch(index), generator)
            for _ in range(VIEWS if view.changes(first) else 1)
            for index in out.split(_CHUNK)
        ],
        temperature,
        kinds,
    )
    known = (
        None
        if moves
        else _precompute_outputs(still, [images.batch(index) for index in rest.split(_CHUNK)])
    )

    def loss(model: nn.Module, index: Tensor, drawn: torch.Generator) -> Tensor:
        batch = augment(images.batch(rest[index]), drawn)
        with torch.no_grad():
            wanted = [leaf[index] for leaf in known] if known else outputs(still, batch)
        return criterion.distance(outputs(model, batch), wanted)

    return TrainingTask(
        count=len(rest),
        loss=loss,
        holdout=criterion.loss,
        identity=fingerprint(values_of(still).values())
        + images.checksum()
        + fingerprint([] if images.rows is None else [images.rows])
        + f" {images.fixed} {held} {augment} {temperature} {criterion.kinds}",
    )


def teacher_ignores_mirroring(
    teacher: nn.Module, images: CalibrationData, kinds: str | Sequence[str]
) -> bool:
    """Return whether the outputs of `teacher` are nearly the same on mirrored images."""
    some = images.subset(torch.arange(min(images.count, MIRROR_IMAGES)))
    batches = some.batches(_CHUNK)
    with torch.no_grad():
        found = leaves(call(copy_without_hooks(teacher).eval(), batches[0]))
    recognized = output_kinds(found, samples(batches[0]), kinds)
    error = mirror_error(teacher, batches, recognized)
    return error is not None and error <= MIRROR_ERROR


@torch.no_grad()
def _precompute_outputs(teacher: nn.Module, batches: list[Batch]) -> list[Tensor] | None:
    """Return the outputs of the teacher on all batches; None if their first axis is not images."""
    found = [outputs(teacher, batch) for batch in batches]
    for batch, leaves_of_batch in zip(batches, found, strict=True):
        if any(leaf.shape[:1] != (samples(batch),) for leaf in leaves_of_batch):
            return None
    return [torch.cat(parts) for parts in zip(*found, strict=True)]


def outputs(model: nn.Module, batch: Batch) -> list[Tensor]:
    """Return the floating-point output tensors of `model`."""
    return [leaf for leaf in leaves(call(model, batch)) if leaf.is_floating_point()]


@dataclass(frozen=True, slots=True, eq=False)
class DistillationLoss:
    """The validation images, the outputs of the teacher, and the distance to its outputs."""

    batches: list[Batch]
    target: list[list[Tensor]]
    kinds: tuple[Kind, ...]
    scales: list[float]
    """Divisor of the distance of every output, so that several outputs have equal weight: for
    values the variance over the images, for classes the divergence of the mean prediction."""
    temperature: float

    @classmethod
    def of(
        cls,
        teacher: nn.Module,
        batches: list[Batch],
        temperature: float,
        kinds: str | Sequence[str] = "auto",
    ) -> "DistillationLoss":
        """Return the loss; the teacher runs once on each batch."""
        with torch.no_grad():
            every = [leaves(call(teacher, batch)) for batch in batches]
        recognized = output_kinds(every[0], samples(batches[0]), kinds)
        used = [k for k, leaf in enumerate(every[0]) if leaf.is_floating_point()]
        if not used:
            raise BadSettingError(
                "the network has no floating-point output: return tensors, or lists, dicts or "
                "dataclasses of them"
            )
        wanted = [[found[k] for k in used] for found in every]
        known: tuple[Kind, ...] = tuple(recognized[k] for k in used)
        counts = [samples(batch) for batch in batches]
        scales = [
            1.0
            if len(known) == 1 and kind != "values"
            else _scale([found[k] for found in wanted], counts, kind, temperature)
            for k, kind in enumerate(known)
        ]
        return cls(batches, wanted, known, scales, temperature)

    def distance(self, found: list[Tensor], target: list[Tensor]) -> Tensor:
        """Return the mean over the outputs of their distances.

        For classes it is T^2 KL(target || found) at temperature T, for values the squared error.
        """
        parts = [
            _distance(own, aim, kind, self.temperature) / scale
            for own, aim, kind, scale in zip(found, target, self.kinds, self.scales, strict=True)
        ]
        return torch.stack(parts).mean()

    def loss(self, model: nn.Module) -> float:
        """Return the mean distance on the validation images."""
        found = [outputs(model, batch) for batch in self.batches]
        pairs = [
            (float(self.distance(own, aim)), samples(batch))
            for own, aim, batch in zip(found, self.target, self.batches, strict=True)
        ]
        return sum(value * count for value, count in pairs) / sum(count for _, count in pairs)


def _distance(found: Tensor, target: Tensor, output_kind: Kind, temperature: float) -> Tensor:
    if output_kind == "values":
        return F.mse_loss(found, target)
    own, aim = (_log_softmax(output, output_kind, temperature) for output in (found, target))
    positions = own[0].numel() // own.shape[1]
    divergence = F.kl_div(own, aim, reduction="batchmean", log_target=True)
    return temperature**2 * divergence / positions


def _log_softmax(output: Tensor, output_kind: Kind, temperature: float) -> Tensor:
    """Return the logarithms of the class probabilities at a temperature, classes in axis 1."""
    if output_kind == "logits" and output.shape[1] > 1:
        return F.log_softmax(output / temperature, 1)
    return F.log_softmax(log_probabilities(output, output_kind).to(output) / temperature, 1)


def _scale(
    targets: list[Tensor], counts: list[int], output_kind: Kind, temperature: float
) -> float:
    """Return the variance of values, or the divergence of the mean prediction; 1 if it is zero."""
    if output_kind == "values":
        gap = OutputGap()
        for output, count in zip(targets, counts, strict=True):
            gap.add(output, output, count)
        return gap.variance or 1.0
    logs = torch.cat([_log_softmax(output, output_kind, temperature) for output in targets])
    mean = logs.exp().mean(0, keepdim=True).log().expand_as(logs)
    positions = logs[0].numel() // logs.shape[1]
    divergence = F.kl_div(mean, logs, reduction="batchmean", log_target=True) / positions
    return temperature**2 * float(divergence) or 1.0
