"""Methods to choose all widths under a budget, on one network."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch_pruning as tp
from torch import Tensor, nn

import entrim
from experiments import normalization
from experiments.benchmarks.cifar import BenchmarkModel
from experiments.benchmarks.lenet import load_lenet
from experiments.datasets import load_mnist

Target = entrim.Budget | entrim.Widths | entrim.EntropicPenalty
RANDOM = "allocation, random channels"
EPS = [10 ** (-exponent / 2) for exponent in range(14, 2, -1)]
"""Tried values of one eps for all layers, in half powers of ten."""
HALVINGS = 3
"""Bisections between two of them: the result is at most 15 % above the smallest eps."""
PARTS = 400
"""Resolution of the search for one fraction for all layers."""


def load_model(name: str) -> BenchmarkModel:
    """Return one network, 500 unlabeled training images and the test images."""
    if name != "lenet":
        return BenchmarkModel.of(name)
    train, test = load_mnist("train")[:500], load_mnist("test")
    images, test_images = (data.normalize(normalization.MNIST) for data in (train, test))
    return BenchmarkModel(name, load_lenet(), images, test_images, test.labels)


@dataclass(slots=True, eq=False)
class BudgetBenchmark:
    """One network, and the results that several budgets share."""

    tested: BenchmarkModel
    example_inputs: Tensor
    graph: entrim.ChannelGraph
    full_sizes: Mapping[str, int]
    """The sizes of the original network."""
    by_eps: dict[float, entrim.SparsifyResult] = field(default_factory=dict)
    by_budget: dict[str, entrim.SparsifyResult] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str) -> "BudgetBenchmark":
        tested = load_model(name)
        example = tested.images[:4]
        graph = entrim.trace(tested.model, example)
        return cls(tested, example, graph, _sizes(entrim.measure(tested.model, example)))

    def prune(self, target: Target, **options: Any) -> entrim.SparsifyResult:
        """Return the result of `sparsify` for the network."""
        return entrim.sparsify(self.tested.model, self.tested.images, target, **options)

    def fits(self, model: nn.Module, budget: entrim.Budget) -> bool:
        """Return whether `model` is within the budget."""
        sizes = _sizes(entrim.measure(model, self.example_inputs, repeats=2))
        return all(sizes[name] <= limit for name, limit in budget.limits(self.full_sizes).items())


def _sizes(cost: entrim.Measurement) -> dict[str, int]:
    return {"params": cost.params, "macs": cost.macs, "bytes": cost.bytes}


def allocate(bench: BudgetBenchmark, budget: entrim.Budget) -> entrim.SparsifyResult:
    """Return the network at the widths that `sparsify` allocates."""
    key = repr(budget)
    if key not in bench.by_budget:
        bench.by_budget[key] = bench.prune(budget)
    return bench.by_budget[key]


def uniform(bench: BudgetBenchmark, budget: entrim.Budget) -> entrim.SparsifyResult | None:
    """Return the network at the largest fraction, the same for all groups, within the budget."""
    low, high = 0, PARTS
    while high - low > 1:
        middle = (low + high) // 2
        small = entrim.apply_plan(
            bench.tested.model, _uniform_plan(bench.graph, middle / PARTS), bench.example_inputs
        )
        low, high = (middle, high) if bench.fits(small, budget) else (low, middle)
    return bench.prune(entrim.Widths(low / PARTS), selector="greedy") if low else None


def _uniform_plan(graph: entrim.ChannelGraph, fraction: float) -> entrim.Plan:
    """Return a plan with this fraction of every group, whichever channels are kept."""
    kept = {}
    for group in graph.groups:
        width = max(1, round(fraction * group.channels))
        kept[group.name] = [i * group.channels // width for i in range(width)]
    return entrim.Plan(kept)


def one_eps(bench: BudgetBenchmark, budget: entrim.Budget) -> entrim.SparsifyResult | None:
    """Return the network at the smallest eps, the same for all groups, within the budget.

    Found on a grid, then by bisection.
    """

    def fits(eps: float) -> bool:
        if eps not in bench.by_eps:
            bench.by_eps[eps] = bench.prune(entrim.EntropicPenalty(eps_w=-eps, eps_l2=eps))
        return bench.fits(bench.by_eps[eps].model, budget)

    first = next((number for number, eps in enumerate(EPS) if fits(eps)), None)
    if first is None:
        return None
    low, high = EPS[max(first - 1, 0)], EPS[first]
    for _ in range(HALVINGS if low < high else 0):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if fits(middle) else (middle, high)
    return bench.by_eps[high]


def random_channels(bench: BudgetBenchmark, budget: entrim.Budget) -> entrim.SparsifyResult:
    """Return random channels at the widths that `sparsify` allocates."""
    widths = {group.name: len(group.kept) for group in allocate(bench, budget).record.groups}
    return bench.prune(entrim.Widths(widths), selector="random")


def torch_pruning(bench: BudgetBenchmark, budget: entrim.Budget) -> nn.Module | None:
    """Return the network of torch-pruning's global magnitude at the smallest ratio that fits.

    Only channels with one producer and one consumer: behind a padded shortcut its network does not
    run.
    """
    single = {
        group.name
        for group in bench.graph.groups
        if len(group.layers)
        == 1
        == sum(group.name in site.columns_per_channel for site in bench.graph.consumers)
    }
    low, high, best = 0.0, 1.0, None
    for _ in range(9):
        ratio = (low + high) / 2
        model = copy.deepcopy(bench.tested.model)
        kept: list[nn.Module] = [
            layer
            for name, layer in model.named_modules()
            if isinstance(layer, nn.Conv2d | nn.Linear) and name not in single
        ]
        tp.pruner.MagnitudePruner(
            model,
            bench.example_inputs,
            importance=tp.importance.GroupMagnitudeImportance(p=2),
            global_pruning=True,
            pruning_ratio=ratio,
            max_pruning_ratio=0.98,
            ignored_layers=kept,
        ).step()
        if bench.fits(model, budget):
            best, high = model, ratio
        else:
            low = ratio
    return best


Method = Callable[[BudgetBenchmark, entrim.Budget], entrim.SparsifyResult | nn.Module | None]
METHODS: dict[str, Method] = {
    "allocation": allocate,
    "uniform": uniform,
    "one eps": one_eps,
    RANDOM: random_channels,
    "torch-pruning": torch_pruning,
}
