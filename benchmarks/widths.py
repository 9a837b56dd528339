"""Ways to choose all widths under a budget, on one network that is looked at once."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch_pruning as tp
from torch import Tensor, nn

import entrim
from benchmarks.cifar import Subject
from benchmarks.lenet import trained_lenet
from entrim.allocate import Market, over
from entrim.budgeting import Ladder, climb, sense
from entrim.choose import Chosen
from entrim.deciding import Scene, choose_in
from entrim.experiments import load_mnist, normalisation
from entrim.images import read_images
from entrim.network.sensing import Sensor
from entrim.network.shelf import Shelf
from entrim.pipeline import build
from entrim.recording import recorded
from entrim.run import Run
from entrim.settings import Settings

RANDOM = "allocation, random channels"
EPS = [10 ** (-exponent / 2) for exponent in range(14, 2, -1)]
"""The ladder of one eps for all layers, in half powers of ten."""
HALVINGS = 3
"""Of a step of the ladder: the eps that is taken is at most 15 % above the least."""


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
        asks = self.run.settings.asks(self.scene.graph, self.scene.alone)
        done = build(self.run, self.scene, chosen, self.grams, self.example)
        record = recorded(self.run, self.scene, asks, chosen, {}, None, done, self.example)
        return entrim.Sparsified(
            model=done.model, plan=done.plan, record=record, original=self.subject.model
        )

    def at(self, widths: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Return the channels that stay at these widths."""
        return {name: ladder.kept(widths[name]) for name, ladder in self.ladders.items()}


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
    """Return the channels at the least eps, the same everywhere, that keeps the budget.

    Found on a ladder, then by halving the step below it.
    """
    limits = budget.limits(bench.market.sizes)

    def kept(eps: float) -> dict[str, tuple[int, ...]]:
        if eps not in bench.by_eps:
            run = replace(bench.run, settings=Settings(eps_w=-eps, eps_l2=eps))
            asks = run.settings.asks(bench.scene.graph, bench.scene.alone)
            groups = [ladder.group for ladder in bench.ladders.values()]
            bench.by_eps[eps] = choose_in(groups, run, bench.scene, asks, bench.grams, quiet=True)
        return {name: found.kept for name, found in bench.by_eps[eps].items()}

    def fits(eps: float) -> bool:
        widths = {**bench.market.whole, **{name: len(units) for name, units in kept(eps).items()}}
        return not over(bench.market.costs.at(widths), limits)

    rung = next((number for number, eps in enumerate(EPS) if fits(eps)), None)
    if rung is None:
        return None
    low, high = EPS[max(rung - 1, 0)], EPS[rung]
    for _ in range(HALVINGS if low < high else 0):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if fits(middle) else (middle, high)
    return kept(high)


def drawn(bench: Bench, budget: entrim.Budget) -> dict[str, tuple[int, ...]]:
    """Return random channels at the widths that `sparsify` allocates."""
    g = torch.Generator().manual_seed(0)
    kept = allocated(bench, budget)
    return {
        name: tuple(sorted(torch.randperm(ladder.group.channels, generator=g)[:width].tolist()))
        for name, ladder in bench.ladders.items()
        for width in [len(kept[name])]
    }


def torch_pruned(bench: Bench, budget: entrim.Budget) -> nn.Module | None:
    """Return what torch-pruning's global magnitude gives at the least ratio that keeps it.

    Only channels that one layer makes and one reads: behind a padded shortcut its network does not
    run.
    """
    limits = budget.limits(bench.market.sizes)
    alone = {g.name for g in bench.scene.graph.groups if bench.scene.alone(g)}
    low, high, best = 0.0, 1.0, None
    for _ in range(9):
        ratio = (low + high) / 2
        model = copy.deepcopy(bench.subject.model)
        kept: list[nn.Module] = [
            layer
            for name, layer in model.named_modules()
            if isinstance(layer, nn.Conv2d | nn.Linear) and name not in alone
        ]
        tp.pruner.MagnitudePruner(
            model,
            bench.example,
            importance=tp.importance.GroupMagnitudeImportance(p=2),
            global_pruning=True,
            pruning_ratio=ratio,
            max_pruning_ratio=0.98,
            ignored_layers=kept,
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
    RANDOM: drawn,
    "torch-pruning": torch_pruned,
}
