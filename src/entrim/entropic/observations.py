"""Ridge regression in the space of the rows, for layers with more columns than rows.

The ridge solution U = (Z'Z + ridge I)^-1 Z'Y equals Z' (Z Z' + ridge I)^-1 Y, where Z Z' has the
size of the rows instead of the columns.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from entrim.entropic.least_squares import RIDGE, Refit, column_scales, factor_ridged
from entrim.entropic.moments import Moments


@dataclass(frozen=True, kw_only=True, eq=False)
class Observations:
    """The inputs and targets of a layer, row by row; memory grows with the number of rows.

    Attributes
    ----------
    inputs : Tensor of shape (T, n)
        Rows of inputs, in float32 or float64.
    targets : Tensor of shape (T, M)
        Rows of outputs to reproduce.
    has_intercept : bool, default True
        Whether the fit has an intercept.
    """

    inputs: Float[Tensor, "T n"]
    targets: Float[Tensor, "T M"]
    has_intercept: bool = True

    @property
    def count(self) -> int:
        """The number T of rows."""
        return len(self.inputs)

    @property
    def columns(self) -> int:
        """The number n of input columns."""
        return self.inputs.shape[1]

    @property
    def outputs(self) -> int:
        """The number M of outputs."""
        return self.targets.shape[1]

    @cached_property
    def target_sum_sq(self) -> float:
        """The sum of the squared targets."""
        return float(self.targets.double().square().sum())

    @cached_property
    def scales(self) -> Float[Tensor, " n"]:
        """The scale of each column in the ridge, the same as for second moments."""
        return column_scales(self.inputs.double().square().mean(0))

    @cached_property
    def kernel(self) -> Float[Tensor, "T T"]:
        """The mean inner products Z Z' / T of the scaled rows. Cost: T^2 n."""
        z = self.inputs / self.scales
        kernel = z @ z.T
        return (kernel + 1 if self.has_intercept else kernel) / self.count

    def through_origin(self) -> "Observations":
        """Return the observations for a fit without intercept."""
        return replace(self, has_intercept=False)

    def __add__(self, other: "Observations") -> "Observations":
        """Return the rows of both operands."""
        inputs = torch.cat([self.inputs, other.inputs])
        return replace(self, inputs=inputs, targets=torch.cat([self.targets, other.targets]))

    def moments(self) -> Moments:
        """Return the second moments of the rows. Cost: 2 T n (n + M)."""
        size = (self.columns + 1) ** 2 * 8
        moments = Moments.of(self.inputs, self.targets, memory_limit=size)
        return moments if self.has_intercept else moments.through_origin()

    def squared_error(self, fit: Refit) -> float:
        """Return the sum of the squared errors of `fit` on these rows."""
        found = self.inputs.double() @ fit.weight.T + fit.bias
        return float((self.targets - found).square().sum())


def refit_rows(observations: Observations, *, ridge: float = RIDGE) -> Refit:
    """Return the weights of `refit` on all columns, computed from a T x T system.

    Cost: T^2 n for the kernel, which is computed once, T^3 / 3 and 2 T n M.
    """
    targets, count = observations.targets.double(), observations.count
    dual = torch.cholesky_solve(targets, factor_ridged(observations.kernel, ridge))
    weight = dual.T @ observations.inputs.double() / observations.scales.square() / count
    bias = dual.mean(0) if observations.has_intercept else torch.zeros_like(dual[0])
    mse = float((ridge * dual).square().mean())  # the residual of a ridge solution
    return Refit(weight=weight, bias=bias, mse=mse)


def principal_directions(
    rows: Float[Tensor, "T D q"], count: int
) -> Float[Tensor, "D q count"] | None:
    """Return the first `count` principal directions of the columns of each channel.

    None if a channel has no more columns than that. Cost: T D q min(q, T).
    """
    T, _, q = rows.shape
    if q <= count:
        return None
    channels = rows.movedim(1, 0)
    if q <= T:
        return torch.linalg.eigh(channels.mT @ channels).eigenvectors[:, :, -count:]
    values, vectors = torch.linalg.eigh(channels @ channels.mT)
    lengths = values[:, None, -count:].clamp_min(0).sqrt()
    directions = channels.mT @ vectors[:, :, -count:]
    floor = lengths.amax() * torch.finfo(rows.dtype).eps * T
    return torch.where(lengths > floor, directions / lengths, 0)
