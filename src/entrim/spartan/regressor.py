"""`SPARTAnRegressor`: a regression that is linear in boxes and sparse in features."""

from typing import Any

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import validate_data

from entrim.spartan.base import BoxModel, Count, Flag, Number, check_positive
from entrim.spartan.regression import Regression


class SPARTAnRegressor(RegressorMixin, MultiOutputMixin, BoxModel):
    """Piecewise-linear regression on few features: K boxes, one importance w per feature.

    Minimizes, over importances w on the simplex, regressions L, affiliations gamma and centers C::

        box_weight / (T K) sum_tdk w_d gamma_kt (x_dt - C_dk)^2  +  eps_w sum_d w_d log w_d
        + eps_l2 ||L||^2  +  eps_r / (T M) sum_tk gamma_kt ||y_t - L_0k - sum_d w_d L_dk x_dt||^2

    in four alternating steps. A new row belongs to the nearest box in the metric of w. Features
    are used with their scale: standardize them, and the target too if its variance is far from 1.

    Parameters
    ----------
    n_boxes : int, default 2
        The number K of boxes; 1 is a sparse linear regression.
    eps_w : float, default -0.02
        Strength of the entropy; negative for few features, positive to use many.
    eps_l2 : float, default 1e-3
        Strength of the ridge; positive.
    eps_r : float, default 10
        Strength of the fit relative to the box distance; positive.
    box_weight : float, default 1
        Strength of the box distance; with 0, only the fit determines the boxes.
    n_init : int, default 10
        Number of descents from different starts; the lowest loss is used.
    tol : float, default 1e-3
        The optimality residual at which a descent ends.
    max_iter : int, default 300
        Maximum number of sweeps of the four steps in a descent.
    random_state : int, RandomState or None
        An integer makes the fit repeatable.
    block : int, default 1
        Adjacent columns that are kept or removed together; each block has one importance.
    penalize_intercept : bool, default False
        Include the intercepts in the ridge, as for the layers of a network. Their sum in the loss
        of the paper begins after them.

    Attributes
    ----------
    w_ : array of shape (n_features / block,)
        Importances; exactly 0 for removed features.
    feature_importances_ : array of shape (n_features,)
        The same for every column.
    coef_ : array of shape (K, M, n_features)
        The regressions in the boxes; without M for a 1-D target.
    intercept_ : array of shape (K, M)
        Their intercepts.
    centers_ : array of shape (K, n_features)
        The box centers.
    labels_ : array of shape (n_samples,)
        The box of each training row.
    loss_ : float
        The lowest loss.
    trace_ : array
        The loss after every sweep of the best descent.
    optimality_residual_ : float
        Its optimality residual.
    status_ : str
        How it ended.
    n_iter_ : int
        The number of its sweeps.
    n_boxes_ : int
        The number of boxes that are not empty: K in the shapes above.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(200, 50))
    >>> model = SPARTAnRegressor(n_boxes=2, random_state=0).fit(x, abs(x[:, 7]))
    >>> np.flatnonzero(model.w_).tolist(), np.round(model.coef_[:, 7].prod())
    ([7], np.float64(-1.0))
    """

    def __init__(
        self,
        n_boxes: Count = 2,
        eps_w: Number = -0.02,
        eps_l2: Number = 1e-3,
        eps_r: Number = 10.0,
        box_weight: Number = 1.0,
        n_init: Count = 10,
        tol: Number = 1e-3,
        max_iter: Count = 300,
        random_state: Any = None,
        block: Count = 1,
        penalize_intercept: Flag = False,
    ) -> None:
        self.n_boxes = n_boxes
        self.eps_w = eps_w
        self.eps_l2 = eps_l2
        self.eps_r = eps_r
        self.box_weight = box_weight
        self.n_init = n_init
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.block = block
        self.penalize_intercept = penalize_intercept

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "SPARTAnRegressor":
        """Fit boxes, importances and regressions to rows X (T, n) and targets y (T,) or (T, M).

        Sample weights are equivalent to repeating samples; only their ratios matter.
        """
        check_positive(
            "eps_l2", self.eps_l2, "without it the scales of w and L are not unique; try 1e-3"
        )
        check_positive("eps_r", self.eps_r, "try 10")
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        targets = np.asarray(y, dtype=np.float64).reshape(len(X), -1)
        point = self._search(X, targets, sample_weight, self._regression).point
        self._note_ridge(point.problem.task)
        shape = (self.n_boxes_, targets.shape[1], X.shape[1])
        coefficients = np.zeros(shape)
        U = point.fit.values[self._occupied]
        coefficients[:, :, point.problem.columns(point.features)] = U[:, 1:].transpose(0, 2, 1)
        self.coef_ = coefficients if y.ndim == 2 else coefficients[:, 0]
        self.intercept_ = U[:, 0] if y.ndim == 2 else U[:, 0, 0]
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the linear prediction of each row's box."""
        rows = self._rows(X)
        box = self._nearest(rows)
        predicted = np.empty((len(rows), *self.intercept_.shape[1:]))
        for k in np.unique(box):
            inside = box == k
            predicted[inside] = rows[inside] @ self.coef_[k].T + self.intercept_[k]
        return predicted

    def _regression(self, rows: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> Regression:
        task = Regression(
            targets,
            weights,
            float(self.eps_l2),
            float(self.eps_r),
            self.block,
            bool(self.penalize_intercept),
        )
        return task.above_rounding(rows)

    def _note_ridge(self, task: Any) -> None:
        if task.eps_l2 > self.eps_l2:
            self.status_ += (
                f"; ridge raised above rounding error: {task.eps_l2:.1e} instead of eps_l2 = "
                f"{self.eps_l2:.1e}"
            )
