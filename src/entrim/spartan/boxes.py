"""Boxes of the feature space: who belongs to which, where their centres are, what that costs."""

import numpy as np
from jaxtyping import Float, Int

Rows = Float[np.ndarray, "T n"]
Labels = Int[np.ndarray, " T"]


def distances(
    rows: Rows, centres: Float[np.ndarray, "K n"], scale: Float[np.ndarray, " n"]
) -> Float[np.ndarray, "T K"]:
    """Return the squared distances of rows to centres in the metric of `scale`, a w a column.

    Differences first, so that nothing cancels: O(T n K).
    """
    root = np.sqrt(scale)
    z, c = rows * root, centres * root
    return np.stack([np.square(z - centre).sum(1) for centre in c], axis=1)


def affiliate(costs: Float[np.ndarray, "T K"], labels: Labels) -> Labels:
    """Return the gamma-step: the cheapest box of each row, its present one among equals.

    F is linear in the affiliations of a row, so a corner of its simplex is best: one box.
    """
    rows = np.arange(len(labels))
    best = costs.argmin(1)
    return np.where(costs[rows, best] < costs[rows, labels], best, labels)


def centre(
    rows: Rows,
    weights: Float[np.ndarray, " T"],
    labels: Labels,
    before: Float[np.ndarray, "K n"],
) -> Float[np.ndarray, "K n"]:
    """Return the C-step: the mean of each box; an empty box stays where it was."""
    centres = before.copy()
    for box in np.unique(labels):
        inside = labels == box
        centres[box] = weights[inside] @ rows[inside] / weights[inside].sum()
    return centres


def spreads(
    rows: Rows,
    weights: Float[np.ndarray, " T"],
    labels: Labels,
    centres: Float[np.ndarray, "K n"],
) -> Float[np.ndarray, " n"]:
    """Return the sum of squared distances to the own centre, column by column."""
    return weights @ np.square(rows - centres[labels])


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
    """Return a row drawn with these chances; a row counted twice is drawn as two rows are."""
    heights = np.cumsum(chances)
    return int(np.searchsorted(heights, random.uniform() * heights[-1], side="right"))
