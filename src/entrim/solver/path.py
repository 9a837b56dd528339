"""From dense to sparse: a path of solutions, and the one with exactly k channels."""

from collections.abc import Sequence
from itertools import pairwise
from typing import overload

import torch
from torch import Tensor

from entrim.errors import BadSettingError
from entrim.moments import Moments
from entrim.solver.answer import Settings, candidates, consumers_of, settle
from entrim.solver.objective import Objective
from entrim.solver.solution import JointSolution, Solution

LADDER_TOP, LADDER_FOOT = 1e-2, 1e-8
"""Between these, relative to the variance of the outputs, a ladder starts: as high as it is dense
enough, since each solve near the dense end costs a system of full size."""
LADDER_STEP = 2.0


@overload
def solve_path(
    moments: Moments, eps: Sequence[float], *, tol: float = ..., max_solves: int = ...
) -> list[Solution]: ...
@overload
def solve_path(
    moments: Sequence[Moments], eps: Sequence[float], *, tol: float = ..., max_solves: int = ...
) -> list[JointSolution]: ...
def solve_path(
    moments: Moments | Sequence[Moments],
    eps: Sequence[float],
    *,
    tol: float = 1e-3,
    max_solves: int = 200,
) -> list[Solution] | list[JointSolution]:
    """Return one solution for each of the rising `eps`, with eps_l2 = eps and eps_w = -eps.

    Each starts where the one before ended, so a channel that has gone stays gone: kept sets are
    nested, and the systems shrink along the way.

    >>> import torch, entrim
    >>> x = torch.randn(500, 8, generator=torch.Generator().manual_seed(0))
    >>> m = entrim.Moments.of(x, x @ torch.tensor([9.0, 8, 7, 6, 5, 4, 3, 2])[:, None])
    >>> [len(s.kept) for s in entrim.solve_path(m, eps=[1e-6, 0.1, 0.5])]
    [8, 3, 1]
    """
    if len(eps) == 0 or any(b <= a for a, b in pairwise(eps)):
        raise BadSettingError(
            f"eps is {list(eps)}: hand over at least one value, strictly rising (dense to sparse)"
        )
    path = []
    w: Tensor | None = None
    for value in eps:
        path.append(settle(moments, _even(value, tol, max_solves), w))
        w = path[-1].w
    return path


@overload
def solve_for(
    moments: Moments, *, channels: int, tol: float = ..., max_solves: int = ...
) -> Solution: ...
@overload
def solve_for(
    moments: Sequence[Moments], *, channels: int, tol: float = ..., max_solves: int = ...
) -> JointSolution: ...
def solve_for(
    moments: Moments | Sequence[Moments],
    *,
    channels: int,
    tol: float = 1e-3,
    max_solves: int = 200,
) -> Solution | JointSolution:
    """Return a solution that keeps exactly `channels` channels.

    Starts at the largest power of ten of eps, relative to the variance of the outputs, that keeps
    enough, doubles it up to the last point with at least that many, cuts that to the largest w and
    solves again with those held.

    >>> import torch, entrim
    >>> x = torch.randn(500, 8, generator=torch.Generator().manual_seed(0))
    >>> m = entrim.Moments.of(x, x @ torch.tensor([9.0, 8, 7, 6, 5, 4, 3, 2])[:, None])
    >>> entrim.solve_for(m, channels=3).kept.tolist()
    [0, 1, 2]
    """
    group = consumers_of(moments)
    variance = _variance(group)
    available, _ = candidates(Objective.of(group, -1.0, LADDER_FOOT * variance))
    if not isinstance(channels, int) or not 1 <= channels <= len(available):
        raise BadSettingError(
            f"channels is {channels}: ask for 1 to {len(available)}, the number of live, distinct "
            f"channels among the {group[0].channels}"
        )
    w = torch.zeros(group[0].channels, dtype=torch.float64)
    w[available] = 1 / len(available)
    eps = LADDER_TOP * variance
    found = settle(moments, _even(eps, tol, max_solves), w)
    while len(found.kept) < channels and eps > LADDER_FOOT * variance:
        eps /= 10
        found = settle(moments, _even(eps, tol, max_solves), w)
    while len(found.kept) >= channels:
        w = found.w
        if len(found.kept) == channels:
            return found
        eps *= LADDER_STEP
        found = settle(moments, _even(eps, tol, max_solves), w)
    largest = w.topk(channels).indices
    cut = torch.zeros_like(w)
    cut[largest] = w[largest]
    return settle(moments, _even(eps, tol, max_solves), cut, pinned=True)


def _even(eps: float, tol: float, max_solves: int) -> Settings:
    """Return the settings with one eps for both terms."""
    return Settings(eps_w=-eps, eps_l2=eps, tol=tol, max_solves=max_solves)


def _variance(group: Sequence[Moments]) -> float:
    """Return the mean variance of an output, its second moment where it is constant."""
    total = 0.0
    for m in group:
        power = m.target_sum_sq / m.count
        mean = float((m.cross_sum[0] / m.count).square().sum())
        total += (power - mean if power - mean > 1e-12 * power else power) / m.outputs
    return total / len(group) or 1.0
