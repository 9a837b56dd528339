"""The best of several descents from different starts, because F has many minima."""

import numpy as np
from jaxtyping import Float

from entrim.spartan import boxes
from entrim.spartan.descent import Descent, Problem, descend

DEGREE = 3
"""Degree of the polynomials that rank features for the start."""
TINY = float(np.finfo(np.float64).tiny)
JITTER = 0.1
"""Relative perturbation of the initial w, to separate copies of a feature."""


def search(
    problem: Problem, n_init: int, tol: float, max_iter: int, random: np.random.RandomState
) -> Descent:
    """Return the descent to the lowest F among `n_init` of them.

    The first starts from the uniform w, as the paper's. Those after it start half from the uniform
    w and half, in turn, from how much each feature explains on its own and from the best w so far;
    their boxes are seeded in the metric of that other half.
    """
    live = varying(problem)
    flat = live / live.sum()
    alone = solo_scores(problem) * live
    best: Descent | None = None
    for number in range(n_init):
        if best is None:
            w = metric = flat
        else:
            metric = _spread_out(best, len(flat)) if number % 2 == 0 else alone
            metric = metric / metric.sum() if metric.sum() > 0 else flat
            w = (metric + flat) * random.uniform(1 - JITTER, 1 + JITTER, len(flat))
        scale = np.repeat(metric, problem.block)
        labels = boxes.seed(problem.rows, problem.weights, scale, problem.boxes, random)
        found = descend(problem.start(w, labels), tol, max_iter)
        if best is None or found.point.loss < best.point.loss:
            best = found
    assert best is not None
    return best


def varying(problem: Problem) -> Float[np.ndarray, " D"]:
    """Return 1 for each feature that is not constant, 0 for the others; all 1 where none varies.

    A constant has no box distance, so that F would give it weight for nothing.
    """
    moves = np.ptp(problem.rows, axis=0) > 0
    live = moves.reshape(-1, problem.block).any(1)
    return live.astype(float) if live.any() else np.ones(len(live))


def solo_scores(problem: Problem) -> Float[np.ndarray, " D"]:
    """Return how much of the targets a cubic in each feature alone explains, squared: O(T n M).

    The share of variance, less that of the median feature: among many features most are noise,
    and the median shows how much of the targets chance explains.
    """
    root = np.sqrt(problem.weights)[:, None]
    Y = root * (problem.task.targets - np.average(problem.task.targets, 0, problem.weights))
    mean = np.average(problem.rows, axis=0, weights=problem.weights)
    z = problem.rows - mean
    size = np.abs(z).max(0)
    z = z / np.where(size > 0, size, 1)
    basis, explained = [np.broadcast_to(root, z.shape) / np.sqrt(len(z))], np.zeros(z.shape[1])
    for degree in range(1, DEGREE + 1):
        q = root * z**degree
        before = np.sqrt(np.square(q).sum(0))
        for earlier in basis:
            q = q - (q * earlier).sum(0) * earlier
        norm = np.sqrt(np.square(q).sum(0))
        new = norm > 1e-6 * before
        basis.append(np.where(new, q / np.where(new, norm, 1), 0))
        explained += np.square(basis[-1].T @ Y).sum(1)
    share = explained.reshape(-1, problem.block).sum(1) / max(float(np.square(Y).sum()), TINY)
    return np.square(np.maximum(0, share - np.median(share)))


def _spread_out(descent: Descent, features: int) -> Float[np.ndarray, " D"]:
    w = np.zeros(features)
    w[descent.point.features] = descent.point.w
    return w
