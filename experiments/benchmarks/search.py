"""The value of a search with labels: TPE against random, early stopping against none, on digits.

The network is trained on 900 images, pruned with 300 of them, tuned on 300 others, and results are
reported on another 597. Every figure is a mean over networks trained from different seeds, with the
standard error of the difference where two are compared.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import entrim
from experiments.benchmarks.record import Ledger, check_line, table, write

SEEDS = range(4)
TRIALS = 50
AFTER = (10, 25, 50)
BUDGETS = (0.05, 0.1, 0.2)
EPOCHS, RATE = 30, 3e-3
WORST = 80.0
"""The corner of the hypervolume: all parameters, this accuracy."""
SEARCHES: dict[str, dict[str, Any]] = {
    "tpe": {},
    "random": {"sampler": "random"},
    "tpe, all scored": {"early_stop": None},
    "tpe, one eps for all layers": {"patterns": "*"},
}


def network() -> nn.Sequential:
    """Return an untrained LeNet-like network for 8x8 images, that of `entrim demo`."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def train(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Fit `model` to the labeled images."""
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the percentage of images that are classified correctly."""
    return 100 * float((model(x).argmax(1) == y).double().mean())


class DigitsModel:
    """A trained network, and three disjoint sets of labeled images."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        pixels, classes = load_digits(return_X_y=True)
        order = torch.randperm(len(classes))
        x = torch.as_tensor(pixels).float().view(-1, 1, 8, 8)[order] / 16
        y = torch.as_tensor(classes)[order]
        self.model, self.seed, self.images = network(), seed, x[:300]
        train(self.model, x[:900], y[:900])
        self.tune, self.test = (x[900:1200], y[900:1200]), (x[1200:], y[1200:])

    def search(self, **options: Any) -> entrim.SearchResult:
        return entrim.search(
            self.model,
            self.images,
            lambda small: accuracy(small, *self.tune),
            trials=TRIALS,
            seed=self.seed,
            **options,
        )


def volume(trials: Sequence[entrim.Trial]) -> float:
    """Return the share of the box between the worst and the ideal corner that `trials` dominate."""
    front: list[entrim.Trial] = []
    for trial in sorted(trials, key=lambda t: (t.params, -(t.score or 0.0))):
        if (trial.score or 0.0) > (front[-1].score or 0.0 if front else WORST):
            front.append(trial)
    ends = [*(t.params for t in front[1:]), 1.0]
    areas = [
        (end - t.params) * ((t.score or 0.0) - WORST) for t, end in zip(front, ends, strict=True)
    ]
    return sum(areas) / (100 - WORST)


def run_search(trained: DigitsModel, name: str) -> dict[str, Any]:
    """Return the result of one search: hypervolumes, test accuracy at budgets, saved time."""
    result = trained.search(**SEARCHES[name])
    record = result.record
    volumes = {str(n): volume(record.trials[:n]) for n in AFTER}
    at = {}
    for budget in BUDGETS:
        fits = any(t.score is not None and t.params <= budget for t in record.trials)
        small = result.sparsify(result.best(params=budget)).model if fits else None
        at[str(budget)] = None if small is None else accuracy(small, *trained.test)
    stopped = [t for t in record.trials if t.reason.startswith("pruned")]
    return {
        "volume": volumes,
        "at": at,
        "stopped": len(stopped),
        "same": sum(t.reason.startswith("the network of") for t in record.trials),
        "wrong": _count_missed(trained, result, stopped) if name == "tpe" else None,
        "saved": record.seconds_saved,
        "seconds": record.seconds,
    }


def _count_missed(
    trained: DigitsModel, result: entrim.SearchResult, stopped: Sequence[entrim.Trial]
) -> int:
    """Return how many of the stopped trials would be on the front, if scored."""
    wrong = 0
    for trial in stopped:
        score = accuracy(result.sparsify(trial).model, *trained.tune)
        rivals = [t for t in result.front if t.params <= trial.params]
        wrong += all(score > (t.score or 0.0) for t in rivals)
    return wrong


