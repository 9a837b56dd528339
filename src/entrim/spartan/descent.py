"""The four steps, gamma, C, w and Lambda, taken in turn: F never rises, a certificate ends it.

F = box_weight / (T K) sum_tdk w_d gamma_kt (x_dt - C_dk)^2  +  eps_w sum_d w_d log w_d  +  task
"""

from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int
from scipy.special import xlogy

from entrim.spartan import boxes
from entrim.spartan.importance import w_step
from entrim.spartan.task import BoxTask, Fit

THRESHOLD = 1e-6
"""A feature below this importance is not selected (the paper's value)."""
VANISHED = 1e-100
"""Where a maximum-entropy w, which has no zeros, is 0 for every purpose."""


@dataclass(frozen=True, eq=False)
class Problem:
    """The loss F of rows in boxes, on the features that are left."""

    rows: Float[np.ndarray, "T n"]
    weights: Float[np.ndarray, " T"]
    """One a row, of mean 1."""
    task: BoxTask
    boxes: int
    eps_w: float
    box_weight: float
    block: int = 1

    @property
    def box_share(self) -> float:
        """What a unit of squared box distance costs: box_weight / (T K)."""
        return self.box_weight / (len(self.rows) * self.boxes)

    @property
    def threshold(self) -> float:
        """The importance below which a feature goes; with a maximum-entropy w none does."""
        return THRESHOLD if self.eps_w <= 0 else VANISHED

    def columns(self, features: Int[np.ndarray, " k"]) -> Int[np.ndarray, " n"]:
        """Return the columns of `features`, `block` to each."""
        return (features[:, None] * self.block + np.arange(self.block)).ravel()

    def at(
        self,
        features: Int[np.ndarray, " D"],
        w: Float[np.ndarray, " D"],
        labels: Int[np.ndarray, " T"],
        centres: Float[np.ndarray, "K n"],
    ) -> "Point":
        """Return the Lambda-step at these importances, affiliations and centres."""
        rows = self.rows[:, self.columns(features)]
        fit = self.task.fit(rows, w, labels, self.boxes)
        return Point(self, features, rows, w, labels, centres, fit)

    def start(self, w: Float[np.ndarray, " D"], labels: Int[np.ndarray, " T"]) -> "Point":
        """Return the point of a w over all features, zeros left out, and given affiliations."""
        features = np.flatnonzero(w)
        rows = self.rows[:, self.columns(features)]
        middle = np.repeat(self.weights[None] @ rows / len(rows), self.boxes, axis=0)
        centres = boxes.centre(rows, self.weights, labels, middle)
        return self.at(features, w[features] / w[features].sum(), labels, centres)


@dataclass(frozen=True, eq=False)
class Point:
    """The four variables, on the features that are left, and what follows from them."""

    problem: Problem
    features: Int[np.ndarray, " D"]
    rows: Float[np.ndarray, "T n"]
    w: Float[np.ndarray, " D"]
    labels: Int[np.ndarray, " T"]
    centres: Float[np.ndarray, "K n"]
    fit: Fit

    @cached_property
    def costs(self) -> Float[np.ndarray, "T K"]:
        """What each row would add to F in each box."""
        far = boxes.distances(self.rows, self.centres, np.repeat(self.w, self.problem.block))
        return self.problem.box_share * self.problem.weights[:, None] * far + self.fit.costs

    @cached_property
    def loss(self) -> float:
        """The objective F."""
        own = float(self.costs[np.arange(len(self.labels)), self.labels].sum())
        return own + self.problem.eps_w * float(xlogy(self.w, self.w).sum()) + self.fit.penalty

    @cached_property
    def price(self) -> Float[np.ndarray, " D"]:
        """The b_d: what a unit of w_d costs in box distance."""
        p = self.problem
        spread = boxes.spreads(self.rows, p.weights, self.labels, self.centres)
        return p.box_share * spread.reshape(-1, p.block).sum(1)

    @cached_property
    def new_labels(self) -> Int[np.ndarray, " T"]:
        """The gamma-step: the affiliations after it."""
        return boxes.affiliate(self.costs, self.labels)

    @cached_property
    def optimality_residual(self) -> float:
        """The optimality residual, relative and dimensionless; 1 while a row wants another box.

        The gradient -2 a_d / w_d^3 + b_d + eps_w (log w_d + 1) must be one common number on the
        features that are left. Where two of them both curve down, 6 a_d / w_d^4 < |eps_w| / w_d,
        moving weight from one to the other lowers F: 1 there too.
        """
        if not np.array_equal(self.new_labels, self.labels):
            return 1.0
        eps_w = self.problem.eps_w
        pull = 2 * self.fit.ridge_energy / self.w**3
        slope = self.price + eps_w * (np.log(self.w) + 1)
        if np.count_nonzero(3 * pull < -eps_w) > 1:
            return 1.0
        size = float((pull + np.abs(slope)).max())
        return float(np.ptp(slope - pull)) / size if size > 0 else 0.0

    def sweep(self) -> "Point | None":
        """Return the point after all four steps; None where F no longer falls.

        Without the features that vanish in the w-step, unless F would rise without them.
        """
        p = self.problem
        centres = boxes.centre(self.rows, p.weights, self.new_labels, self.centres)
        between = replace(self, labels=self.new_labels, centres=centres)
        w = w_step(self.fit.ridge_energy, between.price, self.w, p.eps_w)
        for lowest in (p.threshold, 0.0):
            left = w > lowest
            after = between.restrict(left, w[left] / w[left].sum())
            if after.loss <= self.loss:
                return after
            if (w[w > 0] > p.threshold).all():
                break
        return None

    def without_least(self) -> "Point | None":
        """Return the point without its least feature; None where F does not fall so.

        A minimum can keep a feature that F would rather not pay for: the entropy makes a wall in
        front of w = 0.
        """
        if len(self.w) == 1 or self.problem.eps_w >= 0:
            return None
        left = np.arange(len(self.w)) != self.w.argmin()
        after = self.restrict(left, self.w[left] / self.w[left].sum())
        return after if after.loss < self.loss else None

    def restrict(self, left: np.ndarray, w: Float[np.ndarray, " k"]) -> "Point":
        """Return the Lambda-step at `w` on the features `left` of this point."""
        columns = np.repeat(left, self.problem.block)
        return self.problem.at(self.features[left], w, self.labels, self.centres[:, columns])


class Outcome(Enum):
    """How a descent ended; the value is the sentence for the user."""

    CONVERGED = "converged: the optimality residual is at most tol"
    OUT_OF_SWEEPS = "stopped at max_iter above tol: raise max_iter, or tol"
    STALLED = "stopped above tol: F no longer falls in double precision"


@dataclass(frozen=True, slots=True, eq=False)
class Descent:
    """A way down: where it ended, how F fell, and why it ended."""

    point: Point
    trace: tuple[float, ...]
    """F after every sweep; it never rises."""
    outcome: Outcome


def descend(point: Point, tol: float, max_iter: int) -> Descent:
    """Sweep until the certificate is at most `tol`; then give up features while F falls."""
    trace = [point.loss]
    while len(trace) <= max_iter:
        done = point.optimality_residual <= tol
        further = point.without_least() if done else point.sweep()
        if further is None:
            return Descent(point, tuple(trace), Outcome.CONVERGED if done else Outcome.STALLED)
        point = further
        trace.append(point.loss)
    outcome = Outcome.CONVERGED if point.optimality_residual <= tol else Outcome.OUT_OF_SWEEPS
    return Descent(point, tuple(trace), outcome)
