"""Classification in boxes: the class frequencies of each box."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

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
