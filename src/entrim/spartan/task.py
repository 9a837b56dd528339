"""Interface of the task that is fitted in every box."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """The best answer of a task for given importances and affiliations."""

    values: Float[np.ndarray, "K n1 M"]
    """Fitted values of each box: U' of a regression, or class probabilities."""
    costs: Float[np.ndarray, "T K"]
    """Contribution of each row to F in each box."""
    penalty: float
    """The ridge term, which does not depend on the affiliations."""
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
        """Return the Lambda-step: the minimizer of the terms of the task in F."""
        ...

    @property
    def targets(self) -> Float[np.ndarray, "T M"]:
        """The targets as numbers; starts rank features by them."""
        ...
