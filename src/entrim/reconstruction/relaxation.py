"""Refit layers in front of a ReLU, with targets that are relaxed where the ReLU is inactive.

Where the original input of a ReLU is negative, any negative input is as good. So the target of the
layer is its present output there if that is negative, too, and zero otherwise. The squared error
with this target is an upper bound of the squared error of the ReLU input, equal to it at the
present weights: refitting and setting the targets anew never increases the latter
(majorize-minimize). Steps are extended, which keeps this property up to a factor of two.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from entrim.calibration.consumers import BoundConsumer
from entrim.calibration.tensor_store import TensorStore
from entrim.distributed.world import World
from entrim.entropic.least_squares import NormalEquations, Refit
from entrim.entropic.moments import Moments
from entrim.reconstruction.layer import solve_layer
from entrim.reconstruction.output_path import is_safe

STEP = 1.7
"""Length of a step, relative to the minimum of the upper bound."""
_ROWS = "rows in front of a ReLU"
_PARTS = ("x", "start", "low", "high")


def target_interval(
    reference: Float[Tensor, "rows M"], limits: tuple[float, float]
) -> tuple[Float[Tensor, "rows M"], Float[Tensor, "rows M"]]:
    """Return the interval of inputs for which an activation has its output at `reference`.

    The activation clips its inputs outside of `limits`.
    """
    lowest, highest = limits
    low = reference.clamp(max=highest).masked_fill_(reference <= lowest, -torch.inf)
    high = reference.clamp(min=lowest).masked_fill_(reference >= highest, torch.inf)
    return low, high


@dataclass(slots=True)
class RelaxedRows:
    """The rows of a layer in front of an activation that clips its inputs, by batch.

    Outputs are those behind the BatchNorm, except where its scale is close to 0: these are not
    relaxed.
    """

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
        safe = is_safe(self.scale).to(residual.device)
        start = torch.where(safe, reference - self.scale.to(residual) * residual, 0)
        low, high = target_interval(reference, self.limits)
        values = (
            functional.pad(rows, (1, 0), value=1.0),
            start,
            torch.where(safe, low, residual),
            torch.where(safe, high, residual),
        )
        for name, value in zip(_PARTS, values, strict=True):
            stored = value if value.dtype == torch.float64 else value.float()
            self.store.put((_ROWS, name, self.batches), stored)
        self.batches += 1

    def close(self) -> None:
        """Remove all rows."""
        for batch in range(self.batches):
            for name in _PARTS:
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
        rounds. The error of a fit is the upper bound of the last round. Only the first rank has
        moments and returns fits; the others send it the residuals of their rows in every round.
        Cost of a round: 2 T n M multiplications.
        """
        if rounds == 0:
            return [solve_layer(reader, m, r) for m, r in zip(moments, ridges, strict=True)]
        has_intercept = reader.spec.intercept_target is not None
        if not has_intercept:
            moments = [one.through_origin() for one in moments]
        pairs = zip(moments, ridges if moments else (), strict=True)
        bounds = [_UpperBound.of(one, ridge) for one, ridge in pairs]
        errors = [0.0] * len(bounds)
        found = self.world.from_root(
            lambda: [bound.solve(bound.moments.cross_sum) for bound in bounds]
        )
        for _ in range(rounds):
            steps = self._residuals(found)
            for number, (bound, (change, power)) in enumerate(zip(bounds, steps, strict=True)):
                if not has_intercept:
                    change[0] = 0
                present = found[number]
                best = bound.solve(bound.moments.gram_sum @ present + change)
                found[number] = present + STEP * (best - present)
                errors[number] = bound.error(found[number] - present, change, power)
            found = self.world.from_root(partial(list, found))
        return [
            Refit(
                weight=solution[1:].T.contiguous(),
                bias=solution[0].clone(),
                mse=max(0.0, error) / one.count / one.outputs,
            )
            for solution, one, error in zip(found if moments else (), moments, errors, strict=True)
        ]

    def _residuals(
        self, solutions: Sequence[Float[Tensor, "n1 M"]]
    ) -> list[tuple[Float[Tensor, "n1 M"], float]]:
        """Return the cross moments and the squared sum of the relaxed residuals of `solutions`.

        Only the first rank obtains them.
        """
        scales = torch.where(is_safe(self.scale), self.scale, 1).double().cpu()
        scales = scales.unflatten(0, (len(solutions), -1))
        crosses = [torch.zeros_like(solution) for solution in solutions]
        powers = torch.zeros_like(scales)
        for batch in range(self.batches):
            x, *outputs = (self.store.get((_ROWS, name, batch)) for name in _PARTS)
            for number, solution in enumerate(solutions):
                width = solution.shape[1]
                own = slice(number * width, (number + 1) * width)
                start, low, high = (values[:, own] for values in outputs)
                present = torch.addmm(start, x[number], (solution * scales[number]).to(x))
                gap = present.clamp(low, high).sub_(present)
                crosses[number] += (x[number].T @ gap).to(solution)
                powers[number] += gap.norm(dim=0).double().square().cpu()
        found = self.world.sum_on_root(
            [cross / scale for cross, scale in zip(crosses, scales, strict=True)]
            + [(power / scale.square()).sum() for power, scale in zip(powers, scales, strict=True)]
        )
        return [
            (cross, float(power))
            for cross, power in zip(found[: len(solutions)], found[len(solutions) :], strict=True)
        ]


@dataclass(frozen=True, slots=True, eq=False)
class _UpperBound:
    """The quadratic upper bounds of the relaxed error, which have the same second moments."""

    moments: Moments
    equations: NormalEquations
    factor: Float[Tensor, "n1 n1"]

    @classmethod
    def of(cls, moments: Moments, ridge: float) -> "_UpperBound":
        """Return the bounds with this ridge. Cost: one Cholesky factorization."""
        known = moments.to("cpu")
        equations = NormalEquations.of(known, torch.arange(known.channels))
        return cls(known, equations, equations.factor(ridge))

    def solve(self, cross_sum: Float[Tensor, "n1 M"]) -> Float[Tensor, "n1 M"]:
        """Return the minimum of the bound with these cross moments."""
        scale = self.equations.scale[:, None]
        return torch.cholesky_solve(cross_sum / self.moments.count / scale, self.factor) / scale

    def error(
        self, step: Float[Tensor, "n1 M"], change: Float[Tensor, "n1 M"], power: float
    ) -> float:
        """Return the bound after a step from where the residuals have this `power`."""
        return power - float(((2 * change - self.moments.gram_sum @ step) * step).sum())
