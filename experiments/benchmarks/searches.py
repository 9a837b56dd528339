"""Search with labels on LeNet and VGG-16: TPE, random and grid search, next to a budget.

`python -m experiments bench searches [NETWORK ...]` searches one penalty for all layers, its two
strengths between 1e-7 and 1e-2, in 25 trials each. Trials are scored on test images 0-4,999;
results are reported on 5,000-9,999. The budget uses no labels. LeNet is trained if necessary; the
other networks need ENTRIM_ASSETS.
"""

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import entrim
from entrim import Budget, EntropicPenalty, Pruner
from entrim.errors import CommandError
from experiments import models, training
from experiments.benchmarks.record import Ledger, table, write
from experiments.datasets import Dataset
from experiments.models import TrainedModel
from experiments.paper.pruning import IMAGES
from experiments.work import Work, work_folder

NETWORKS: Mapping[str, Callable[..., TrainedModel]] = {
    "lenet": models.lenet,
    "cifar10_vgg16": models.vgg16,
}
STEPS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
"""Of the grid, for both strengths: as many pairs as the other searches have trials."""
SAMPLERS = ("tpe", "random")
BUDGETS = (0.1, 0.2, 0.4)
"""Fractions of the parameters."""
TUNE, REPORT = slice(0, 5000), slice(5000, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One scored trial."""

    params: float
    score: float
    eps: tuple[float, float]


@dataclass(frozen=True, slots=True, eq=False)
class SearchedModel:
    """A trained network with its statistics, and disjoint images to score and to report on."""

    trained: TrainedModel
    pruner: Pruner

    def accuracy(self, model: Any, rows: slice) -> float:
        """Return the accuracy in percent on some of the test images."""
        some: Dataset = self.trained.test_set[rows]
        return training.accuracy(model.eval(), some, self.trained.normalization)

    def at_penalty(self, eps: tuple[float, float]) -> entrim.SparsifyResult:
        """Return the network at one penalty for all layers."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.pruner.prune(EntropicPenalty(eps_w=eps[0], eps_l2=eps[1]))

    def sampled(self, sampler: str, trials: int) -> Iterator[Scored]:
        """Yield the scored trials of a search."""
        result = entrim.search(
            self.pruner,
            None,
            lambda small: self.accuracy(small, TUNE),
            patterns="*",
            trials=trials,
            sampler=sampler,
            early_stop=None,
            seed=self.trained.seed,
        )
        for trial in result.record.trials:
            if trial.score is not None:
                (eps,) = trial.eps.values()
                yield Scored(params=trial.params, score=trial.score, eps=eps)

    def grid(self, steps: Sequence[float]) -> Iterator[Scored]:
        """Yield every pair of strengths, scored."""
        for size, ridge in itertools.product(steps, steps):
            found = self.at_penalty((-size, ridge))
            params = found.record.after.params / found.record.before.params
            score = self.accuracy(found.model, TUNE)
            yield Scored(params=params, score=score, eps=(-size, ridge))

    def report(self, scored: Sequence[Scored]) -> dict[str, float | None]:
        """Return the accuracy of the best trial within each budget; None if there is none."""
        found: dict[str, float | None] = {}
        for share in BUDGETS:
            fitting = [trial for trial in scored if trial.params <= share]
            best = max(fitting, key=lambda trial: trial.score, default=None)
            small = None if best is None else self.at_penalty(best.eps).model
            found[str(share)] = None if small is None else self.accuracy(small, REPORT)
        return found

    def budgets(self) -> dict[str, float]:
        """Return the accuracy at each budget, without labels."""
        return {
            str(share): self.accuracy(self.pruner.prune(Budget(params=share)).model, REPORT)
            for share in BUDGETS
        }


def results(
    model: SearchedModel, steps: Sequence[float]
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name of every way, and a function that measures its accuracy by budget."""
    trials = len(steps) ** 2
    for sampler in SAMPLERS:
        yield sampler, lambda s=sampler: model.report(list(model.sampled(s, trials)))
    yield "grid", lambda: model.report(list(model.grid(steps)))
    yield "a budget, without labels", model.budgets


def main(parts: Sequence[str] = ()) -> None:
    """Measure what is missing, and write the table of all known results."""
    if unknown := [name for name in parts if name not in NETWORKS]:
        raise CommandError(f"there is no {', '.join(unknown)}: name some of {', '.join(NETWORKS)}")
    ledger = Ledger.open("searches")
    for name in parts or NETWORKS:
        trained = NETWORKS[name](Work(work_folder()))
        with Pruner(trained.model, trained.images(IMAGES), seed=trained.seed) as pruner:
            for way, measure in results(SearchedModel(trained, pruner), STEPS):
                ledger.point(f"{name} | {way}", measure)
    note = (
        f"Accuracy in percent on test images 5,000-9,999, {IMAGES} unlabeled images, nothing is "
        f"trained. {len(STEPS) ** 2} trials each, scored on test images 0-4,999; one seed."
    )
    header = ["network", "search", *(f"{share:.0%} of the parameters" for share in BUDGETS)]
    lines = [
        [*key.split(" | "), *("-" if point[str(b)] is None else point[str(b)] for b in BUDGETS)]
        for key, point in ledger.points().items()
    ]
    sections = [note, table(header, lines)]
    print(write("searches", "python -m experiments bench searches", sections))
