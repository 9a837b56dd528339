"""The paper's own alternation: a ridge in Lambda, then a general solver in w.

SciPy's SLSQP stands in for Matlab's fmincon. Faithful and slow; kept to measure the fast method by.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from entrim.errors import MissingExtraError
from entrim.solver.descent import Descent
from entrim.solver.objective import Point

LOWEST = 1e-12
"""Where w stops short of 0, so that log w exists."""


def descend(descent: Descent) -> None:
    """Alternate the two steps until the certificate or F stands still."""
    while not descent.over:
        w = w_step(descent.point, max(LOWEST, descent.floor))
        if torch.equal(w, descent.point.w):
            descent.stalled = True
            return
        descent.step(w)


def w_step(point: Point, lowest: float) -> Float[Tensor, " D"]:
    """Return a w on the simplex with a smaller w'Hw - 2 b'w + eps_w sum w log w, L fixed.

    Not convex, because eps_w < 0. Where SLSQP finds nothing better, w itself.
    """
    try:
        from scipy.optimize import minimize
    except ImportError as error:
        raise MissingExtraError('method="reference"', "scipy", "compare") from error
    H, b = (term.numpy() for term in point.quadratic())
    eps_w = point.objective.eps_w

    def value(w: np.ndarray) -> float:
        return float(w @ H @ w - 2 * b @ w + eps_w * np.sum(w * np.log(w)))

    def slope(w: np.ndarray) -> np.ndarray:
        return 2 * (H @ w - b) + eps_w * (np.log(w) + 1)

    start = point.w.numpy()
    found = minimize(
        value,
        start,
        jac=slope,
        method="SLSQP",
        bounds=[(lowest, 1.0)] * len(start),
        constraints={
            "type": "eq",
            "fun": lambda w: w.sum() - 1,
            "jac": lambda w: np.ones_like(w),
        },
        options={"maxiter": 100, "ftol": 1e-9},
    )
    w = np.clip(found.x, lowest, 1.0)
    w /= w.sum()
    return torch.from_numpy(w) if value(w) < value(start) else point.w
