"""The cost of tracing and pruning, and the savings of a half-size network."""

import copy
import math
import statistics
import warnings
from dataclasses import dataclass

import torch
import torch_pruning as tp
from torch import Tensor, nn

import entrim
from entrim.surgery.prune import PrunedModel, prune, slice_model
from experiments.benchmarks.record import check_line, measure_time, table, write
from experiments.models import ZOO, Entry

REPEATS = 3
ROUNDS, PASSES = 7, 6
"""Latency before and after is interleaved, so that other load affects both."""
BATCHES = {"ResNet-50": (1, 8)}
"""Batch sizes for latency, where they are not 1 and 32."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A network pruned to half its channels, and the seconds that this takes."""

    name: str
    entry: Entry
    model: nn.Module
    graph: entrim.ChannelGraph
    result: PrunedModel
    trace: float
    prune: float
    slices: float
    """Pruning without verification."""

    @classmethod
    def of(cls, name: str) -> "Case":
        """Return the network called `name` without every second channel of each group."""
        model, images = ZOO[name].model(), ZOO[name].images(2)
        graph, trace = measure_time(lambda: entrim.trace(model, images), REPEATS)
        plan = entrim.Plan({group.name: range(0, group.channels, 2) for group in graph.groups})
        result, seconds = measure_time(lambda: prune(model, plan, images, graph=graph), REPEATS)
        _, slices = measure_time(lambda: slice_model(model, graph, plan.kept), REPEATS)
        return cls(name, ZOO[name], model, graph, result, trace, seconds, slices)


@dataclass(frozen=True, slots=True)
class Theirs:
    """torch-pruning on the same network and the same channels."""

    build: float
    prune: float
    answer: str
    """Whether its network computes the same as the verified one."""

    @classmethod
    def of(cls, case: Case) -> "Theirs":
        """Return its seconds, each time on a new copy, and whether the result is correct."""
        images = case.entry.images(2)
        copies = [copy.deepcopy(case.model) for _ in range(REPEATS)]
        built: list[tuple[nn.Module, tp.DependencyGraph]] = []
        _, build = measure_time(lambda: built.append(_dependencies(copies.pop(), images)), REPEATS)
        try:
            small, prune = measure_time(lambda: _prune_half(*built.pop(), case.graph), REPEATS)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            return cls(build, math.nan, f"cannot prune it: {_brief(error)}")
        return cls(build, prune, _answer(small, case.result.model, images))


def _dependencies(model: nn.Module, images: Tensor) -> tuple[nn.Module, tp.DependencyGraph]:
    return model, tp.DependencyGraph().build_dependency(model, example_inputs=images)


def _prune_half(
    model: nn.Module, dependencies: tp.DependencyGraph, graph: entrim.ChannelGraph
) -> nn.Module:
    for group in graph.groups:
        layer = model.get_submodule(group.layers[0])
        linear = isinstance(layer, nn.Linear)
        prune = tp.prune_linear_out_channels if linear else tp.prune_conv_out_channels
        removed = list(range(1, group.channels, 2))
        dependencies.get_pruning_group(layer, prune, idxs=removed).prune()
    return model


@torch.no_grad()
def _answer(theirs: nn.Module, ours: nn.Module, images: Tensor) -> str:
    reference = ours(images)
    try:
        error = float((theirs(images) - reference).abs().max() / reference.abs().max())
    except RuntimeError as failure:
        return f"does not run: {_brief(failure)}"
    return "the same" if error < 1e-4 else f"WRONG by {error:.1e}"


def _brief(error: Exception) -> str:
    return str(error).splitlines()[0]


