"""Two algorithms for the entropic objective: the alternation of the paper, and a faster method.

Both advance a `Descent` to a minimum of F(w, Lambda). `alternate` follows the paper;
`majorize` minimizes a separable upper bound in closed form and extrapolates (SQUAREM). F never
increases in either.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from entrim.entropic.objective import Objective, Point
from entrim.entropic.solution import Outcome
from entrim.errors import MissingExtraError

THRESHOLD = 1e-6
"""Channels with a smaller importance are removed (value of the paper)."""

COPY = 1 - 1e-10
"""Channels of at least this similarity are equal up to rounding; one of them is kept."""
NEAR_COPY = 0.99
"""Channels of at least this similarity may share their weight at a saddle point."""
LOWEST = 1e-12
"""Lower bound of w, so that log w is defined."""


def alternate(descent: "Descent") -> None:
    """Run the alternation of the paper: ridge regression in Lambda, a general solver in w.

    SciPy's SLSQP replaces Matlab's fmincon. It is slow, and the reference for the fast method.
    """
    while not descent.over:
        w = w_step(descent.point, max(LOWEST, descent.min_w))
        if torch.equal(w, descent.point.w):
            descent.stalled = True
            return
        descent.step(w)


def w_step(point: Point, lowest: float) -> Float[Tensor, " D"]:
    """Return a w on the simplex that decreases w'Hw - 2 b'w + eps_w sum w log w for fixed L.

    The problem is not convex, because eps_w < 0. If SLSQP finds no decrease, w is returned.
    """
    try:
        from scipy.optimize import minimize
    except ImportError as error:
        raise MissingExtraError('solver="alternating"', "scipy", "compare") from error
    H, b = (term.numpy() for term in point.quadratic())
    eps_w = point.objective.eps_w

    def value(w: np.ndarray) -> float:
        return float(w @ H @ w - 2 * b @ w + eps_w * np.sum(w * np.log(w)))

    def slope(w: np.ndarray) -> np.ndarray:
        return 2 * (H @ w - b) + eps_w * (np.log(w) + 1)

    start = point.w.numpy()
    found = minimize(
        value,
        start,
        jac=slope,
        method="SLSQP",
        bounds=[(lowest, 1.0)] * len(start),
        constraints={
            "type": "eq",
            "fun": lambda w: w.sum() - 1,
            "jac": lambda w: np.ones_like(w),
        },
        options={"maxiter": 100, "ftol": 1e-9},
    )
    w = np.clip(found.x, lowest, 1.0)
    w /= w.sum()
    return torch.from_numpy(w) if value(w) < value(start) else point.w


def majorize(descent: "Descent") -> None:
    """Run majorize-minimize steps to a minimum, then remove channels while this decreases F.

    The second part ends when its cost reaches that of the first.
    """
    _walk(descent)
    limit = 2 * descent.cost
    while descent.cost < limit and descent.drop_least():
        _walk(descent)


def _walk(descent: "Descent") -> None:
    """Run cycles of two steps and an extrapolation (SQUAREM on log w) until the descent ends."""
    while not descent.over:
        first = descent.point
        descent.step(next_w(first, descent.min_w))
        if descent.over:
            return
        second = descent.point
        third = next_w(second, descent.min_w)
        leap = extrapolate(first, second, third, descent.min_w)
        if leap is None or not descent.try_step(leap):
            if descent.exhausted:
                return
            descent.step(third)


def next_w(point: Point, min_w: float) -> Float[Tensor, " D"]:
    """Return the minimizer over the simplex of sum_d a_d / w_d^2 + c_d w_d with w >= `min_w`.

    If no channel is used, all weight is given to the first.
    """
    a2, c = 2 * point.ridge_energy, point.entropy_slope
    w = torch.full_like(c, min_w)
    free = a2 > 0
    if not bool(free.any()):
        w[0] = 1
    while bool(free.any()):
        mass = 1 - min_w * float((~free).sum())
        w[free] = cube_root_shares(a2[free] / mass**3, c[free]) * mass
        low = free & (w < min_w)
        if not bool(low.any()):
            break
        w[low] = min_w
        free &= ~low
    return w / w.sum()


def cube_root_shares(a2: Float[Tensor, " k"], c: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
    """Return (a2 / (c + nu))^(1/3) with the unique nu for which the shares sum to 1.

    With h the sum, h^-3 is a power mean of functions linear in nu: concave and increasing. Newton's
    method from the left, where the largest share alone is 1, therefore never overshoots. nu is
    relative to the smallest c, which avoids cancellation for tiny a2.
    """
    gap = c - c.min()
    nu = float((a2 - gap).max())
    shares = (a2 / (gap + nu)).pow(1 / 3)
    while (h := float(shares.sum())) > 1 + 1e-14:
        further = nu + (h**4 - h) / float((shares / (gap + nu)).sum())
        if further == nu:
            break
        nu = further
        shares = (a2 / (gap + nu)).pow(1 / 3)
    return shares


def extrapolate(
    first: Point, second: Point, third: Float[Tensor, " k"], min_w: float
) -> Float[Tensor, " k"] | None:
    """Return the SQUAREM extrapolation of log w on the channels of `second`, None if it is zero.

    The step length ||r|| / ||v|| treats the two changes r and r + v of log w as a geometric series.
    The result is accepted only if F does not increase.
    """
    start = first.w[torch.isin(first.objective.channels, second.objective.channels)]
    alive = third > 0
    x0, x1, x2 = start[alive].log(), second.w[alive].log(), third[alive].log()
    r, v = x1 - x0, x2 - 2 * x1 + x0
    if not float(v.norm()) > 0:
        return None
    length = max(1.0, float(r.norm() / v.norm()))
    x = x0 + 2 * length * r + length**2 * v
    leap = torch.zeros_like(third)
    leap[alive] = (x - x.max()).exp()
    leap = (leap / leap.sum()).clamp_min(min_w)
    return leap / leap.sum()


@dataclass(slots=True)
class Descent:
    """The state of a descent. If `pinned`, the threshold bounds w and no channel is removed."""

    point: Point
    tol: float
    max_solves: int
    pinned: bool = False
    min_decrease: float = 0.0
    """The descent ends when a step decreases F by less than this value."""
    trace: list[float] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    stalled: bool = False
    compared: set[tuple[int, int]] = field(default_factory=set)

    @classmethod
    def start(
        cls,
        objective: Objective,
        w: Float[Tensor, " D"],
        *,
        tol: float,
        max_solves: int,
        pinned: bool = False,
        min_decrease: float = 0.0,
    ) -> "Descent":
        """Return the descent after the first ridge solve, at `w`."""
        point = objective.at(w)
        return cls(point, tol, max_solves, pinned, min_decrease, [point.loss], [len(w)])

    @property
    def min_w(self) -> float:
        """Lower bound of w."""
        return THRESHOLD if self.pinned else 0.0

    @property
    def optimality_residual(self) -> float:
        """Optimality residual of the current point."""
        return self.point.optimality_residual(self.min_w)

    @property
    def exhausted(self) -> bool:
        """Whether the maximum number of ridge solves is reached."""
        return len(self.widths) >= self.max_solves

    @property
    def slow(self) -> bool:
        """Whether the last step decreased F by less than `min_decrease`."""
        return len(self.trace) > 1 and self.trace[-2] - self.trace[-1] < self.min_decrease

    @property
    def cost(self) -> int:
        """Cost of the ridge solves so far: the sum of the cubes of their numbers of channels."""
        return sum(width**3 for width in self.widths)

    @property
    def over(self) -> bool:
        """Whether the descent has ended."""
        return self.stalled or self.exhausted or self.slow or self.optimality_residual <= self.tol

    @property
    def outcome(self) -> Outcome:
        """How the descent ended."""
        if self.optimality_residual <= self.tol:
            return Outcome.CONVERGED
        if self.slow:
            return Outcome.SLOW
        return Outcome.STALLED if self.stalled else Outcome.OUT_OF_SOLVES

    def try_step(self, w: Float[Tensor, " D"]) -> bool:
        """Move to `w` without vanishing channels unless F increases; return whether it moved."""
        large = w >= THRESHOLD
        if self.pinned or bool(large.all()):
            return self._try(self.point.objective, w)
        rest = w[large]
        return self._try(self.point.objective.restrict(large.nonzero()[:, 0]), rest / rest.sum())

    def step(self, w: Float[Tensor, " D"]) -> None:
        """Move to `w`, with vanishing channels if F increases without them; otherwise stall."""
        if self.try_step(w) or self.exhausted:
            return
        vanishing = bool((w < THRESHOLD).any()) and not self.pinned
        positive = (w > 0).nonzero()[:, 0]
        if vanishing and self._try(self.point.objective.restrict(positive), w[positive]):
            return
        self.stalled = True

    def merge_near_copies(self) -> bool:
        """Merge the weights of two similar channels if this decreases F; return whether it did.

        From a uniform start, two similar channels share their weight. There the gradient almost
        vanishes, so that only F shows that one of them is redundant.
        """
        if self.pinned or self.outcome is not Outcome.CONVERGED:
            return False
        objective = self.point.objective
        similarity = objective.similarity().tril(-1)
        pairs = (similarity >= NEAR_COPY).nonzero()
        closest = similarity[pairs[:, 0], pairs[:, 1]].argsort(descending=True, stable=True)
        for j, i in pairs[closest].tolist():
            names = (int(objective.channels[i]), int(objective.channels[j]))
            if names in self.compared or self.exhausted:
                continue
            self.compared.add(names)
            w = self.point.w.clone()
            large, small = (i, j) if w[i] >= w[j] else (j, i)
            w[large] += w[small]
            w[small] = 0
            if self.try_step(w):
                return True
        return False

    def drop_least(self) -> bool:
        """Remove the channel of least weight if this decreases F; return whether it did.

        At a local minimum F may be lower without a channel, because the entropy term is a barrier
        near w = 0. Half of the solves are reserved for the steps that follow.
        """
        if self.pinned or self.outcome is not Outcome.CONVERGED:
            return False
        if len(self.point.w) == 1 or 2 * len(self.widths) > self.max_solves:
            return False
        w = self.point.w.clone()
        w[w.argmin()] = 0
        return self.try_step(w / w.sum())

    def _try(self, objective: Objective, w: Float[Tensor, " D"]) -> bool:
        point = objective.at(w)
        self.widths.append(len(w))
        if not point.loss <= self.point.loss:
            return False
        self.point = point
        self.trace.append(point.loss)
        return True


def uniform(size: int) -> Float[Tensor, " D"]:
    """Return the uniform w, the default start of a descent."""
    return torch.full((size,), 1 / size, dtype=torch.float64)