def uniform(trained: DigitsModel) -> dict[str, Any]:
    """Return the test accuracy of one width for all layers, the largest within each budget."""
    graph = entrim.trace(trained.model, trained.images[:2])
    names = [name for name, _ in trained.model.named_parameters()]

    def size(fraction: float) -> int:
        kept = {g.name: range(max(1, round(fraction * g.channels))) for g in graph.groups}
        return sum(math.prod(graph.small_shape(name, kept)) for name in names)

    at = {}
    for budget in BUDGETS:
        width = max(w / 100 for w in range(1, 100) if size(w / 100) <= budget * size(1.0))
        small = entrim.sparsify(trained.model, trained.images, entrim.Widths(width)).model
        at[str(budget)] = accuracy(small, *trained.test)
    return {"at": at}


def budget(trained: DigitsModel) -> dict[str, Any]:
    """Return the test accuracy of the widths that a budget allocates, without labels."""
    at = {}
    for share in BUDGETS:
        target = entrim.Budget(params=share)
        small = entrim.sparsify(trained.model, trained.images, target).model
        at[str(share)] = accuracy(small, *trained.test)
    return {"at": at}


WITHOUT_LABELS = {"one width for all layers": uniform, "a budget, without labels": budget}


def mean(values: Sequence[float]) -> float:
    """Return the mean."""
    return statistics.fmean(values)


def gain(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return the mean difference and its standard error over the networks."""
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return f"{mean(differences):+.4f} ± {error:.4f}"


def main() -> None:
    """Measure what is missing, and write the tables."""
    ledger, subjects = Ledger.open("search"), {seed: DigitsModel(seed) for seed in SEEDS}
    points: dict[str, list[dict[str, Any]]] = {}
    for seed, trained in subjects.items():
        for kind in SEARCHES:
            points.setdefault(kind, []).append(
                ledger.point(f"{kind} {seed}", lambda s=trained, k=kind: run_search(s, k))
            )
        for name, find in WITHOUT_LABELS.items():
            points.setdefault(name, []).append(
                ledger.point(f"{name} {seed}", lambda s=trained, find=find: find(s))
            )
    sections = [_volumes(points), _budgets(points), _pruning(points)]
    print(write("search", "python -m experiments bench search", sections))


Points = dict[str, list[dict[str, Any]]]


def _volumes(points: Points) -> str:
    def after(name: str, trials: int) -> list[float]:
        return [point["volume"][str(trials)] for point in points[name]]

    rows = [[kind, *(mean(after(kind, n)) for n in AFTER)] for kind in SEARCHES]
    gains = ["tpe - random", *(gain(after("tpe", n), after("random", n)) for n in AFTER)]
    header = ["hypervolume after trials", *map(str, AFTER)]
    better = mean(after("tpe", 50)) > mean(after("random", 50))
    return "\n\n".join(
        ["## Front", table(header, [*rows, gains]), check_line("tpe above random at 50", better)]
    )


def _budgets(points: Points) -> str:
    def cells(get: Callable[[str], list[float | None]]) -> list[object]:
        return [
            "-" if any(v is None for v in get(b)) else mean([v or 0.0 for v in get(b)])
            for b in map(str, BUDGETS)
        ]

    rows = [[kind, *cells(lambda b, k=kind: [p["at"][b] for p in points[k]])] for kind in points]
    header = ["test accuracy, %", *(f"{b:.0%} of the parameters" for b in BUDGETS)]
    return "## At a budget\n\n" + table(header, rows)


def _saved_share(point: dict[str, Any]) -> float:
    spent = sum(point["seconds"].get(s, 0.0) for s in ("select", "reconstruct", "prune", "score"))
    return point["saved"] / (point["saved"] + spent)


def _pruning(points: Points) -> str:
    rows = []
    for kind in SEARCHES:
        counts = [mean([p[key] for p in points[kind]]) for key in ("stopped", "same")]
        rows.append([kind, *counts, mean([100 * _saved_share(p) for p in points[kind]])])
    header = ["", "stopped", "same network", "time of all trials saved, %"]
    wrong, stopped = (sum(p[key] for p in points["tpe"]) for key in ("wrong", "stopped"))
    gains = gain(*([p["volume"]["50"] for p in points[k]] for k in ("tpe", "tpe, all scored")))
    return "\n\n".join(
        [
            f"## Trials that were not scored, of {TRIALS}",
            table(header, rows),
            f"If scored, {wrong} of the {stopped} stopped trials would have been on the front. "
            f"Hypervolume after 50, early stopping - all scored: {gains}.",
        ]
    )