def tracing_and_pruning(cases: list[Case]) -> str:
    """Return the seconds of tracing and pruning, and those of torch-pruning."""
    theirs = [Theirs.of(case) for case in cases]
    rows = [
        (
            case.name,
            len(case.graph.groups),
            case.trace,
            other.build,
            case.trace / other.build,
            case.prune,
            case.slices,
            other.prune,
            max(case.result.proof.sliced, case.result.proof.final),
            other.answer,
        )
        for case, other in zip(cases, theirs, strict=True)
    ]
    header = (
        *("network", "groups", "trace, s", "torch-pruning builds, s", "ratio"),
        *("pruning and verification, s", "pruning alone, s", "torch-pruning prunes, s"),
        *("verified to", "outputs of torch-pruning"),
    )
    proven = all(case.result.proof.final <= case.result.proof.tolerance for case in cases)
    same = sum(other.answer == "the same" for other in theirs)
    return "\n\n".join(
        [
            "## Tracing and pruning\n\nEvery second channel of every group is removed. Our trace "
            "exports the network, prunes it for trial and compares in double precision; our "
            "pruning creates a new network and verifies it twice. torch-pruning prunes in place, "
            f"unverified. Two images, median of {REPEATS}, after one run for warm-up.",
            table(header, rows),
            check_line("every network is verified within its tolerance", proven),
            f"- torch-pruning computes the same on {same} of {len(cases)} networks",
        ]
    )


@dataclass(frozen=True, slots=True)
class Saving:
    """The cost of one network before and after pruning, at one batch size."""

    name: str
    batch: int
    rounds: list[tuple[entrim.Measurement, entrim.Measurement]]

    @classmethod
    def of(cls, case: Case, batch: int) -> "Saving":
        """Return the saving on `batch` images, interleaved."""
        images = case.entry.images(batch)

        def cost(net: nn.Module) -> entrim.Measurement:
            return entrim.measure(net, images, repeats=PASSES, threads=1)

        rounds = [(cost(case.model), cost(case.result.model)) for _ in range(ROUNDS)]
        return cls(case.name, batch, rounds)

    @property
    def ratios(self) -> list[float]:
        """The speedup in each round, ascending."""
        return sorted(big.latency.median / small.latency.median for big, small in self.rounds)

    def row(self) -> tuple[object, ...]:
        """Return the row of the table."""
        big, small = self.rounds[0]
        before, after = (
            1e3 * statistics.median(pair[side].latency.median for pair in self.rounds)
            for side in (0, 1)
        )
        low, high = self.ratios[0], self.ratios[-1]
        return (
            *(self.name, f"{big.params:,}", f"{small.params:,}", big.params / small.params),
            *(f"{big.macs:,}", f"{small.macs:,}", big.macs / small.macs),
            *(self.batch, before, after, statistics.median(self.ratios), f"{low:.2f}-{high:.2f}"),
        )


def saving(cases: list[Case]) -> str:
    """Return parameters, MACs and measured latency before and after."""
    savings = [
        Saving.of(case, batch) for case in cases for batch in BATCHES.get(case.name, (1, 32))
    ]
    header = (
        *("network", "parameters", "after", "fewer", "MACs", "after", "fewer"),
        *("batch", "ms", "after", "faster", "range"),
    )
    faster = all(statistics.median(item.ratios) > 1 for item in savings)
    return "\n\n".join(
        [
            "## Savings of a half-size network\n\nMACs are of one image. Before and after are "
            f"interleaved on one thread, {ROUNDS} rounds of {PASSES} passes; ms are medians, "
            "fewer and faster are ratios, before to after; the range of faster is over the rounds.",
            table(header, [item.row() for item in savings]),
            check_line("every half-size network is faster at every batch size", faster),
        ]
    )


def main() -> None:
    """Measure, print each section, write all of them."""
    warnings.simplefilter("ignore")
    Theirs.of(Case.of("LeNet"))
    cases = [Case.of(name) for name in ZOO]
    sections = []
    for measured in (tracing_and_pruning, saving):
        sections.append(measured(cases))
        print(sections[-1], end="\n\n", flush=True)
    print(write("Network", "python -m experiments bench network", sections))
