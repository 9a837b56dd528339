"""`SPARTAnSelector`: the features that a SPARTAn regression keeps, as a step of a pipeline."""

from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.feature_selection import SelectorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from entrim.errors import BadSettingError
from entrim.spartan.base import Count, Flag, Number
from entrim.spartan.descent import THRESHOLD
from entrim.spartan.regressor import SPARTAnRegressor


class SPARTAnSelector(SelectorMixin, BaseEstimator):
    """Keeps the features that `SPARTAnRegressor` gives an importance of at least 1e-6.

    Parameters
    ----------
    max_features : int, optional
        Keeps at most this many features (or blocks), those of the largest importance. With a
        positive `eps_w`, for which no importance is 0, this is the way to select.
    **others
        As in `SPARTAnRegressor`, which is fitted as `estimator_`. `n_boxes=1` finds linear, more
        boxes find piecewise linear dependence. With `block`, this many adjacent columns are kept
        or removed together.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(200, 50))
    >>> SPARTAnSelector(random_state=0).fit_transform(x, abs(x[:, 7])).shape
    (200, 1)
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
        max_features: Count | None = None,
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
        self.max_features = max_features

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "SPARTAnSelector":
        """Fit the regression whose features are kept."""
        most = self.max_features
        if most is not None and (not isinstance(most, Integral) or most < 1):
            raise BadSettingError(f"max_features must be None or a positive integer, got {most!r}")
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        settings = {k: v for k, v in self.get_params().items() if k != "max_features"}
        self.estimator_ = SPARTAnRegressor(**settings).fit(X, y, sample_weight)
        self.n_iter_ = self.estimator_.n_iter_
        return self

    def _get_support_mask(self) -> Any:
        check_is_fitted(self)
        w = self.estimator_.w_
        chosen = w >= THRESHOLD
        if self.max_features is not None:
            ranks = np.argsort(np.argsort(-w, kind="stable"), kind="stable")
            chosen &= ranks < self.max_features
        return np.repeat(chosen, self.block)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        return tags
