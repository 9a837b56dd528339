"""The distillation loss between the outputs of two networks, and the training task with it."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entrim.allocation.sensitivity import OutputGap
from entrim.calibration.data import CalibrationData
from entrim.distillation.augment import Augmentation, Batch
from entrim.distillation.trainer import TrainingTask
from entrim.errors import BadSettingError
from entrim.graph.eager import call, copy_without_hooks, leaves, samples
from entrim.metrics import output_kinds
from entrim.storage.checkpoint import fingerprint
from entrim.surgery.structure import values_of

VIEWS = 4
"""Number of augmented views of every hold-out image."""
_CHUNK = 250


def distillation_task(
    teacher: nn.Module,
    images: CalibrationData,
    held: int,
    augment: Augmentation,
    temperature: float,
    seed: int,
) -> TrainingTask:
    """Return the task of reproducing the outputs of `teacher`, with `held` hold-out images.

    Hold-out images are augmented once: the loss on images that were used for reconstruction is too
    optimistic, less so on shifted views of them. Without augmentation, the teacher runs only once
    on each image.
    """
    still = copy_without_hooks(teacher).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    out, rest = torch.randperm(images.count, generator=generator).tensor_split([held])
    moves = augment.changes(images.batch(slice(0, 1)))
    criterion = DistillationLoss.of(
        still,
        [
            augment(images.batch(index), generator)
            for _ in range(VIEWS if moves else 1)
            for index in out.split(_CHUNK)
        ],
        temperature,
    )
    known = (
        None
        if moves
        else _precompute_outputs(still, [images.batch(index) for index in rest.split(_CHUNK)])
    )

    def loss(model: nn.Module, index: Tensor, drawn: torch.Generator) -> Tensor:
        batch = augment(images.batch(rest[index]), drawn)
        wanted = [leaf[index] for leaf in known] if known else outputs(still, batch)
        return criterion.distance(outputs(model, batch), wanted)

    return TrainingTask(
        count=len(rest),
        loss=loss,
        holdout=criterion.loss,
        identity=fingerprint(values_of(still).values())
        + images.checksum()
        + f" {images.fixed} {held} {augment} {temperature}",
    )


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
    """The hold-out images, the outputs of the teacher on them, and the distance to its outputs."""

    batches: list[Batch]
    target: list[list[Tensor]]
    spreads: list[float]
    """The variance of every output over the images; 1 if it is constant."""
    temperature: float
    has_logits: bool
    """Whether the only output is logits."""

    @classmethod
    def of(cls, teacher: nn.Module, batches: list[Batch], temperature: float) -> "DistillationLoss":
        """Return the loss; the teacher runs once on each batch."""
        with torch.no_grad():
            wanted = [outputs(teacher, batch) for batch in batches]
        if not wanted[0]:
            raise BadSettingError(
                "the network has no floating-point output: return tensors, or lists, dicts or "
                "dataclasses of them"
            )
        gaps = [OutputGap() for _ in wanted[0]]
        for batch, outputs_of_batch in zip(batches, wanted, strict=True):
            for gap, output in zip(gaps, outputs_of_batch, strict=True):
                gap.add(output, output, samples(batch))
        spreads = [gap.variance or 1.0 for gap in gaps]
        has_logits = output_kinds(wanted[0], samples(batches[0])) == ("logits",)
        return cls(batches, wanted, spreads, temperature, has_logits)

    def distance(self, found: list[Tensor], target: list[Tensor]) -> Tensor:
        """Return T^2 KL(target || found) of the softmax at temperature T, or the relative error."""
        if self.has_logits:
            t = self.temperature
            own, aim = (F.log_softmax(x[0] / t, 1) for x in (found, target))
            return t**2 * F.kl_div(own, aim, reduction="batchmean", log_target=True)
        parts = [
            F.mse_loss(own, aim) / spread
            for own, aim, spread in zip(found, target, self.spreads, strict=True)
        ]
        return torch.stack(parts).mean()

    def loss(self, model: nn.Module) -> float:
        """Return the mean distance on the hold-out images."""
        found = [outputs(model, batch) for batch in self.batches]
        pairs = [
            (float(self.distance(own, aim)), samples(batch))
            for own, aim, batch in zip(found, self.target, self.batches, strict=True)
        ]
        return sum(value * count for value, count in pairs) / sum(count for _, count in pairs)
