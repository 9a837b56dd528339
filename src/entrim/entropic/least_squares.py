"""Least squares on the kept channels, without the shrinkage of eps_l2."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from entrim.entropic.moments import Moments, columns_of
from entrim.errors import BadSettingError, SingularMomentsError

RIDGE = 1e-10
"""Relative to a unit diagonal: negligible shrinkage, but solvable with few rows."""


SCALE_FLOOR = 0.1
"""Smallest scale of a column, relative to the root mean square of all. A channel that is rarely
active on the images would otherwise have almost no ridge."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Refit:
    """Least-squares weights on given channels.

    Attributes
    ----------
    weight : Tensor of shape (M, columns)
        Weights, in channel-major order.
    bias : Tensor of shape (M,)
        Intercepts.
    mse : float
        Mean squared error.
    """

    weight: Float[Tensor, "M columns"]
    bias: Float[Tensor, " M"]
    mse: float


@dataclass(frozen=True, slots=True)
class NormalEquations:
    """Mean second moments of selected channels, scaled to a unit diagonal: Z = (1; X) / scale."""

    gram: Float[Tensor, "n1 n1"]
    cross: Float[Tensor, "n1 M"]
    scale: Float[Tensor, " n1"]

    @classmethod
    def of(cls, m: Moments, kept: Int[Tensor, " k"]) -> "NormalEquations":
        """Return the normal equations of the channels `kept`."""
        columns = columns_of(kept.to(m.gram_sum.device), m.block)
        gram = m.gram_sum.index_select(0, columns).index_select(1, columns) / m.count
        power = gram.diagonal()
        scale = torch.cat([power[:1].sqrt(), column_scales(power[1:])])
        gram.div_(scale).div_(scale[:, None])
        cross = m.cross_sum.index_select(0, columns) / m.count / scale[:, None]
        return cls(gram, cross, scale)

    def among(self, columns: Int[Tensor, " k"]) -> "NormalEquations":
        """Return the normal equations of a subset of the columns."""
        gram = self.gram.index_select(0, columns).index_select(1, columns)
        return NormalEquations(gram, self.cross[columns], self.scale[columns])

    def factor(self, ridge: float = RIDGE) -> Float[Tensor, "n1 n1"]:
        """Return the Cholesky factor of the ridged matrix."""
        return factor_ridged(self.gram, ridge)


def column_scales(power: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return the scales of columns with these second moments: their roots, with a floor."""
    scale = power.clamp_min(SCALE_FLOOR**2 * power.mean()).sqrt()
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def factor_ridged(matrix: Float[Tensor, "n n"], ridge: float) -> Float[Tensor, "n n"]:
    """Return the Cholesky factor of `matrix` with `ridge` added to its diagonal."""
    system = matrix.clone()
    system.diagonal().add_(ridge)
    factor, info = torch.linalg.cholesky_ex(system)
    if int(info) > 0:
        raise SingularMomentsError(
            f"pivot {int(info)} of {len(system)} is not positive: the sums are not second "
            "moments; collect them again in float64"
        )
    return factor


def refit(
    moments: Moments, kept: Int[Tensor, " k"] | Sequence[int], *, ridge: float = RIDGE
) -> Refit:
    """Return the least-squares weights on the channels `kept`.

    Parameters
    ----------
    moments : Moments
        Second moments of the layer.
    kept : sequence of int
        Indices of the channels; the weights are in this order.
    ridge : float, default 1e-10
        Ridge relative to the second moment of each column. The default selects a solution of nearly
        minimum norm if there are fewer rows than columns or collinear columns. A larger value
        shrinks the weights, which helps if there are few rows.

    Returns
    -------
    Refit

    Raises
    ------
    BadSettingError
        If `kept` or `ridge` is invalid.

    Examples
    --------
    >>> import torch, entrim
    >>> x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    >>> fit = entrim.refit(entrim.Moments.of(x, x[:, :1] * 2 + 1), kept=[0])
    >>> round(fit.weight.item(), 6), round(fit.bias.item(), 6)
    (2.0, 1.0)
    """
    channels = checked_channels(kept, moments.channels)
    if not 0 <= ridge < float("inf"):
        raise BadSettingError(f"ridge must be 0 or positive, got {ridge}")
    equations = NormalEquations.of(moments, channels)
    U = torch.cholesky_solve(equations.cross, equations.factor(ridge))
    power = moments.target_sum_sq / moments.count
    fitted = float(((2 * equations.cross - equations.gram @ U) * U).sum())
    U = U / equations.scale[:, None]
    mse = max(0.0, (power - fitted) / moments.outputs)
    return Refit(weight=U[1:].T.contiguous(), bias=U[0].clone(), mse=mse)


def checked_channels(kept: Tensor | Sequence[int], channels: int) -> Int[Tensor, " k"]:
    """Return `kept` as indices; raise an error if empty, repeated or out of range."""
    indices = torch.as_tensor(kept).to("cpu")
    whole = not indices.is_floating_point() and indices.dtype != torch.bool
    inside = bool(((indices >= 0) & (indices < channels)).all())
    if indices.ndim != 1 or len(indices) == 0 or not whole or not inside:
        raise BadSettingError(
            f"kept must list at least one channel index from 0 to {channels - 1}, got {kept}"
        )
    if len(indices.unique()) < len(indices):
        raise BadSettingError(f"kept must list each channel once, got {kept}")
    return indices.to(torch.int64)
