"""Refit layers in front of a ReLU, with targets that are relaxed where the ReLU is inactive.

Where the original input of a ReLU is negative, any negative input is as good. So the target of the
layer is its present output there if that is negative, too, and zero otherwise. The squared error
with this target is an upper bound of the squared error of the ReLU input, equal to it at the
present weights: refitting and setting the targets anew never increases the latter
(majorize-minimize). Steps are extended, which keeps this property up to a factor of two.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from entrim.calibration.consumers import BoundConsumer
from entrim.calibration.tensor_store import TensorStore
from entrim.distributed.world import World
from entrim.entropic.least_squares import Refit
from entrim.entropic.moments import Moments
from entrim.reconstruction.layer import solve_layer
from entrim.reconstruction.output_path import is_safe

STEP = 1.7
"""Length of a step, relative to the minimum of the upper bound."""
_ROWS = "rows in front of a ReLU"


def relaxed_residual(
    residual: Float[Tensor, "rows M"],
    reference: Float[Tensor, "rows M"],
    scale: Float[Tensor, " M"],
    limits: tuple[float, float],
) -> Float[Tensor, "rows M"]:
    """Return what is missing at the outputs of a layer, 0 where the activation hides it.

    `reference` is the original input of the activation, which clips values outside of `limits`;
    it differs from the present one by `scale` times the `residual` of the layer. Outputs with a
    scale close to 0 are not relaxed.
    """
    low, high = limits
    present = reference - scale * residual
    wanted = torch.where(reference <= low, present.clamp(max=low), reference)
    wanted = torch.where(reference >= high, present.clamp(min=high), wanted)
    safe = is_safe(scale)
    return residual + (wanted - reference) * safe / torch.where(safe, scale, 1)


@dataclass(slots=True)
class RelaxedRows:
    """The rows of a layer in front of an activation that clips its inputs, by batch."""

    scale: Float[Tensor, " M"]
    """Scale of the BatchNorm behind the layer, for the kept outputs."""
    limits: tuple[float, float]
    store: TensorStore
    world: World = field(default_factory=World)
    batches: int = 0

    def add(
        self,
        rows: Float[Tensor, "groups rows n"],
        residual: Float[Tensor, "rows M"],
        reference: Float[Tensor, "rows M"],
    ) -> None:
        """Add one batch of inputs, residuals of the layer, and inputs of the activation."""
        for name, values in (("x", rows), ("residual", residual), ("reference", reference)):
            self.store.put((_ROWS, name, self.batches), values.float())
        self.batches += 1

    def close(self) -> None:
        """Remove all rows."""
        for batch in range(self.batches):
            for name in ("x", "residual", "reference"):
                self.store.drop((_ROWS, name, batch))

    def refit(
        self,
        reader: BoundConsumer,
        moments: Sequence[Moments],
        ridges: Sequence[float],
        rounds: int,
    ) -> list[Refit]:
        """Return the fit of each matrix of the layer after this number of rounds.

        `moments` are those of the residual, and the ridge is relative to the weights before all
        rounds. Cost of a round: 2 T n M multiplications.
        """
        parts = [solve_layer(reader, m, r) for m, r in zip(moments, ridges, strict=True)]
        for _ in range(rounds):
            steps = self._steps(parts)
            for number, (change, _) in enumerate(steps):
                parts[number] = _advance(
                    reader, moments[number], parts[number], change, ridges[number]
                )
        errors = [error for _, error in self._steps(parts)]
        return [
            replace(part, mse=error / one.count / one.outputs)
            for part, one, error in zip(parts, moments, errors, strict=True)
        ]

    def _steps(self, parts: Sequence[Refit]) -> list[tuple[Float[Tensor, "n1 M"], float]]:
        """Return the cross moments and the squared sum of the relaxed residuals of `parts`."""
        found = [(torch.zeros_like(_solution(part)), 0.0) for part in parts]
        for batch in range(self.batches):
            for number, (x, residual, reference, scale) in enumerate(self._matrices(batch)):
                part, (cross, power) = parts[number], found[number]
                fitted = x @ part.weight.T.to(x) + part.bias.to(x)
                gap = relaxed_residual(residual - fitted, reference, scale, self.limits)
                change = torch.cat([gap.sum(0)[None], x.T @ gap]).to(cross)
                found[number] = (cross + change, power + float(gap.double().square().sum()))
        total = self.world.sum([value for pair in found for value in pair])
        return list(zip(total[::2], total[1::2], strict=True))

    def _matrices(self, batch: int) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Yield inputs, residuals, references and scales of each matrix of the layer."""
        x, residual, reference = (
            self.store.get((_ROWS, name, batch)) for name in ("x", "residual", "reference")
        )
        outputs = len(self.scale) // len(x)
        scale = self.scale.to(residual)
        for number, rows in enumerate(x):
            own = slice(number * outputs, (number + 1) * outputs)
            yield rows, residual[:, own], reference[:, own], scale[own]


def _advance(
    reader: BoundConsumer,
    moments: Moments,
    part: Refit,
    change: Float[Tensor, "n1 M"],
    ridge: float,
) -> Refit:
    """Return the fit after one step toward the minimum of the upper bound."""
    present = _solution(part)
    cross = moments.gram_sum.to(present) @ present + change
    target = replace(moments, gram_sum=moments.gram_sum.to(present), cross_sum=cross)
    best = solve_layer(reader, target, ridge)
    weight = part.weight + STEP * (best.weight - part.weight)
    return replace(best, weight=weight, bias=part.bias + STEP * (best.bias - part.bias))


def _solution(part: Refit) -> Float[Tensor, "n1 M"]:
    return torch.cat([part.bias[None], part.weight.T])
