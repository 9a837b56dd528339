"""Ask for a size: how the widths are chosen, at equal budgets, nothing trained and no labels.

`python -m benchmarks.allocation` measures what its ledger lacks and writes the table; with names of
networks only those. Needs ENTRIM_ASSETS.
"""

import copy
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch_pruning as tp
from torch import Tensor, nn

import entrim
from benchmarks.cifar import REPORT, Subject, interval, percent_right
from benchmarks.ledger import Ledger
from benchmarks.lenet import trained_lenet
from benchmarks.record import table, verdict, write
from entrim.allocate import Market, over
from entrim.budgeting import Ladder, climb, sense
from entrim.choose import Chosen
from entrim.deciding import Scene, decide
from entrim.experiments import load_mnist, normalisation
from entrim.images import read_images
from entrim.network import cut
from entrim.network.sensing import Sensor
from entrim.network.shelf import Shelf
from entrim.rebuilding import rebuilt
from entrim.run import Run
from entrim.settings import Settings

NETWORKS = ("lenet", "cifar10_resnet20", "cifar10_resnet56", "cifar10_vgg16")
BUDGETS = {
    **{f"{share:.0%} of the parameters": entrim.Budget(params=share) for share in (0.75, 0.5, 0.25, 0.1)},
    **{f"{times}x fewer MACs": entrim.Budget(macs=1 / times) for times in (1.5, 2.0, 3.0)},
}
PEER = "cifar10_resnet56", "2.1x fewer MACs", entrim.Budget(macs=1 / 2.1)
"""Where a peer reports what it reaches after sparse training with labels."""
EPS = [10 ** (-exponent / 2) for exponent in range(14, 2, -1)]
EPOCHS_OF_DISTILLING = 10


def subject_of(name: str) -> Subject:
    """Return one network, 500 unlabelled training images and the test images."""
    if name != "lenet":
        return Subject.of(name)
    train, test = load_mnist("train")[:500], load_mnist("test")
    how = normalisation.MNIST
    return Subject(name, trained_lenet(), train.normalised(how), test.normalised(how), test.labels)


