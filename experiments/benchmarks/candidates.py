"""Candidate measures of sensitivity for the allocation, compared at equal budgets.

`python -m experiments bench candidates` measures what is missing in its ledger and writes the
table; with names of networks only those. Needs ENTRIM_ASSETS.
"""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import entrim
from entrim.allocation.allocate import Allocator, SensitivityCurve
from entrim.allocation.sensitivity import measured_widths
from experiments.benchmarks.cifar import DEV, BenchmarkModel, accuracy
from experiments.benchmarks.record import Ledger, has_weights, table, write
from experiments.benchmarks.widths import load_model

NETWORKS = ("lenet", "cifar10_resnet20", "cifar10_resnet56", "cifar10_vgg16")
TIMES = (2.0, 3.0)
IMAGES = 256
"""Number of images for gradients, the same as for the default."""
DRAWS = 4
"""Labels drawn from the network's own probabilities for each image."""
Curves = dict[str, SensitivityCurve]


class OtherAllocator(entrim.Pruner):
    """A pruner that changes how its allocator measures sensitivities."""

    @cached_property
    def allocator(self) -> Allocator:
        found = super().allocator
        self.rankings = found.rankings
        self.prepare(found)
        return found

    def prepare(self, allocator: Allocator) -> None:
        """Replace properties of the allocator; by default none."""


class FixedImages(OtherAllocator):
    """The default, the divergence of the outputs, on another number of images."""

    count: int

    def prepare(self, allocator: Allocator) -> None:
        forward = self.statistics.forward
        batches = max(1, round(len(forward.batches) * self.count / self.images.count))
        allocator.analyzer = replace(allocator.analyzer, task=forward.part(slice(batches)))


class Images64(FixedImages):
    """The default on 64 images."""

    count = 64


class Images500(FixedImages):
    """The default on 500 images."""

    count = 500


FRACTIONS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02)
"""Widths of a group at which other measures than the default are compared."""


class SecondRound(OtherAllocator):
    """The divergence measured again, with the other groups held at the first allocation of 2x."""

    def prepare(self, allocator: Allocator) -> None:
        point = entrim.Pruner(self.model, self.images.batch(slice(None))).select(
            entrim.Budget(macs=0.5)
        )
        held = {name: found.kept for name, found in point.channels.items()}
        self.collect(map(self.graph.group, self.rankings))
        trials = {
            name: [ranking.kept(width) for width in measured_widths(ranking, FRACTIONS)]
            for name, ranking in self.rankings.items()
        }
        found = {
            name: [change.divergence for change in changes]
            for name, changes in allocator.analyzer.sweep(trials, held)
        }
        allocator.curves = {
            name: SensitivityCurve.of(
                {
                    **dict(zip(measured_widths(ranking, FRACTIONS), found[name], strict=True)),
                    ranking.group.channels: 0.0,
                }
            )
            for name, ranking in self.rankings.items()
        }


class LayerErrors(OtherAllocator):
    """The squared errors of the layers that consume a group, relative to their variance."""

    def prepare(self, allocator: Allocator) -> None:
        found = {}
        with self.create_trial_pruner() as trial:
            for name, ranking in self.rankings.items():
                widths = measured_widths(ranking, FRACTIONS)
                values = {width: self.cost(trial, name, width) for width in widths}
                found[name] = SensitivityCurve.of({**values, ranking.group.channels: 0.0})
        allocator.curves = found

    def create_trial_pruner(self) -> entrim.Pruner:
        """Return a pruner to the ranked channels; it refits the consumers of pruned groups only."""
        scores = {
            name: [float(ranking.order.index(channel)) for channel in range(len(ranking.order))]
            for name, ranking in self.rankings.items()
        }
        return entrim.Pruner(
            self.model,
            self.images.batch(slice(None)),
            selector=entrim.Scores(scores),
            reconstruction=entrim.Reconstruction(order="independent"),
        )

    def cost(self, trial: entrim.Pruner, name: str, width: int) -> float:
        """Return the sensitivity to one group at one width."""
        trial.apply(trial.select(entrim.Widths({name: width})))
        return sum((fit.error for fit in trial.fits), 0.0)


@dataclass(slots=True)
class _Captured:
    """The inputs and outputs of one layer, and gradients of log-probabilities at its outputs."""

    x: Tensor | None = None
    y: Tensor | None = None
    gradients: list[Tensor] = field(default_factory=list)


