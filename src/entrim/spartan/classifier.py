"""`eSPAClassifier`: the counterpart of SPARTAn for classification."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from entrim.spartan.base import BoxModel, Count, Number, check_positive
from entrim.spartan.task import Fit


@dataclass(frozen=True, slots=True, eq=False)
class Classification:
    """- eps_cl / T sum over rows of the logarithm of their class in the law of their box."""

    targets: Float[np.ndarray, "T M"]
    """1 for the class of a row, 0 for the others."""
    weights: Float[np.ndarray, " T"]
    """One per row, with mean 1."""
    eps_cl: float

    def fit(
        self,
        rows: Float[np.ndarray, "T n"],
        w: Float[np.ndarray, " D"],
        labels: Int[np.ndarray, " T"],
        boxes: int,
    ) -> Fit:
        """Return the class frequencies of every box; uniform for an empty box.

        A class that does not occur in a box has infinite cost there.
        """
        classes = self.targets.shape[1]
        laws = np.full((boxes, 1, classes), 1 / classes)
        for box in np.unique(labels):
            inside = labels == box
            counts = self.weights[inside] @ self.targets[inside]
            laws[box, 0] = counts / counts.sum()
        with np.errstate(divide="ignore"):
            surprise = -np.log(laws[:, 0])
        share = self.eps_cl / len(rows)
        costs = share * self.weights[:, None] * surprise.T[self.targets.argmax(1)]
        return Fit(laws, costs, 0.0, np.zeros(len(w)))


class eSPAClassifier(ClassifierMixin, BoxModel):  # noqa: N801 (the name of the method)
    """Classification by boxes of the feature space, with one importance per feature (eSPA+).

    Minimizes, over importances w on the simplex, class probabilities P, affiliations gamma and
    centers C::

        box_weight / (T K) sum_tdk w_d gamma_kt (x_dt - C_dk)^2  +  eps_w sum_d w_d log w_d
        - eps_cl / T sum_tk gamma_kt log P_k(class of t)

    in four closed-form steps; w is a softmax of the spread of each feature inside boxes. A new row
    has the class probabilities of the nearest box in the metric of w. Standardize the features.

    Parameters
    ----------
    n_boxes : int, default 5
        The number K of boxes; several per class if it consists of several clusters.
    eps_w : float, default 0.02
        Strength of the entropy; positive: small for few features, large to use many.
    eps_cl : float, default 1
        Strength of the classes relative to the box distance; positive.
    box_weight, n_init, tol, max_iter, random_state, block
        As in `SPARTAnRegressor`.

    Attributes
    ----------
    classes_ : array of shape (M,)
        The classes.
    box_proba_ : array of shape (K, M)
        The class probabilities of each box.
    w_ : array of shape (n_features / block,)
        Importances. This and all others are as in `SPARTAnRegressor`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(200, 50))
    >>> x[:, :2] += 6 * np.sign(x[:, :2])  # four clouds, opposite ones of one class
    >>> model = eSPAClassifier(n_boxes=4, random_state=0).fit(x, x[:, 0] * x[:, 1] > 0)
    >>> sorted(np.argsort(model.w_)[-2:].tolist()), model.score(x, x[:, 0] * x[:, 1] > 0)
    ([0, 1], 1.0)
    """

    def __init__(
        self,
        n_boxes: Count = 5,
        eps_w: Number = 0.02,
        eps_cl: Number = 1.0,
        box_weight: Number = 1.0,
        n_init: Count = 10,
        tol: Number = 1e-3,
        max_iter: Count = 300,
        random_state: Any = None,
        block: Count = 1,
    ) -> None:
        self.n_boxes = n_boxes
        self.eps_w = eps_w
        self.eps_cl = eps_cl
        self.box_weight = box_weight
        self.n_init = n_init
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.block = block

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "eSPAClassifier":
        """Fit boxes, importances and class probabilities to rows X (T, n) and classes y (T,)."""
        check_positive("eps_w", self.eps_w, "without it all weight is on one feature; try 0.02")
        check_positive("eps_cl", self.eps_cl, "try 1")
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        one_hot = np.eye(len(self.classes_))[codes]
        descent = self._search(X, one_hot, sample_weight, self._classification)
        self.box_proba_ = descent.point.fit.values[self._occupied, 0]
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the class probabilities of the box of each row."""
        check_is_fitted(self)
        return self.box_proba_[self.apply(X)]

    def predict(self, X: Any) -> np.ndarray:
        """Return the most frequent class in the box of each row."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    def _classification(
        self, rows: np.ndarray, targets: np.ndarray, weights: np.ndarray
    ) -> Classification:
        return Classification(targets, weights, float(self.eps_cl))
