"""Two algorithms for the entropic objective: the paper's alternation, and a faster method.

Both start from a `Descent` and move it to a minimum of F(w, Lambda). `alternate` follows the paper;
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
"""A channel below this importance goes (the paper's value)."""

COPY = 1 - 1e-10
"""Channels this much alike are the same up to rounding: one of them is enough."""
NEAR_COPY = 0.99
"""Channels this much alike may share their weight on a saddle that the gradient cannot see."""
LOWEST = 1e-12
"""Where w stops short of 0, so that log w exists."""


def alternate(descent: "Descent") -> None:
    """Run the paper's alternation: a ridge in Lambda, then a general solver in w.

    SciPy's SLSQP takes the place of Matlab's fmincon. Faithful and slow; the fast method is
    measured against it.
    """
    while not descent.over:
        w = w_step(descent.point, max(LOWEST, descent.min_w))
        if torch.equal(w, descent.point.w):
            descent.stalled = True
            return
        descent.step(w)


def w_step(point: Point, lowest: float) -> Float[Tensor, " D"]:
    """Return a w on the simplex with a smaller w'Hw - 2 b'w + eps_w sum w log w, L fixed.

    Not convex, because eps_w < 0. Where SLSQP finds nothing better, w itself.
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
    """Run the fast method: majorize-minimize steps to a minimum, then drop channels that raise F.

    The second part ends when it has cost as much as the first.
    """
    _walk(descent)
    limit = 2 * descent.cost
    while descent.cost < limit and descent.drop_least():
        _walk(descent)


def _walk(descent: "Descent") -> None:
    """Go on in cycles of two steps and an extrapolation (SQUAREM on log w) until it is over."""
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
    """Return the minimiser over the simplex of sum_d a_d / w_d^2 + c_d w_d with w >= `floor`.

    Where no channel is used at all, any single one will do: the first.
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
    """Return (a2 / (c + nu))^(1/3) with the one nu that makes the shares sum to 1.

    With h the sum, h^-3 is a power mean of functions linear in nu: concave and rising, so Newton
    from the left, where the largest share alone is 1, never overshoots. nu is counted from the
    smallest c, so that nothing cancels when a2 is tiny.
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
    """Return the SQUAREM leap on log w over the channels of `second`, None where it has no length.

    The step length ||r|| / ||v|| treats the two changes r and r + v of log w as one geometric
    series; the leap is only a proposal, F decides.
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
    """The way down so far. With `pinned`, no channel goes: w is held at the threshold instead."""

    point: Point
    tol: float
    max_solves: int
    pinned: bool = False
    min_decrease: float = 0.0
    """Where a step lowers F by less than this, it is the last."""
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
        """Solve the first ridge at `w`."""
        point = objective.at(w)
        return cls(point, tol, max_solves, pinned, min_decrease, [point.loss], [len(w)])

    @property
    def min_w(self) -> float:
        """The smallest w that a step may propose."""
        return THRESHOLD if self.pinned else 0.0

    @property
    def optimality_residual(self) -> float:
        """The optimality residual of the present point."""
        return self.point.optimality_residual(self.min_w)

    @property
    def exhausted(self) -> bool:
        """Whether every allowed ridge solve has been spent."""
        return len(self.widths) >= self.max_solves

    @property
    def slow(self) -> bool:
        """Whether the last step lowered F by less than it should."""
        return len(self.trace) > 1 and self.trace[-2] - self.trace[-1] < self.min_decrease

    @property
    def cost(self) -> int:
        """What the ridge solves have cost so far, the cube of the channels in each."""
        return sum(width**3 for width in self.widths)

    @property
    def over(self) -> bool:
        """Whether there is nothing left to do."""
        return self.stalled or self.exhausted or self.slow or self.optimality_residual <= self.tol

    @property
    def outcome(self) -> Outcome:
        """How it ended."""
        if self.optimality_residual <= self.tol:
            return Outcome.CONVERGED
        if self.slow:
            return Outcome.SLOW
        return Outcome.STALLED if self.stalled else Outcome.OUT_OF_SOLVES

    def try_step(self, w: Float[Tensor, " D"]) -> bool:
        """Move to `w` without its vanishing channels if F does not rise; say whether it moved."""
        large = w >= THRESHOLD
        if self.pinned or bool(large.all()):
            return self._try(self.point.objective, w)
        rest = w[large]
        return self._try(self.point.objective.restrict(large.nonzero()[:, 0]), rest / rest.sum())

    def step(self, w: Float[Tensor, " D"]) -> None:
        """Move to `w`, with its vanishing channels where F would rise without them; else stall."""
        if self.try_step(w) or self.exhausted:
            return
        vanishing = bool((w < THRESHOLD).any()) and not self.pinned
        positive = (w > 0).nonzero()[:, 0]
        if vanishing and self._try(self.point.objective.restrict(positive), w[positive]):
            return
        self.stalled = True

    def merge_near_copies(self) -> bool:
        """Give the weight of one near copy to the other where that lowers F; say whether it did.

        From a uniform start two channels that are almost alike share their weight, and where they
        do the gradient all but vanishes; only F itself tells that one of them is too many.
        """
        if self.pinned or self.outcome is not Outcome.CONVERGED:
            return False
        objective = self.point.objective
        likeness = objective.similarity().tril(-1)
        pairs = (likeness >= NEAR_COPY).nonzero()
        closest = likeness[pairs[:, 0], pairs[:, 1]].argsort(descending=True, stable=True)
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
        """Give up the channel of least weight where that lowers F; say whether it did.

        A minimum can keep a channel that F would rather not pay for: the entropy makes a wall in
        front of w = 0. Half of the solves are left for what follows.
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
    """Return the w of highest entropy, where every descent starts by default."""
    return torch.full((size,), 1 / size, dtype=torch.float64)
