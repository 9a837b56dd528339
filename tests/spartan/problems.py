"""Random small problems for the tests of SPARTAn, and F written out from its definition."""

import numpy as np
from hypothesis import strategies as st

from entrim.spartan.descent import Point, Problem
from entrim.spartan.regression import Regression


@st.composite
def problems(draw: st.DrawFn, eps_w: tuple[float, ...] = (-0.3, -0.02, 0.0, 0.02, 0.5)) -> Problem:
    """Draw rows in boxes with a regression inside, tall or wide, weighted or not."""
    return problem(
        seed=draw(st.integers(0, 10_000)),
        rows=draw(st.sampled_from([4, 12, 60])),
        features=draw(st.integers(1, 8)),
        block=draw(st.sampled_from([1, 3])),
        outputs=draw(st.integers(1, 3)),
        boxes=draw(st.integers(1, 4)),
        eps_w=draw(st.sampled_from(eps_w)),
        eps_l2=draw(st.sampled_from([1e-5, 1e-3, 0.1])),
        eps_r=draw(st.sampled_from([0.5, 10.0])),
        box_weight=draw(st.sampled_from([0.0, 1.0])),
        penalize_intercept=draw(st.booleans()),
    )


def problem(
    seed: int,
    *,
    rows: int = 30,
    features: int = 4,
    block: int = 1,
    outputs: int = 2,
    boxes: int = 2,
    eps_w: float = -0.02,
    eps_l2: float = 1e-3,
    eps_r: float = 10.0,
    box_weight: float = 1.0,
    penalize_intercept: bool = False,
) -> Problem:
    """Return one random problem; its rows are weighted where `seed` is odd."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, features * block))
    slopes = random.normal(size=(2, features * block, outputs))
    y = np.einsum("tn,tnm->tm", x, slopes[(x[:, 0] > 0).astype(int)])
    y = y / y.std() + 0.1 * random.normal(size=(rows, outputs))
    weights = random.uniform(0.2, 2, rows) if seed % 2 else np.ones(rows)
    weights = weights / weights.mean()
    task = Regression(y, weights, eps_l2, eps_r, block, penalize_intercept)
    return Problem(x, weights, task, boxes, eps_w, box_weight, block)


def start(p: Problem, seed: int = 0) -> Point:
    """Return a random point: any w inside the simplex, any affiliations."""
    random = np.random.default_rng(seed)
    w = random.dirichlet(np.ones(p.rows.shape[1] // p.block)) + 1e-3
    return p.start(w, random.integers(0, p.boxes, len(p.rows)))


def loss(
    point: Point,
    *,
    w: np.ndarray | None = None,
    U: np.ndarray | None = None,
    gamma: np.ndarray | None = None,
    C: np.ndarray | None = None,
) -> float:
    """Return F from its definition by loops, with some of the four variables replaced.

    U' = S L' is held fixed where only w is replaced, as in the w-step.
    """
    p, task = point.problem, point.problem.task
    assert isinstance(task, Regression)
    w = point.w if w is None else w
    U = point.fit.values if U is None else U
    C = point.centers if C is None else C
    gamma = np.eye(p.boxes)[point.labels].T if gamma is None else gamma
    T, M = task.targets.shape
    each = np.repeat(w, p.block)
    total = p.eps_w * sum(v * np.log(v) for v in w if v > 0)
    for k in range(p.boxes):
        L = U[k][1:] / np.where(each > 0, each, 1)[:, None]
        total += task.eps_l2 * np.square(L).sum()
        if task.penalize_intercept:
            total += task.eps_l2 * np.square(U[k][0]).sum()
        for t in range(T):
            share = p.weights[t] * gamma[k, t]
            far = float(each @ np.square(point.rows[t] - C[k]))
            miss = np.square(task.targets[t] - U[k][0] - point.rows[t] @ U[k][1:]).sum()
            total += share * (p.box_weight / (T * p.boxes) * far + task.eps_r / (T * M) * miss)
    return float(total)
