"""Base class of the estimators: validation of parameters and fitting of boxes."""

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from entrim.errors import BadRowsError, BadSettingError, warn
from entrim.spartan import boxes
from entrim.spartan.descent import Descent, Outcome, Problem
from entrim.spartan.search import search
from entrim.spartan.task import BoxTask

if TYPE_CHECKING:
    Count = int
    Number = float
    Flag = bool
else:
    Count = Any  # other types raise an error of entrim in `fit`, with a remedy
    Number = Any
    Flag = Any
MakeTask = Callable[[np.ndarray, np.ndarray, np.ndarray], BoxTask]
"""Returns the task for sorted rows, targets and weights of samples with positive weight."""


class BoxModel(BaseEstimator):
    """Boxes of the feature space with importances of the features, fitted for a task."""

    n_boxes: Count
    eps_w: Number
    box_weight: Number
    n_init: Count
    tol: Number
    max_iter: Count
    random_state: Any
    block: Count
    status_: str

    def apply(self, X: Any) -> np.ndarray:
        """Return the index of the nearest box of each row, in the metric of the importances."""
        return self._nearest(self._rows(X))

    @property
    def feature_importances_(self) -> np.ndarray:
        """The importance w of each column's feature, (n_features,)."""
        check_is_fitted(self)
        return np.repeat(self.w_, self.block)

    def _rows(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return np.asarray(validate_data(self, X, reset=False, dtype=np.float64))

    def _nearest(self, X: np.ndarray) -> np.ndarray:
        scale = self.feature_importances_
        used = scale > 0
        return boxes.distances(X[:, used], self.centers_[:, used], scale[used]).argmin(1)

    def _search(
        self, X: np.ndarray, targets: np.ndarray, sample_weight: Any, make_task: MakeTask
    ) -> Descent:
        """Fit the boxes, set the common attributes, and return the best descent."""
        weights = _checked_weights(sample_weight, X)
        counts = np.flatnonzero(weights > 0)
        self._check_settings(len(counts), X.shape[1])
        order = counts[_own_order(X[counts], targets[counts])]
        rows = X[order]
        weights = weights[order] / weights[order].mean()
        problem = Problem(
            rows,
            weights,
            make_task(rows, targets[order], weights),
            self.n_boxes,
            float(self.eps_w),
            float(self.box_weight),
            self.block,
        )
        random = check_random_state(self.random_state)
        descent = search(problem, self.n_init, self.tol, self.max_iter, random)
        self._keep(descent, rows, weights)
        self.labels_ = self._nearest(X)
        self.labels_[order] = np.searchsorted(self._occupied, descent.point.labels)
        if descent.outcome is not Outcome.CONVERGED:
            warn(self.status_, ConvergenceWarning)
        return descent

    def _keep(self, descent: Descent, rows: np.ndarray, weights: np.ndarray) -> None:
        point = descent.point
        self._occupied = np.unique(point.labels)
        self.n_boxes_ = len(self._occupied)
        self.w_ = np.zeros(rows.shape[1] // self.block)
        self.w_[point.features] = point.w
        empty = np.zeros((self.n_boxes, rows.shape[1]))
        self.centers_ = boxes.center(rows, weights, point.labels, empty)[self._occupied]
        self.loss_ = point.loss
        self.optimality_residual_ = point.optimality_residual
        self.trace_ = np.array(descent.trace)
        self.n_iter_ = len(descent.trace) - 1
        self.status_ = descent.outcome.value

    def _check_settings(self, rows: int, columns: int) -> None:
        for name in ("n_boxes", "n_init", "max_iter", "block"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or value < 1:
                raise BadSettingError(f"{name} must be a positive integer, got {value!r}")
        check_number("eps_w", self.eps_w, -math.inf, "try -0.01")
        check_number("box_weight", self.box_weight, 0.0, "the paper uses 1")
        check_positive("tol", self.tol, "try 1e-3")
        if self.n_boxes > rows:
            raise BadSettingError(
                f"n_samples={rows} (of positive weight) should be >= n_boxes={self.n_boxes}: "
                "reduce n_boxes"
            )
        if columns % self.block:
            raise BadSettingError(
                f"the number of features must be a multiple of block={self.block}, the number of "
                f"columns that are selected together, got {columns}"
            )


def check_number(name: str, value: Any, minimum: float, remedy: str) -> None:
    """Raise a BadSettingError unless `value` is a finite number of at least `minimum`."""
    if (
        not isinstance(value, Real)
        or not minimum <= float(value)
        or not math.isfinite(float(value))
    ):
        raise BadSettingError(
            f"{name} must be a finite number >= {minimum}, got {value!r}; {remedy}"
        )


def check_positive(name: str, value: Any, remedy: str) -> None:
    """Raise a BadSettingError unless `value` is a positive, finite number."""
    if not isinstance(value, Real) or not 0 < float(value) < math.inf:
        raise BadSettingError(f"{name} must be positive, got {value!r}; {remedy}")


def _checked_weights(sample_weight: Any, X: np.ndarray) -> np.ndarray:
    weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
    if (weights < 0).any() or not (weights > 0).any():
        raise BadRowsError(
            "sample_weight must not be negative, and must be positive for some samples"
        )
    return weights


def _own_order(X: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return an order of the rows that does not depend on their given order.

    Starts are drawn from the rows. With this order, neither shuffling nor repeating a sample
    instead of weighting it changes the result.
    """
    random = np.random.RandomState(0)
    return np.argsort(
        X @ random.normal(size=X.shape[1]) + targets @ random.normal(size=targets.shape[1])
    )
