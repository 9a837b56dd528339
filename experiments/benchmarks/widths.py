"""Ways to choose all widths under a budget, on one network."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch_pruning as tp
from torch import Tensor, nn

import entrim
from experiments import normalization
from experiments.benchmarks.cifar import Subject
from experiments.benchmarks.lenet import trained_lenet
from experiments.datasets import load_mnist

RANDOM = "allocation, random channels"
EPS = [10 ** (-exponent / 2) for exponent in range(14, 2, -1)]
"""The ladder of one eps for all layers, in half powers of ten."""
HALVINGS = 3
"""Of a step of the ladder: the eps that is taken is at most 15 % above the least."""
PARTS = 400
"""Into which all channels are divided where one fraction for all layers is looked for."""


def subject_of(name: str) -> Subject:
    """Return one network, 500 unlabelled training images and the test images."""
    if name != "lenet":
        return Subject.of(name)
    train, test = load_mnist("train")[:500], load_mnist("test")
    how = normalization.MNIST
    return Subject(name, trained_lenet(), train.normalized(how), test.normalized(how), test.labels)


@dataclass(slots=True, eq=False)
class Bench:
    """One network, and the cuts that several budgets share."""

    subject: Subject
    example: Tensor
    graph: entrim.ChannelGraph
    whole: Mapping[str, int]
    """The sizes of the network as it is."""
    by_eps: dict[float, entrim.SparsifyResult] = field(default_factory=dict)
    by_budget: dict[entrim.Budget, entrim.SparsifyResult] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str) -> "Bench":
        subject = subject_of(name)
        example = subject.images[:4]
        graph = entrim.trace(subject.model, example)
        return cls(subject, example, graph, _sizes(entrim.measure(subject.model, example)))

    def cut(self, **options: Any) -> entrim.SparsifyResult:
        """Return what `sparsify` makes of the network, always drawn alike."""
        generator = torch.Generator().manual_seed(0)
        return entrim.sparsify(
            self.subject.model, self.subject.images, generator=generator, **options
        )

    def fits(self, model: nn.Module, budget: entrim.Budget) -> bool:
        """Return whether `model` keeps the budget."""
        sizes = _sizes(entrim.measure(model, self.example, repeats=2))
        return all(sizes[kind] <= most for kind, most in budget.limits(self.whole).items())


def _sizes(cost: entrim.Measurement) -> dict[str, int]:
    return {"params": cost.params, "macs": cost.macs, "bytes": cost.bytes}


def allocated(bench: Bench, budget: entrim.Budget) -> entrim.SparsifyResult:
    """Return the network at the widths that `sparsify` allocates."""
    if budget not in bench.by_budget:
        bench.by_budget[budget] = bench.cut(budget=budget)
    return bench.by_budget[budget]


def uniform(bench: Bench, budget: entrim.Budget) -> entrim.SparsifyResult | None:
    """Return the network at the largest fraction, the same everywhere, that keeps the budget."""
    low, high = 0, PARTS
    while high - low > 1:
        middle = (low + high) // 2
        small = entrim.apply_plan(
            bench.subject.model, _evenly(bench.graph, middle / PARTS), bench.example
        )
        low, high = (middle, high) if bench.fits(small, budget) else (low, middle)
    return bench.cut(widths={"*": low / PARTS}, selector="greedy") if low else None


def _evenly(graph: entrim.ChannelGraph, fraction: float) -> entrim.Plan:
    """Return a plan of this fraction of every group, whichever channels stay."""
    kept = {}
    for group in graph.groups:
        width = max(1, round(fraction * group.channels))
        kept[group.name] = [i * group.channels // width for i in range(width)]
    return entrim.Plan(kept)


def one_eps(bench: Bench, budget: entrim.Budget) -> entrim.SparsifyResult | None:
    """Return the network at the least eps, the same everywhere, that keeps the budget.

    Found on a ladder, then by halving the step below it.
    """

    def fits(eps: float) -> bool:
        if eps not in bench.by_eps:
            bench.by_eps[eps] = bench.cut(eps_w=-eps, eps_l2=eps)
        return bench.fits(bench.by_eps[eps].model, budget)

    rung = next((number for number, eps in enumerate(EPS) if fits(eps)), None)
    if rung is None:
        return None
    low, high = EPS[max(rung - 1, 0)], EPS[rung]
    for _ in range(HALVINGS if low < high else 0):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if fits(middle) else (middle, high)
    return bench.by_eps[high]


def drawn(bench: Bench, budget: entrim.Budget) -> entrim.SparsifyResult:
    """Return random channels at the widths that `sparsify` allocates."""
    groups = allocated(bench, budget).record.groups
    return bench.cut(widths={group.name: len(group.kept) for group in groups}, selector="random")


def torch_pruned(bench: Bench, budget: entrim.Budget) -> nn.Module | None:
    """Return what torch-pruning's global magnitude gives at the least ratio that keeps it.

    Only channels that one layer makes and one reads: behind a padded shortcut its network does not
    run.
    """
    alone = {
        group.name
        for group in bench.graph.groups
        if len(group.layers)
        == 1
        == sum(group.name in site.columns_per_channel for site in bench.graph.consumers)
    }
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
        if bench.fits(model, budget):
            best, high = model, ratio
        else:
            low = ratio
    return best


WAYS: dict[str, Callable[[Bench, entrim.Budget], entrim.SparsifyResult | nn.Module | None]] = {
    "allocation": allocated,
    "uniform": uniform,
    "one eps": one_eps,
    RANDOM: drawn,
    "torch-pruning": torch_pruned,
}
