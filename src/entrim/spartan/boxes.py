"""Boxes of the feature space: affiliations, centers and distances."""

import numpy as np
from jaxtyping import Float, Int

Rows = Float[np.ndarray, "T n"]
Labels = Int[np.ndarray, " T"]


def distances(
    rows: Rows, centers: Float[np.ndarray, "K n"], scale: Float[np.ndarray, " n"]
) -> Float[np.ndarray, "T K"]:
    """Return the squared distances of rows to centers, weighted by `scale` per column.

    Differences are computed first, which avoids cancellation: O(T n K).
    """
    root = np.sqrt(scale)
    z, c = rows * root, centers * root
    return np.stack([np.square(z - center).sum(1) for center in c], axis=1)


def affiliate(costs: Float[np.ndarray, "T K"], labels: Labels) -> Labels:
    """Return the gamma-step: the cheapest box of each row; ties keep the current one.

    F is linear in the affiliations of a row, so a corner of its simplex is best: one box.
    """
    rows = np.arange(len(labels))
    best = costs.argmin(1)
    return np.where(costs[rows, best] < costs[rows, labels], best, labels)


def center(
    rows: Rows,
    weights: Float[np.ndarray, " T"],
    labels: Labels,
    before: Float[np.ndarray, "K n"],
) -> Float[np.ndarray, "K n"]:
    """Return the C-step: the mean of each box; an empty box keeps its center."""
    centers = before.copy()
    for box in np.unique(labels):
        inside = labels == box
        centers[box] = weights[inside] @ rows[inside] / weights[inside].sum()
    return centers


def spreads(
    rows: Rows,
    weights: Float[np.ndarray, " T"],
    labels: Labels,
    centers: Float[np.ndarray, "K n"],
) -> Float[np.ndarray, " n"]:
    """Return the sum of squared distances to the own center, column by column."""
    return weights @ np.square(rows - centers[labels])


def seed(
    rows: Rows,
    weights: Float[np.ndarray, " T"],
    scale: Float[np.ndarray, " n"],
    boxes: int,
    random: np.random.RandomState,
) -> Labels:
    """Return the nearest of `boxes` rows drawn far from each other (k-means++), in a metric."""
    drawn = [_draw(weights, random)]
    nearest = distances(rows, rows[drawn], scale)[:, 0]
    for _ in range(boxes - 1):
        far = weights * nearest
        drawn.append(_draw(far if far.sum() > 0 else weights, random))
        nearest = np.minimum(nearest, distances(rows, rows[drawn[-1:]], scale)[:, 0])
    return distances(rows, rows[drawn], scale).argmin(1)


def _draw(chances: Float[np.ndarray, " T"], random: np.random.RandomState) -> int:
    """Return a row drawn with these probabilities; weights act like repeated rows."""
    heights = np.cumsum(chances)
    return int(np.searchsorted(heights, random.uniform() * heights[-1], side="right"))
