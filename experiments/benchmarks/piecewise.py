"""Piecewise-linear problems with a few true features among many others."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

Boxes = Literal["separate", "touching"]
TRUE, PIECES, NOISE, HOLDOUT = 4, 3, 0.1, 2000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """Noisy training rows, and test rows without noise; the variance of f is 1."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    f_test: np.ndarray
    pieces: np.ndarray
    """The true piece of each training row."""


def piecewise(boxes: Boxes, seed: int, rows: int, features: int) -> Problem:
    """Return rows in which the first four features matter: a linear map in each of three boxes.

    Centers are normal with deviation 1.5 in the four true features. `separate`: each box is a cloud
    of deviation 0.5 around its center. `touching`: features are standard normal, and a row belongs
    to the nearest center. Slopes and intercepts are standard normal, so the map jumps between
    boxes. All other features are standard normal.
    """
    random = np.random.default_rng(seed)
    total = rows + HOLDOUT
    x = random.standard_normal((total, features))
    centers = 1.5 * random.standard_normal((PIECES, TRUE))
    if boxes == "separate":
        piece = random.integers(0, PIECES, total)
        x[:, :TRUE] = centers[piece] + 0.5 * x[:, :TRUE]
    else:
        piece = np.square(x[:, None, :TRUE] - centers).sum(-1).argmin(1)
    slopes = random.standard_normal((PIECES, TRUE))
    f = random.standard_normal(PIECES)[piece] + (x[:, :TRUE] * slopes[piece]).sum(1)
    f = (f - f.mean()) / f.std()
    y = f + NOISE * random.standard_normal(total)
    return Problem(x=x[:rows], y=y[:rows], x_test=x[rows:], f_test=f[rows:], pieces=piece[:rows])
