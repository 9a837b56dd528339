"""Ridge regression in each box, in the primal or dual form, whichever is smaller."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import cho_factor, cho_solve

from entrim.spartan.task import Fit

EPS64 = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True, eq=False)
class Regression:
    """eps_l2 ||L||^2 + eps_r / (T M) sum over rows of their box's squared error.

    ||L||^2 is without the intercepts, unless they are penalized too.
    """

    targets: Float[np.ndarray, "T M"]
    weights: Float[np.ndarray, " T"]
    """One per row, with mean 1."""
    eps_l2: float
    eps_r: float
    block: int = 1
    penalize_intercept: bool = False

    @property
    def share(self) -> float:
        """Cost of a unit of squared error: eps_r / (T M)."""
        return self.eps_r / self.targets.size

    def above_rounding(self, rows: Float[np.ndarray, "T n"]) -> "Regression":
        """Return the same task with a ridge above rounding error."""
        energy = max(float((self.weights @ np.square(rows)).max()), float(len(rows)))
        floor = EPS64 * (rows.shape[1] + 1) * energy * self.share
        if self.eps_l2 >= floor:
            return self
        return replace(self, eps_l2=floor)

    def fit(
        self,
        rows: Float[np.ndarray, "T n"],
        w: Float[np.ndarray, " D"],
        labels: Int[np.ndarray, " T"],
        boxes: int,
    ) -> Fit:
        """Return U' = S L' of every box; 0 for an empty box."""
        scale = np.concatenate([[1.0], np.repeat(w, self.block)])
        scaled = np.concatenate([np.ones((len(rows), 1)), rows], axis=1) * scale
        L = np.zeros((boxes, len(scale), self.targets.shape[1]))
        for box in np.unique(labels):
            inside = labels == box
            L[box] = self._fit_box(scaled[inside], self.targets[inside], self.weights[inside])
        errors = [np.square(self.targets - scaled @ regression).sum(1) for regression in L]
        costs = self.share * self.weights[:, None] * np.stack(errors, axis=1)
        norms = np.square(L).sum((0, 2))
        pull = self.eps_l2 * norms[1:].reshape(-1, self.block).sum(1) * np.square(w)
        penalized = norms if self.penalize_intercept else norms[1:]
        return Fit(L * scale[:, None], costs, self.eps_l2 * float(penalized.sum()), pull)

    def _fit_box(
        self,
        rows: Float[np.ndarray, "r n1"],
        targets: Float[np.ndarray, "r M"],
        weights: Float[np.ndarray, " r"],
    ) -> Float[np.ndarray, "n1 M"]:
        """Return L' of one box; a free intercept moves the weighted means of its rows to zero."""
        root, strength = np.sqrt(weights)[:, None], self.eps_l2 / self.share
        if self.penalize_intercept:
            return ridge(rows * root, targets * root, strength)
        middle, target = (weights @ values / weights.sum() for values in (rows[:, 1:], targets))
        slopes = ridge((rows[:, 1:] - middle) * root, (targets - target) * root, strength)
        return np.concatenate([(target - middle @ slopes)[None], slopes])


def ridge(
    A: Float[np.ndarray, "r n1"], Y: Float[np.ndarray, "r M"], strength: float
) -> Float[np.ndarray, "n1 M"]:
    """Return the minimizer of ||Y - A L||^2 + strength ||L||^2.

    (A'A + s I)^-1 A'Y = A'(AA' + s I)^-1 Y: the smaller of the two systems is solved.
    """
    dual = len(A) < A.shape[1]
    system = A @ A.T if dual else A.T @ A
    system.flat[:: len(system) + 1] += strength
    factor = cho_factor(system, lower=True, overwrite_a=True, check_finite=False)
    if dual:
        return A.T @ cho_solve(factor, Y, check_finite=False)
    return cho_solve(factor, A.T @ Y, check_finite=False)
