"""From dense to sparse: a path of solutions, and the one with exactly k channels."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor

from entrim.entropic.algorithm import COPY, Descent, alternate, majorize, uniform
from entrim.entropic.moments import Moments
from entrim.entropic.objective import Objective, Point
from entrim.entropic.solution import Choice, JointSolution, Solution, Status
from entrim.errors import BadRowsError, BadSettingError, DeadInputError

if TYPE_CHECKING:
    Solver = Literal["mm", "alternating"]
else:
    Solver = str  # so that an unknown one is refused by us, with the remedy
Start = Choice | Tensor
SOLVERS: dict[str, Callable[[Descent], None]] = {
    "mm": majorize,
    "alternating": alternate,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverSettings:
    """What `solve` may be told, checked."""

    eps_w: float = -1e-4
    eps_l2: float = 1e-4
    solver: Solver = "mm"
    tol: float = 1e-3
    max_solves: int = 200
    min_decrease: float = 0.0

    def __post_init__(self) -> None:
        if not -math.inf < self.eps_w < 0:
            raise BadSettingError(
                f"eps_w is {self.eps_w}: it must be negative, because sum w log w is minus the "
                "entropy and a sparse w has little entropy (a positive eps_w would spread w out); "
                "try -1e-4"
            )
        if not 0 < self.eps_l2 < math.inf:
            raise BadSettingError(
                f"eps_l2 is {self.eps_l2}: it must be positive, as the strength of a ridge that "
                "keeps the scale of w and of the weights apart; try 1e-4"
            )
        if self.solver not in SOLVERS:
            raise BadSettingError(
                f"solver must be one of {', '.join(map(repr, SOLVERS))}; got {self.solver!r}"
            )
        if not 0 < self.tol < math.inf:
            raise BadSettingError(f"tol is {self.tol}: it must be positive; try 1e-3")
        if self.max_solves < 1:
            raise BadSettingError(f"max_solves is {self.max_solves}: at least 1 is needed")
        if not 0 <= self.min_decrease < math.inf:
            raise BadSettingError(
                f"min_decrease is {self.min_decrease}: it must be 0 or positive; try 1e-3"
            )


@overload
def solve(
    moments: Moments,
    eps_w: float = ...,
    eps_l2: float = ...,
    solver: Solver = ...,
    tol: float = ...,
    max_solves: int = ...,
    start: Start | None = ...,
    min_decrease: float = ...,
) -> Solution: ...
@overload
def solve(
    moments: Sequence[Moments],
    eps_w: float = ...,
    eps_l2: float = ...,
    solver: Solver = ...,
    tol: float = ...,
    max_solves: int = ...,
    start: Start | None = ...,
    min_decrease: float = ...,
) -> JointSolution: ...
def solve(
    moments: Moments | Sequence[Moments],
    eps_w: float = -1e-4,
    eps_l2: float = 1e-4,
    solver: Solver = "mm",
    tol: float = 1e-3,
    max_solves: int = 200,
    start: Start | None = None,
    min_decrease: float = 0.0,
) -> Solution | JointSolution:
    """Return the channels that matter and the weights on them: a local minimum of F.

    Several moments are consumers of one channel group; they share one w and get one Solution each.
    Both methods minimise the same F, stop when the certificate is at most `tol`, and start from w
    uniform over the live, distinct channels, or from `start` (an earlier answer, or a w), whose
    zeros stay zero. The problem is not convex: another start may end in another minimum. With
    `min_decrease` they also stop where a step lowers F by less than that, as the paper does:
    earlier, with more channels.

    >>> import torch, entrim
    >>> g = torch.Generator().manual_seed(0)
    >>> x = torch.randn(500, 8, generator=g)
    >>> y = x[:, [1, 5]] @ torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    >>> entrim.solve(entrim.Moments.of(x, y)).kept.tolist()
    [1, 5]
    """
    settings = SolverSettings(
        eps_w=eps_w,
        eps_l2=eps_l2,
        solver=solver,
        tol=tol,
        max_solves=max_solves,
        min_decrease=min_decrease,
    )
    return solve_with(moments, settings, None if start is None else start_weights(start))


@overload
def solve_with(
    moments: Moments,
    settings: SolverSettings,
    start: Float[Tensor, " D"] | None = ...,
    *,
    pinned: bool = ...,
) -> Solution: ...
@overload
def solve_with(
    moments: Sequence[Moments],
    settings: SolverSettings,
    start: Float[Tensor, " D"] | None = ...,
    *,
    pinned: bool = ...,
) -> JointSolution: ...
@overload
def solve_with(
    moments: Moments | Sequence[Moments],
    settings: SolverSettings,
    start: Float[Tensor, " D"] | None = ...,
    *,
    pinned: bool = ...,
) -> Solution | JointSolution: ...
def solve_with(
    moments: Moments | Sequence[Moments],
    settings: SolverSettings,
    start: Float[Tensor, " D"] | None = None,
    *,
    pinned: bool = False,
) -> Solution | JointSolution:
    """Return what `solve` returns; with `pinned`, every channel of the start stays."""
    group = consumers_of(moments)
    objective = Objective.of(group, settings.eps_w, settings.eps_l2)
    notes = _ridge_notes(objective, settings.eps_l2)
    if start is None:
        channels, more = candidates(objective)
        notes += more
        w = uniform(len(channels))
    else:
        channels = _check_settings(start, group[0].channels).nonzero()[:, 0]
        w = start[channels] / start.sum()
    descent = Descent.start(
        objective.restrict(channels),
        w,
        tol=settings.tol,
        max_solves=settings.max_solves,
        pinned=pinned,
        min_decrease=settings.min_decrease,
    )
    descend = SOLVERS[settings.solver]
    descend(descent)
    while descent.merge_near_copies():
        descend(descent)
    joint = _joint(descent, group[0].channels, Status(descent.outcome, tuple(notes)))
    return joint.parts[0] if isinstance(moments, Moments) else joint


def candidates(objective: Objective) -> tuple[Int[Tensor, " k"], list[str]]:
    """Return the channels that are live and copy none of lower index, and notes on the others."""
    total = len(objective.channels)
    live = objective.live()
    if len(live) == 0:
        raise DeadInputError(
            f"all {total} input channels are zero on every row: check that the images are "
            "normalised as the model expects, or leave this layer alone"
        )
    alike = objective.similarity()[live][:, live]
    distinct = live[~(alike >= COPY).tril(-1).any(1)]
    notes = []
    if dead := total - len(live):
        notes.append(f"{dead} dead channels dropped")
    if copies := len(live) - len(distinct):
        notes.append(f"{copies} copies of other channels dropped")
    return distinct, notes


def live_channels(moments: Sequence[Moments]) -> int:
    """Return how many channels are live and no copies of others: what a choice is made among."""
    return len(candidates(Objective.of(moments, -1.0, 1.0))[0])


def start_weights(start: Start) -> Float[Tensor, " D"]:
    """Return the w of an earlier answer, or the given w, as float64 on the CPU."""
    w = start.w if isinstance(start, Choice) else start
    return w.detach().to("cpu", torch.float64)


def consumers_of(moments: Moments | Sequence[Moments]) -> list[Moments]:
    """Return the consumers of one channel group, refused when they cannot share it."""
    group = [moments] if isinstance(moments, Moments) else list(moments)
    if not all(isinstance(m, Moments) for m in group):
        raise BadRowsError("solving starts from moments: hand over Moments.of(inputs, outputs)")
    if not group:
        raise BadRowsError("no moments: hand over those of at least one layer")
    widths = [m.channels for m in group]
    if len(set(widths)) > 1:
        raise BadRowsError(
            f"consumers of {widths} channels cannot share one w: hand over the consumers of one "
            "channel group, each with its own block"
        )
    return group


def _check_settings(w: Tensor, channels: int) -> Tensor:
    good = w.shape == (channels,) and bool((w >= 0).all()) and 0 < float(w.sum()) < math.inf
    if not good:
        raise BadSettingError(
            f"start must be one non-negative weight for each of the {channels} channels, not all "
            "zero: hand over an earlier answer for the same channels"
        )
    return w


def _ridge_notes(objective: Objective, eps_l2: float) -> list[str]:
    ridges = [c.ridge for c in objective.consumers if c.ridge > eps_l2]
    if not ridges:
        return []
    return [f"ridge floored at rounding: {max(ridges):.1e} instead of eps_l2 = {eps_l2:.1e}"]


def _joint(descent: Descent, channels: int, status: Status) -> JointSolution:
    point = descent.point
    kept = point.objective.channels
    w = torch.zeros(channels, dtype=torch.float64)
    w[kept] = point.w
    common = {
        "w": w,
        "kept": kept,
        "optimality_residual": descent.optimality_residual,
        "status": status,
        "widths": tuple(descent.widths),
    }
    parts = tuple(
        _part(point, index, tuple(descent.trace), common)
        for index in range(len(point.objective.consumers))
    )
    mse = sum(part.mse for part in parts) / len(parts)
    return JointSolution(
        loss=point.loss, mse=mse, trace=tuple(descent.trace), parts=parts, **common
    )


def _part(point: Point, index: int, trace: tuple[float, ...], common: dict) -> Solution:
    consumer, L = point.objective.consumers[index], point.regressions[index]
    U = L * consumer.scale(point.w)[:, None]
    return Solution(
        weight=U[1:].T.contiguous(),
        bias=U[0].clone(),
        loss=point.entropy_term + point.values[index],
        mse=point.mse(index),
        trace=trace,
        **common,
    )


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
        path.append(solve_with(moments, _even_settings(value, tol, max_solves), w))
        w = path[-1].w
    return path


@overload
def solve_k(moments: Moments, *, k: int, tol: float = ..., max_solves: int = ...) -> Solution: ...
@overload
def solve_k(
    moments: Sequence[Moments], *, k: int, tol: float = ..., max_solves: int = ...
) -> JointSolution: ...
def solve_k(
    moments: Moments | Sequence[Moments],
    *,
    k: int,
    tol: float = 1e-3,
    max_solves: int = 200,
) -> Solution | JointSolution:
    """Return a solution that keeps exactly `k` channels.

    Starts at the largest power of ten of eps, relative to the variance of the outputs, that keeps
    enough, doubles it up to the last point with at least that many, cuts that to the largest w and
    solves again with those held.

    >>> import torch, entrim
    >>> x = torch.randn(500, 8, generator=torch.Generator().manual_seed(0))
    >>> m = entrim.Moments.of(x, x @ torch.tensor([9.0, 8, 7, 6, 5, 4, 3, 2])[:, None])
    >>> entrim.solve_k(m, k=3).kept.tolist()
    [0, 1, 2]
    """
    group = consumers_of(moments)
    variance = _variance(group)
    available, _ = candidates(Objective.of(group, -1.0, LADDER_FOOT * variance))
    if not isinstance(k, int) or not 1 <= k <= len(available):
        raise BadSettingError(
            f"k is {k}: pass 1 to {len(available)}, the number of live, distinct "
            f"channels among the {group[0].channels}"
        )
    w = torch.zeros(group[0].channels, dtype=torch.float64)
    w[available] = 1 / len(available)
    eps = LADDER_TOP * variance
    found = solve_with(moments, _even_settings(eps, tol, max_solves), w)
    while len(found.kept) < k and eps > LADDER_FOOT * variance:
        eps /= 10
        found = solve_with(moments, _even_settings(eps, tol, max_solves), w)
    while len(found.kept) >= k:
        w = found.w
        if len(found.kept) == k:
            return found
        eps *= LADDER_STEP
        found = solve_with(moments, _even_settings(eps, tol, max_solves), w)
    largest = w.topk(k).indices
    cut = torch.zeros_like(w)
    cut[largest] = w[largest]
    return solve_with(moments, _even_settings(eps, tol, max_solves), cut, pinned=True)


def _even_settings(eps: float, tol: float, max_solves: int) -> SolverSettings:
    """Return the settings with one eps for both terms."""
    return SolverSettings(eps_w=-eps, eps_l2=eps, tol=tol, max_solves=max_solves)


def _variance(group: Sequence[Moments]) -> float:
    """Return the mean variance of an output, its second moment where it is constant."""
    total = 0.0
    for m in group:
        power = m.target_sum_sq / m.count
        mean = float((m.cross_sum[0] / m.count).square().sum())
        total += (power - mean if power - mean > 1e-12 * power else power) / m.outputs
    return total / len(group) or 1.0
