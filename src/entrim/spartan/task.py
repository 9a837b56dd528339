"""What the boxes are for: a task fits something in every box and says what it costs each row."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """The best answer of a task for given importances and affiliations."""

    values: Float[np.ndarray, "K n1 M"]
    """What was fitted in each box: U' of a regression, the one row of a law of classes."""
    costs: Float[np.ndarray, "T K"]
    """What each row would add to F in each box."""
    penalty: float
    """What F pays whatever the affiliations: the ridge."""
    ridge_energy: Float[np.ndarray, " D"]
    """The a_d: the ridge is a_d / w_d^2 for fixed U."""


@runtime_checkable
class BoxTask(Protocol):
    """A regression or a classification inside boxes."""

    def fit(
        self,
        rows: Float[np.ndarray, "T n"],
        w: Float[np.ndarray, " D"],
        labels: Int[np.ndarray, " T"],
        boxes: int,
    ) -> Fit:
        """Return the Lambda-step: the minimiser of the task's terms of F, all else fixed."""
        ...

    @property
    def targets(self) -> Float[np.ndarray, "T M"]:
        """What is to be explained, as numbers; the start ranks features by it."""
        ...
