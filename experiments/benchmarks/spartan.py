"""`python -m experiments bench spartan`: SPARTAn against six regressions, and its cost.

Generators, seeds, search spaces and the number of trials are constants of this file,
`piecewise.py` and `rivals.py`; nothing is chosen afterwards. About 20 minutes on one core.
"""

import statistics
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from sklearn.datasets import load_diabetes, load_linnerud
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold

from entrim.spartan import SPARTAnRegressor
from experiments.benchmarks.piecewise import TRUE, Boxes, piecewise
from experiments.benchmarks.record import check_line, table, write
from experiments.benchmarks.rivals import FOLDS, RIVALS, TRIALS, Rival

ROWS = 150
FEATURES = (50, 200, 800)
SEEDS = (101, 102, 103, 104)
FAMILIES: tuple[Boxes, ...] = ("separate", "touching")


@dataclass(frozen=True, slots=True)
class Score:
    """The result of one tuned model on test rows."""

    error: float
    """Mean squared error over the variance of the target."""
    kept: int
    true: int
    seconds: float


def evaluate(
    rival: Rival, x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray, seed: int
) -> Score:
    """Tune by cross-validation on (x, y), refit the best, evaluate it on the test rows."""
    search = rival.search(1 if y.ndim == 1 else y.shape[1], seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        begin = time.process_time()
        search.fit(x, y)
        seconds = time.process_time() - begin
    rest = np.square(search.predict(x_test) - y_test).mean(0)
    error = float(np.mean(rest / np.square(y_test - y.mean(0)).mean(0)))
    used = rival.features(search)
    used = np.ones(x.shape[1], dtype=bool) if used is None else used
    return Score(error, int(used.sum()), int(used[:TRUE].sum()), seconds)


def synthetic(boxes: Boxes) -> str:
    """Return the table of one family of problems, and its checks."""
    rows, ahead = [], []
    for features in FEATURES:
        problems = [piecewise(boxes, seed, ROWS, features) for seed in SEEDS]
        scores = {
            rival.name: [
                evaluate(rival, p.x, p.y, p.x_test, p.f_test, seed)
                for p, seed in zip(problems, SEEDS, strict=True)
            ]
            for rival in RIVALS
        }
        means = {name: statistics.mean(s.error for s in found) for name, found in scores.items()}
        best_rival = min((m, name) for name, m in means.items() if name != "SPARTAn")
        if features > ROWS:
            ahead.append((features, means["SPARTAn"], *best_rival))
        rows += [_row(features, name, found, scores["SPARTAn"]) for name, found in scores.items()]
        print(table(HEADER, rows[-len(RIVALS) :]), flush=True)
    bars = [
        check_line(
            f"{boxes} boxes, {features} features: SPARTAn {own:.3f}, best rival {name} {best:.3f}",
            own < best,
        )
        for features, own, best, name in ahead
    ]
    return "\n\n".join([f"### {boxes} boxes", table(HEADER, rows), "\n".join(bars)])


HEADER = (
    "features",
    "model",
    "test error, mean",
    "of each seed",
    "SPARTAn ahead, seeds",
    "features kept",
    f"true ones of {TRUE}",
    "search, CPU s",
)


def _row(
    features: int, name: str, scores: Sequence[Score], own: Sequence[Score]
) -> tuple[object, ...]:
    wins = sum(mine.error < its.error for mine, its in zip(own, scores, strict=True))
    return (
        features,
        name,
        f"{statistics.mean(s.error for s in scores):.3f}",
        " ".join(f"{s.error:.3f}" for s in scores),
        "" if name == "SPARTAn" else f"{wins} of {len(scores)}",
        f"{statistics.mean(s.kept for s in scores):.1f}",
        f"{statistics.mean(s.true for s in scores):.1f}",
        f"{statistics.mean(s.seconds for s in scores):.1f}",
    )


def real() -> str:
    """Return the table of scikit-learn's regression sets, by nested folds."""
    sets = {
        "diabetes (442 x 10, 1 target)": load_diabetes(return_X_y=True),
        "linnerud (20 x 3, 3 targets)": load_linnerud(return_X_y=True),
    }
    rows, lines = [], []
    for name, (x, y) in sets.items():
        means = {}
        for rival in RIVALS:
            scores = [
                evaluate(rival, x[train], y[train], x[test], y[test], SEEDS[0])
                for train, test in KFold(5, shuffle=True, random_state=SEEDS[0]).split(x)
            ]
            means[rival.name] = statistics.mean(s.error for s in scores)
            deviation = statistics.stdev(s.error for s in scores)
            kept = statistics.mean(s.kept for s in scores)
            rows.append((name, rival.name, means[rival.name], deviation, f"{kept:.1f}"))
        place = 1 + sum(error < means["SPARTAn"] for error in means.values())
        lines.append(f"- {name}: SPARTAn is number {place} of {len(means)}")
    header = ("set", "model", "test error", "deviation over folds", "features kept")
    return "\n\n".join(
        [
            "## 2. Real sets: nested cross-validation",
            f"Outer: 5 folds; inner: {TRIALS} trials, {FOLDS} folds. Error: "
            "squared error over that of the training mean, averaged over targets; 1 is no better "
            "than the mean.",
            table(header, rows),
            "\n".join(lines),
        ]
    )


def growth() -> str:
    """Return the time by dimension and by sample size, with fitted exponents."""
    wide = [_cost(ROWS, features) for features in (100, 200, 400, 800, 1600, 3200)]
    tall = [_cost(rows, 100) for rows in (100, 200, 400, 800, 1600, 3200)]
    header = ("rows", "features", "fit of 10 descents, CPU s", "sweeps of the best", "kept")
    exponents = [
        f"- time grows as {letter}^{_exponent([c[at] for c in costs], [c[2] for c in costs]):.2f} "
        f"from {costs[0][at]} to {costs[-1][at]}, and as "
        f"{letter}^{_exponent([c[at] for c in costs[-3:]], [c[2] for c in costs[-3:]]):.2f} over "
        "the last three"
        for letter, at, costs in (("D", 1, wide), ("T", 0, tall))
    ]
    return "\n\n".join(
        [
            "## 3. Time",
            "Separate boxes, 3 boxes, default eps; the least of three runs.",
            table(header, wide + tall),
            "\n".join(exponents),
        ]
    )


def _cost(rows: int, features: int) -> tuple[int, int, float, int, int]:
    p = piecewise("separate", SEEDS[0], rows, features)
    model = SPARTAnRegressor(n_boxes=3, random_state=0)
    seconds = []
    for _ in range(3):
        begin = time.process_time()
        model.fit(p.x, p.y)
        seconds.append(time.process_time() - begin)
    return rows, features, min(seconds), model.n_iter_, int((model.w_ > 0).sum())


def _exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def main() -> None:
    """Measure section by section, print each, write all of them."""
    sections = [
        f"## 1. Synthetic: {ROWS} rows, growing dimension\n\nThree boxes, {TRUE} true features, "
        "noise 0.1 of the target's deviation (`experiments/benchmarks/piecewise.py`). Every model: "
        f"features and target standardized, {TRIALS} trials of a random search "
        "(`experiments/benchmarks/rivals.py`), "
        f"{FOLDS} folds, the same for all, the best one refitted. Error: squared error on 2,000 "
        f"noise-free rows over their variance; seeds {', '.join(map(str, SEEDS))}. The check: "
        "ahead of every rival in the mean where rows are fewer than features."
    ]
    for section in (*(partial(synthetic, boxes) for boxes in FAMILIES), real, growth):
        sections.append(section())
        print(sections[-1], end="\n\n", flush=True)
    print(write("SPARTAn", "python -m experiments bench spartan", sections))