class OutputGradients(LayerErrors):
    """Half the mean square of the change that output gradients predict, without a second pass.

    To second order the divergence is half the mean of (g . change)^2 with g the gradient of the
    log-probability of a label drawn from the network's own outputs.
    """

    @cached_property
    def layer_records(self) -> Mapping[str, _Captured]:
        """The layers that consume channels, on some images."""
        images = self.images.batch(slice(0, IMAGES))
        groups = map(self.graph.group, self.rankings)
        names = [consumer.spec.layer for consumer in self.statistics.consumers_of(*groups)]
        found = {name: _Captured() for name in names}
        hooks = [
            self.model.get_submodule(name).register_forward_hook(_hook(found[name]))
            for name in names
        ]
        generator = torch.Generator().manual_seed(0)
        try:
            with torch.enable_grad():
                logs = functional.log_softmax(self.model(images), 1)
                outputs = [one.y for one in found.values() if one.y is not None]
                for _ in range(DRAWS):
                    drawn = torch.multinomial(logs.detach().exp(), 1, generator=generator)
                    loss = logs.gather(1, drawn).sum()
                    gradients = torch.autograd.grad(loss, outputs, retain_graph=True)
                    for one, gradient in zip(found.values(), gradients, strict=True):
                        one.gradients.append(gradient)
        finally:
            for hook in hooks:
                hook.remove()
        return found

    @torch.no_grad()
    def cost(self, trial: entrim.Pruner, name: str, width: int) -> float:
        selection = trial.select(entrim.Widths({name: width}))
        small = trial.apply(selection).model
        indices = self.graph.kept_indices({name: selection.channels[name].kept})
        total: Any = 0.0
        for consumer in self.statistics.consumers_of(self.graph.group(name)):
            site, one = consumer.spec, self.layer_records[consumer.spec.layer]
            assert one.x is not None
            assert one.y is not None
            kept = indices[site.weight][site.dim]
            change = small.get_submodule(site.layer)(one.x[:, list(kept)]) - one.y.detach()
            target = site.intercept_target or ""
            if target.startswith("batchnorm:"):
                mean = target.removeprefix("batchnorm:")
                shift = small.get_buffer(mean) - self.model.get_buffer(mean)
                change = change - shift.view(-1, *[1] * (change.dim() - 2))
            total = total + torch.stack([(g * change).flatten(1).sum(1) for g in one.gradients])
        return float(total.square().mean() / 2)


def _hook(captured: _Captured) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
    def keep(_: nn.Module, x: tuple[Tensor, ...], y: Tensor) -> None:
        captured.x, captured.y = x[0].detach(), y

    return keep


Prune = Callable[[float], nn.Module]
"""Returns the network with MACs reduced by this factor."""


def allocate_with(pruner: type[entrim.Pruner]) -> Callable[[BenchmarkModel], Prune]:
    """Return the allocation by the curves of `pruner`, computed once for all sizes."""

    def prepare(tested: BenchmarkModel) -> Prune:
        ready = pruner(tested.model, tested.images)
        return lambda times: ready.prune(entrim.Budget(macs=1 / times)).model

    return prepare


def prune_twice(tested: BenchmarkModel) -> Prune:
    """Return the default in two runs: halfway, then measured again and pruned to the end."""
    full = entrim.measure(tested.model, tested.images[:4], repeats=2).macs

    def prune(times: float) -> nn.Module:
        model = tested.model
        for share in (times**-0.5, 1 / times):
            model = entrim.sparsify(
                model, tested.images, entrim.Budget(macs=int(full * share))
            ).model
        return model

    return prune


METHODS: dict[str, Callable[[BenchmarkModel], Prune]] = {
    "divergence of the outputs, 256 images (default)": allocate_with(entrim.Pruner),
    "64 images": allocate_with(Images64),
    "500 images": allocate_with(Images500),
    "again with the others held, a second round": allocate_with(SecondRound),
    "relative errors of the layers": allocate_with(LayerErrors),
    "output gradients instead of passes": allocate_with(OutputGradients),
    "again after half of the pruning, in two runs": prune_twice,
}


def measure(name: str, ledger: Ledger) -> None:
    """Measure what is missing in the ledger for one network."""
    tested = cache(lambda: load_model(name))
    for method, prepare in METHODS.items():
        ready = cache(lambda prepare=prepare: prepare(tested()))
        for times in TIMES:

            def run(times: float = times, ready: Callable[[], Prune] = ready) -> dict[str, Any]:
                begin = time.perf_counter()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    model = ready()(times)
                seconds = round(time.perf_counter() - begin, 1)
                found = accuracy(model, tested().test_images[DEV], tested().test_labels[DEV])
                return {"seconds": seconds, "dev": found}

            ledger.point(f"{name} | {method} | {times}", run)


def main(parts: Sequence[str]) -> None:
    """Measure the requested networks, then write the table of all known points."""
    if not has_weights():
        return
    ledger = Ledger.open("candidates")
    for name in parts or NETWORKS:
        measure(name, ledger)
    command = "python -m experiments bench candidates"
    print(write("candidates", command, [NOTE, format_points(ledger.points())]))


NOTE = "Accuracy in percent on test images 0-1,999, 500 images for calibration, nothing trained."


def format_points(points: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of all points."""
    rows = []
    for method in METHODS:
        cells = [points.get(f"{n} | {method} | {t}") for n in NETWORKS for t in TIMES]
        rows.append([method, *(f"{c['dev']:.2f}" if c else "not run" for c in cells)])
    header = ("sensitivity by", *(f"{name}, {times}x" for name in NETWORKS for times in TIMES))
    return table(header, rows)