@dataclass(slots=True, eq=False)
class Bench:
    """One network looked at once, so that every budget costs a rebuild only."""

    subject: Subject
    run: Run
    scene: Scene
    grams: Shelf
    example: Tensor
    ladders: Mapping[str, Ladder]
    sensor: Sensor
    market: Market
    by_eps: dict[float, dict[str, Chosen]] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str) -> "Bench":
        subject = subject_of(name)
        images = read_images(subject.images, torch.device("cpu"), torch.float32)
        run = Run(subject.model, Settings(), images, None, lambda _: None)
        example = subject.images[:4]
        graph = entrim.trace(subject.model, example)
        scene = Scene.of(run, graph, images)
        grams = Shelf(run.settings.memory_limit)
        asks = run.settings.asks(graph, scene.alone)
        ladders = climb(run, scene, asks, grams, example)
        sensor, market = sense(run, scene, ladders, grams, example)
        return cls(subject, run, scene, grams, example, ladders, sensor, market)

    def finished(self, kept: Mapping[str, tuple[int, ...]]) -> entrim.Sparsified:
        """Return the network with these channels, rebuilt and cut."""
        chosen = {name: Chosen(kept=units, how="") for name, units in kept.items()}
        plan = rebuilt(self.run, self.scene, chosen, self.grams)
        done = cut(self.subject.model, plan, self.example, graph=self.scene.graph)
        return entrim.Sparsified(
            model=done.model, plan=done.plan, record=_NONE, original=self.subject.model
        )

    def at(self, widths: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Return the channels that stay at these widths."""
        return {name: ladder.kept(widths[name]) for name, ladder in self.ladders.items()}


_NONE: Any = None


def allocated(bench: Bench, budget: entrim.Budget) -> dict[str, tuple[int, ...]]:
    """Return the channels at the widths that `sparsify` allocates."""
    limits = budget.limits(bench.market.sizes)
    return bench.at(bench.market.filled(bench.market.way_down(limits)[-1], limits).widths)


def uniform(bench: Bench, budget: entrim.Budget) -> dict[str, tuple[int, ...]]:
    """Return the channels at the largest fraction, the same everywhere, that keeps the budget."""
    market, limits = bench.market, budget.limits(bench.market.sizes)

    def widths(fraction: float) -> dict[str, int]:
        even = {n: max(market.floor(n), round(fraction * c)) for n, c in market.whole.items()}
        return {**market.whole, **{n: even[n] for n in bench.ladders}}

    fits = [n / 400 for n in range(1, 401) if not over(market.costs.at(widths(n / 400)), limits)]
    return bench.at(widths(max(fits)))


def one_eps(bench: Bench, budget: entrim.Budget) -> dict[str, tuple[int, ...]] | None:
    """Return the channels at the least eps of a ladder, the same everywhere, that keeps it."""
    limits = budget.limits(bench.market.sizes)
    for eps in EPS:
        if eps not in bench.by_eps:
            run = replace(bench.run, settings=Settings(eps_w=-eps, eps_l2=eps))
            asks = run.settings.asks(bench.scene.graph, bench.scene.alone)
            asks = {name: asks[name] for name in bench.ladders}
            bench.by_eps[eps] = decide(run, bench.scene, asks, bench.grams, quiet=True)
        kept = {name: found.kept for name, found in bench.by_eps[eps].items()}
        widths = {**bench.market.whole, **{name: len(units) for name, units in kept.items()}}
        if not over(bench.market.costs.at(widths), limits):
            return kept
    return None


def drawn(bench: Bench, budget: entrim.Budget) -> dict[str, tuple[int, ...]]:
    """Return random channels at the widths that `sparsify` allocates."""
    g = torch.Generator().manual_seed(0)
    return {
        name: tuple(
            torch.randperm(bench.market.whole[name], generator=g)[: len(units)].sort().values.tolist()
        )
        for name, units in allocated(bench, budget).items()
    }


def torch_pruned(bench: Bench, budget: entrim.Budget) -> nn.Module | None:
    """Return what torch-pruning's global magnitude gives at the least ratio that keeps it."""
    limits = budget.limits(bench.market.sizes)
    low, high, best = 0.0, 1.0, None
    for _ in range(9):
        ratio = (low + high) / 2
        model = copy.deepcopy(bench.subject.model)
        last = [m for m in model.modules() if isinstance(m, nn.Linear)][-1]
        tp.pruner.MagnitudePruner(
            model,
            bench.example,
            importance=tp.importance.GroupMagnitudeImportance(p=2),
            global_pruning=True,
            pruning_ratio=ratio,
            max_pruning_ratio=0.98,
            ignored_layers=[last],
        ).step()
        cost = entrim.measure(model, bench.example, repeats=2)
        sizes = {"params": cost.params, "macs": cost.macs, "bytes": cost.bytes}
        if over(sizes, limits):
            low = ratio
        else:
            best, high = model, ratio
    return best


WAYS: dict[str, Callable[[Bench, entrim.Budget], Any]] = {
    "allocation": allocated,
    "uniform": uniform,
    "one eps": one_eps,
    "allocation, random channels": drawn,
    "torch-pruning": torch_pruned,
}


def point(bench: Bench, way: str, budget: entrim.Budget) -> dict[str, Any]:
    """Return what one way gives under one budget."""
    begin = time.perf_counter()
    found = WAYS[way](bench, budget)
    if found is None:
        return {}
    result = bench.finished(found) if isinstance(found, dict) else None
    model = result.model if result else found
    seconds = time.perf_counter() - begin
    measured = {"seconds": round(seconds, 1), **_measured(bench, model)}
    if way == "allocation" and result:
        distilled = entrim.distill(result, bench.subject.images).model
        measured["distilled"] = _measured(bench, distilled)["report"]
    return measured


def _measured(bench: Bench, model: nn.Module) -> dict[str, float]:
    before, after = (
        entrim.measure(m, bench.example, repeats=2) for m in (bench.subject.model, model)
    )
    tests, labels = bench.subject.tests[REPORT], bench.subject.labels[REPORT]
    return {
        "params": after.params / before.params,
        "macs": after.macs / before.macs,
        "report": percent_right(model, tests, labels),
    }
