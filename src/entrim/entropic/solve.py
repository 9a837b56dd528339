"""Solve the entropic regression: for one penalty, along a path, or for k channels."""

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
from entrim.entropic.solution import Choice, JointSolution, Part, Solution, Status
from entrim.errors import BadRowsError, BadSettingError, DeadInputError

if TYPE_CHECKING:
    Solver = Literal["mm", "alternating"]
else:
    Solver = str  # other values raise an error of entrim, with a remedy
Start = Choice | Tensor
SOLVERS: dict[str, Callable[[Descent], None]] = {
    "mm": majorize,
    "alternating": alternate,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverSettings:
    """The validated options of `solve`."""

    eps_w: float = -1e-4
    eps_l2: float = 1e-4
    solver: Solver = "mm"
    tol: float = 1e-3
    max_solves: int = 200
    min_decrease: float = 0.0

    def __post_init__(self) -> None:
        if not -math.inf < self.eps_w < 0:
            raise BadSettingError(
                f"eps_w must be negative, got {self.eps_w}: a positive value increases the entropy "
                "of w, which keeps all channels; try -1e-4"
            )
        if not 0 < self.eps_l2 < math.inf:
            raise BadSettingError(
                f"eps_l2 must be positive, got {self.eps_l2}: without a ridge the scales of w and "
                "of the weights are not unique; try 1e-4"
            )
        if self.solver not in SOLVERS:
            raise BadSettingError(
                f"solver must be one of {', '.join(map(repr, SOLVERS))}; got {self.solver!r}"
            )
        if not 0 < self.tol < math.inf:
            raise BadSettingError(f"tol must be positive, got {self.tol}; try 1e-3")
        if self.max_solves < 1:
            raise BadSettingError(f"max_solves must be a positive integer, got {self.max_solves}")
        if not 0 <= self.min_decrease < math.inf:
            raise BadSettingError(
                f"min_decrease must be 0 or positive, got {self.min_decrease}; try 1e-3"
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
    """Return a local minimum of the entropic objective F: kept channels and their weights.

    The problem is not convex, so that another start may lead to another minimum.

    Parameters
    ----------
    moments : Moments or list of Moments
        Second moments of a layer, or of several consumers of one channel group, which share w.
    eps_w : float, default -1e-4
        Strength of the entropy term, negative.
    eps_l2 : float, default 1e-4
        Strength of the ridge term, positive.
    solver : {"mm", "alternating"}, default "mm"
        Fast majorize-minimize method, or the alternation of the paper. Both minimize the same F.
    tol : float, default 1e-3
        Optimality residual at which the solver stops.
    max_solves : int, default 200
        Maximum number of ridge solves.
    start : Solution, JointSolution or Tensor, optional
        Initial w, or an earlier solution; its zeros remain zero. By default w is uniform over the
        live, distinct channels.
    min_decrease : float, default 0.0
        Also stop when a step decreases F by less than this value, as in the paper. This stops
        earlier, with more channels.

    Returns
    -------
    Solution or JointSolution
        A `JointSolution` for a list of moments, with one `Solution` per consumer.

    Raises
    ------
    BadSettingError
        If an option is out of range.
    DeadInputError
        If all channels are zero on every row.

    Examples
    --------
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
    """Return the result of `solve`; if `pinned`, all channels of the start are kept."""
    group = consumers_of(moments)
    objective = Objective.of(group, settings.eps_w, settings.eps_l2)
    notes = _ridge_notes(objective, settings.eps_l2)
    if start is None:
        channels, more = candidates(objective)
        notes += more
        w = uniform(len(channels))
    else:
        channels = _check_start(start, group[0].channels).nonzero()[:, 0]
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
    status = Status(descent.outcome, tuple(notes))
    joint = _joint(descent, group[0].channels, settings.eps_l2, status)
    return joint.parts[0] if isinstance(moments, Moments) else joint


def candidates(objective: Objective) -> tuple[Int[Tensor, " k"], list[str]]:
    """Return the live channels that are not copies of earlier ones, and notes on the others."""
    total = len(objective.channels)
    live = objective.live()
    if len(live) == 0:
        raise DeadInputError(
            f"all {total} input channels are zero on every row: check that the images are "
            "normalized as in the training of the network, or exclude this layer"
        )
    similarity = objective.similarity()[live][:, live]
    distinct = live[~(similarity >= COPY).tril(-1).any(1)]
    notes = []
    if dead := total - len(live):
        notes.append(f"{dead} dead channels dropped")
    if copies := len(live) - len(distinct):
        notes.append(f"{copies} copies of other channels dropped")
    return distinct, notes


def live_channels(moments: Sequence[Moments]) -> int:
    """Return the number of live, distinct channels."""
    return len(candidates(Objective.of(moments, -1.0, 1.0))[0])


def start_weights(start: Start) -> Float[Tensor, " D"]:
    """Return the w of an earlier solution, or the given w, as float64 on the CPU."""
    w = start.w if isinstance(start, Choice) else start
    return w.detach().to("cpu", torch.float64)


def consumers_of(moments: Moments | Sequence[Moments]) -> list[Moments]:
    """Return the consumers of one channel group; raise an error if their channels differ."""
    group = [moments] if isinstance(moments, Moments) else list(moments)
    if not all(isinstance(m, Moments) for m in group):
        raise BadRowsError(
            "moments must be Moments or a list of them: pass Moments.of(inputs, outputs)"
        )
    if not group:
        raise BadRowsError("the list of moments is empty: pass those of at least one layer")
    widths = [m.channels for m in group]
    if len(set(widths)) > 1:
        raise BadRowsError(
            f"all consumers must have the same number of channels, got {widths}: pass the "
            "consumers of one channel group, each with its own block"
        )
    return group


def _check_start(w: Tensor, channels: int) -> Tensor:
    good = w.shape == (channels,) and bool((w >= 0).all()) and 0 < float(w.sum()) < math.inf
    if not good:
        raise BadSettingError(
            f"start must have one non-negative weight for each of the {channels} channels, not all "
            "zero: pass an earlier solution for the same channels"
        )
    return w


def _ridge_notes(objective: Objective, eps_l2: float) -> list[str]:
    ridges = [c.ridge for c in objective.consumers if c.ridge > eps_l2]
    if not ridges:
        return []
    return [
        f"ridge raised above rounding error: {max(ridges):.1e} instead of eps_l2 = {eps_l2:.1e}"
    ]


def _joint(descent: Descent, channels: int, eps_l2: float, status: Status) -> JointSolution:
    point = descent.point
    kept = point.objective.channels
    w = torch.zeros(channels, dtype=torch.float64)
    w[kept] = point.w
    common = {
        "w": w,
        "kept": kept,
        "optimality_residual": descent.optimality_residual,
        "eps_l2": eps_l2,
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
    weight, bias = point.layer_weights(index)
    return Solution(
        weight=weight,
        bias=bias,
        loss=point.entropy_term + point.values[index],
        mse=point.mse(index),
        trace=trace,
        **common,
    )


def regress(moments: Sequence[Moments], w: Float[Tensor, " D"], eps_l2: float) -> list[Part]:
    """Return the weights of each consumer for a fixed `w`: one Lambda-step of the paper.

    The sum of `w` may differ from 1.
    """
    kept = (w > 0).nonzero()[:, 0]
    point = Objective.of(moments, -1.0, eps_l2).restrict(kept).at(w[kept])
    return [Part(kept, *point.layer_weights(index)) for index in range(len(moments))]


MAX_START_EPS, MIN_START_EPS = 1e-2, 1e-8
"""Range of the first eps of `solve_k`, relative to the variance of the outputs. The largest eps
that keeps enough channels is used, because solves with many channels are expensive."""
EPS_FACTOR = 2.0


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
    """Return a path of solutions for increasing `eps`, with eps_l2 = eps and eps_w = -eps.

    Each solve starts from the previous solution, so that the kept sets are nested and the systems
    become smaller.

    Parameters
    ----------
    moments : Moments or list of Moments
        Second moments of a layer, or of several consumers of one channel group.
    eps : sequence of float
        Strictly increasing strengths.
    tol : float, default 1e-3
        Optimality residual at which a solve stops.
    max_solves : int, default 200
        Maximum number of ridge solves for each strength.

    Returns
    -------
    list of Solution or list of JointSolution

    Examples
    --------
    >>> import torch, entrim
    >>> x = torch.randn(500, 8, generator=torch.Generator().manual_seed(0))
    >>> m = entrim.Moments.of(x, x @ torch.tensor([9.0, 8, 7, 6, 5, 4, 3, 2])[:, None])
    >>> [len(s.kept) for s in entrim.solve_path(m, eps=[1e-6, 0.1, 0.5])]
    [8, 3, 1]
    """
    if len(eps) == 0 or any(b <= a for a, b in pairwise(eps)):
        raise BadSettingError(
            f"eps must be a non-empty, strictly increasing sequence, got {list(eps)}"
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

    The first eps is the largest power of ten, relative to the variance of the outputs, that keeps
    at least `k` channels. It is doubled while this holds. The `k` largest w of the last solution
    are then fixed as the kept channels, and the problem is solved again.

    Parameters
    ----------
    moments : Moments or list of Moments
        Second moments of a layer, or of several consumers of one channel group.
    k : int
        Number of channels to keep.
    tol : float, default 1e-3
        Optimality residual at which a solve stops.
    max_solves : int, default 200
        Maximum number of ridge solves for each eps.

    Returns
    -------
    Solution or JointSolution

    Raises
    ------
    BadSettingError
        If `k` is not between 1 and the number of live, distinct channels.

    Examples
    --------
    >>> import torch, entrim
    >>> x = torch.randn(500, 8, generator=torch.Generator().manual_seed(0))
    >>> m = entrim.Moments.of(x, x @ torch.tensor([9.0, 8, 7, 6, 5, 4, 3, 2])[:, None])
    >>> entrim.solve_k(m, k=3).kept.tolist()
    [0, 1, 2]
    """
    group = consumers_of(moments)
    variance = _variance(group)
    available, _ = candidates(Objective.of(group, -1.0, MIN_START_EPS * variance))
    if not isinstance(k, int) or not 1 <= k <= len(available):
        raise BadSettingError(
            f"k must be an integer from 1 to {len(available)}, the number of live, distinct "
            f"channels of {group[0].channels}, got {k}"
        )
    w = torch.zeros(group[0].channels, dtype=torch.float64)
    w[available] = 1 / len(available)
    eps = MAX_START_EPS * variance
    found = solve_with(moments, _even_settings(eps, tol, max_solves), w)
    while len(found.kept) < k and eps > MIN_START_EPS * variance:
        eps /= 10
        found = solve_with(moments, _even_settings(eps, tol, max_solves), w)
    while len(found.kept) >= k:
        w = found.w
        if len(found.kept) == k:
            return found
        eps *= EPS_FACTOR
        found = solve_with(moments, _even_settings(eps, tol, max_solves), w)
    largest = w.topk(k).indices
    start = torch.zeros_like(w)
    start[largest] = w[largest]
    return solve_with(moments, _even_settings(eps, tol, max_solves), start, pinned=True)


def _even_settings(eps: float, tol: float, max_solves: int) -> SolverSettings:
    """Return the settings with the same strength for both terms."""
    return SolverSettings(eps_w=-eps, eps_l2=eps, tol=tol, max_solves=max_solves)


def _variance(group: Sequence[Moments]) -> float:
    """Return the mean variance of an output, or its second moment if it is constant."""
    total = 0.0
    for m in group:
        power = m.target_sum_sq / m.count
        mean = float((m.cross_sum[0] / m.count).square().sum())
        total += (power - mean if power - mean > 1e-12 * power else power) / m.outputs
    return total / len(group) or 1.0
