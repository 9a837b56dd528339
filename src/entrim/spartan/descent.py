"""Alternate the steps in gamma, C, w and Lambda until the optimality residual is small.

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
"""Threshold for a maximum-entropy w, which has no exact zeros."""


@dataclass(frozen=True, eq=False)
class Problem:
    """The loss F of rows in boxes, on the remaining features."""

    rows: Float[np.ndarray, "T n"]
    weights: Float[np.ndarray, " T"]
    """One per row, with mean 1."""
    task: BoxTask
    boxes: int
    eps_w: float
    box_weight: float
    block: int = 1

    @property
    def box_share(self) -> float:
        """Cost of a unit of squared box distance: box_weight / (T K)."""
        return self.box_weight / (len(self.rows) * self.boxes)

    @property
    def threshold(self) -> float:
        """The importance below which a feature is removed."""
        return THRESHOLD if self.eps_w <= 0 else VANISHED

    def columns(self, features: Int[np.ndarray, " k"]) -> Int[np.ndarray, " n"]:
        """Return the columns of `features`, `block` to each."""
        return (features[:, None] * self.block + np.arange(self.block)).ravel()

    def at(
        self,
        features: Int[np.ndarray, " D"],
        w: Float[np.ndarray, " D"],
        labels: Int[np.ndarray, " T"],
        centers: Float[np.ndarray, "K n"],
    ) -> "Point":
        """Return the Lambda-step at these importances, affiliations and centers."""
        rows = self.rows[:, self.columns(features)]
        fit = self.task.fit(rows, w, labels, self.boxes)
        return Point(self, features, rows, w, labels, centers, fit)

    def start(self, w: Float[np.ndarray, " D"], labels: Int[np.ndarray, " T"]) -> "Point":
        """Return the point of a w over all features, zeros left out, and given affiliations."""
        features = np.flatnonzero(w)
        rows = self.rows[:, self.columns(features)]
        middle = np.repeat(self.weights[None] @ rows / len(rows), self.boxes, axis=0)
        centers = boxes.center(rows, self.weights, labels, middle)
        return self.at(features, w[features] / w[features].sum(), labels, centers)


@dataclass(frozen=True, eq=False)
class Point:
    """The four variables, on the remaining features, and derived quantities."""

    problem: Problem
    features: Int[np.ndarray, " D"]
    rows: Float[np.ndarray, "T n"]
    w: Float[np.ndarray, " D"]
    labels: Int[np.ndarray, " T"]
    centers: Float[np.ndarray, "K n"]
    fit: Fit

    @cached_property
    def costs(self) -> Float[np.ndarray, "T K"]:
        """Contribution of each row to F in each box."""
        far = boxes.distances(self.rows, self.centers, np.repeat(self.w, self.problem.block))
        return self.problem.box_share * self.problem.weights[:, None] * far + self.fit.costs

    @cached_property
    def loss(self) -> float:
        """The objective F."""
        own = float(self.costs[np.arange(len(self.labels)), self.labels].sum())
        return own + self.problem.eps_w * float(xlogy(self.w, self.w).sum()) + self.fit.penalty

    @cached_property
    def price(self) -> Float[np.ndarray, " D"]:
        """b_d: the cost of a unit of w_d in box distance."""
        p = self.problem
        spread = boxes.spreads(self.rows, p.weights, self.labels, self.centers)
        return p.box_share * spread.reshape(-1, p.block).sum(1)

    @cached_property
    def new_labels(self) -> Int[np.ndarray, " T"]:
        """The gamma-step: the affiliations after it."""
        return boxes.affiliate(self.costs, self.labels)

    @cached_property
    def optimality_residual(self) -> float:
        """The relative optimality residual; 1 if a row has a better box.

        At a minimum the gradient -2 a_d / w_d^3 + b_d + eps_w (log w_d + 1) has the same value for
        all remaining features. If the curvature is negative for two features,
        6 a_d / w_d^4 < |eps_w| / w_d, moving weight between them decreases F; the residual is 1.
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
        """Return the point after all four steps; None if F does not decrease.

        Features that vanish in the w-step are removed, unless F increases without them.
        """
        p = self.problem
        centers = boxes.center(self.rows, p.weights, self.new_labels, self.centers)
        between = replace(self, labels=self.new_labels, centers=centers)
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
        """Return the point without its least important feature; None if F does not decrease.

        At a local minimum F may be lower without a feature, because the entropy term is a barrier
        near w = 0.
        """
        if len(self.w) == 1 or self.problem.eps_w >= 0:
            return None
        left = np.arange(len(self.w)) != self.w.argmin()
        after = self.restrict(left, self.w[left] / self.w[left].sum())
        return after if after.loss < self.loss else None

    def restrict(self, left: np.ndarray, w: Float[np.ndarray, " k"]) -> "Point":
        """Return the Lambda-step at `w` on the features `left` of this point."""
        columns = np.repeat(left, self.problem.block)
        return self.problem.at(self.features[left], w, self.labels, self.centers[:, columns])


class Outcome(Enum):
    """How a descent ended; the value is the message for the user."""

    CONVERGED = "converged: the optimality residual is at most tol"
    OUT_OF_SWEEPS = "stopped at max_iter above tol: raise max_iter, or tol"
    STALLED = "stopped above tol: F no longer decreases in double precision"


@dataclass(frozen=True, slots=True, eq=False)
class Descent:
    """The result of a descent: final point, values of F, and outcome."""

    point: Point
    trace: tuple[float, ...]
    """F after every sweep; it never increases."""
    outcome: Outcome


def descend(point: Point, tol: float, max_iter: int) -> Descent:
    """Sweep until the residual is at most `tol`, then remove features while F decreases."""
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
