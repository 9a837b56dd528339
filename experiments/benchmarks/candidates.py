"""What tells the damage of a cut: candidates for the allocation, at equal budgets.

`python -m experiments bench candidates` measures what its ledger lacks and writes the table; with
names of networks only those. Needs ENTRIM_ASSETS.
"""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import entrim
from entrim.allocate import AllocationProblem, SensitivityCurve
from entrim.allocation.sensitivity import SensitivityAnalyzer
from entrim.budgeting import SENSED, ChannelRanking, measure_sensitivity, rank_channels
from entrim.calibration.collect import gram_of
from entrim.calibration.data import read_images
from entrim.calibration.tensor_store import TensorStore
from entrim.deciding import Scene
from entrim.reconstruction.layer import masked_tensors, refit_layer
from entrim.run import Run
from entrim.settings import Settings
from experiments.benchmarks.cifar import DEV, Subject, percent_right
from experiments.benchmarks.ledger import Ledger, networks_at_hand
from experiments.benchmarks.record import table, write
from experiments.benchmarks.widths import subject_of

NETWORKS = ("lenet", "cifar10_resnet20", "cifar10_resnet56", "cifar10_vgg16")
TIMES = (2.0, 3.0)
DRAWS = 4
"""Labels drawn from the network's own probabilities for each image."""


@dataclass(slots=True, eq=False)
class Bench:
    """One network looked at once, as far as the damages of its groups."""

    subject: Subject
    run: Run
    scene: Scene
    grams: TensorStore
    ladders: Mapping[str, ChannelRanking]
    sensor: SensitivityAnalyzer
    market: AllocationProblem

    @classmethod
    def of(cls, name: str) -> "Bench":
        subject = subject_of(name)
        images = read_images(subject.images, torch.device("cpu"), torch.float32)
        run = Run(subject.model, Settings(), images, None, lambda _: None)
        example = subject.images[:4]
        graph = entrim.trace(subject.model, example)
        scene = Scene.of(run, graph, images)
        grams = TensorStore(run.settings.memory_limit)
        asks = run.settings.asks(graph, scene.alone)
        ladders = rank_channels(run, scene, asks, grams, example)
        sensor, market = measure_sensitivity(run, scene, ladders, grams, example)
        return cls(subject, run, scene, grams, ladders, sensor, market)

    def finished(self, widths: Mapping[str, int]) -> nn.Module:
        """Return the network at these widths, its channels those of the ladders, rebuilt."""
        scores = {name: _ranks(ladder.order) for name, ladder in self.ladders.items()}
        wanted = {name: widths[name] for name in self.ladders}
        images = self.subject.images
        return entrim.sparsify(self.subject.model, images, widths=wanted, scores=scores).model

    def looked(
        self, sensor: SensitivityAnalyzer, held: Mapping[str, tuple[int, ...]]
    ) -> AllocationProblem:
        """Return the market with the damages that `sensor` finds while the others are held."""
        trials = {n: [ladder.kept(w) for w in ladder.widths] for n, ladder in self.ladders.items()}
        damages = {
            name: SensitivityCurve.of(
                dict(zip(self.ladders[name].widths, (m.divergence for m in moved), strict=True))
            )
            for name, moved in sensor.sweep(trials, held)
        }
        return replace(self.market, damages=damages)


def _ranks(order: Sequence[int]) -> list[float]:
    """Return for every channel how late it is given up."""
    return [float(order.index(channel)) for channel in range(len(order))]


def divergence(bench: Bench) -> AllocationProblem:
    """The divergence of the outputs with one group cut: the default."""
    return bench.market


def with_images(count: int) -> Callable[[Bench], AllocationProblem]:
    """Return the default with another number of images."""

    def sensed(bench: Bench) -> AllocationProblem:
        task, images = bench.scene.task, bench.run.images.count
        batches = max(1, round(len(task.batches) * count / images))
        some = replace(task, programs=task.programs[:batches], batches=task.batches[:batches])
        return bench.looked(replace(bench.sensor, task=some), held={})

    return sensed


def second_round(bench: Bench) -> AllocationProblem:
    """The divergence again, with the other groups held at the first allocation of 2x."""
    limits = entrim.Budget(macs=0.5).limits(bench.market.sizes)
    widths = bench.market.fill_slack(bench.market.greedy_path(limits)[-1], limits).widths
    held = {name: ladder.kept(widths[name]) for name, ladder in bench.ladders.items()}
    return bench.looked(bench.sensor, held)


def layer_error(bench: Bench) -> AllocationProblem:
    """The squared errors of the layers that read a group, relative to their variance."""
    damages = {}
    for name, ladder in bench.ladders.items():
        damages[name] = SensitivityCurve.of(
            {w: _refitted(bench, name, w)[1] for w in ladder.widths}
        )
    return replace(bench.market, damages=damages)


def _refitted(bench: Bench, name: str, width: int) -> tuple[dict[str, Tensor], float]:
    """Return the tensors with one group cut and its readers refitted, and their summed error."""
    graph, original = bench.scene.graph, bench.scene.task.tensors
    kept = bench.ladders[name].kept(width)
    if width == bench.market.full_widths[name]:
        return dict(original), 0.0
    stays = graph.kept_indices({name: kept})
    tensors = masked_tensors(graph, stays, original)
    ridge = bench.run.settings.ridge
    fits = [
        refit_layer(r, gram_of(bench.grams, r.site.layer), stays, original, tensors, ridge)
        for r in bench.scene.reading(graph.group(name))
    ]
    return tensors, sum((fit.error for fit in fits), 0.0)


@dataclass(slots=True)
class _Watched:
    """What one layer reads and puts out, and the gradients of drawn log-probabilities there."""

    x: Tensor | None = None
    y: Tensor | None = None
    gradients: list[Tensor] = field(default_factory=list)


def output_gradients(bench: Bench) -> AllocationProblem:
    """Half the mean square of the change that output gradients foresee: no pass behind a layer.

    To second order the divergence is half the mean of (g . change)^2 with g the gradient of the
    log-probability of a label drawn from the network's own outputs.
    """
    model, images = bench.subject.model, bench.subject.images[:SENSED]
    names = {r.site.layer for n in bench.ladders for r in _readers(bench, n)}
    watched = {name: _Watched() for name in names}
    hooks = [model.get_submodule(n).register_forward_hook(_hook(watched[n])) for n in names]
    g = torch.Generator().manual_seed(0)
    try:
        logs = functional.log_softmax(model(images), 1)
        for _ in range(DRAWS):
            drawn = torch.multinomial(logs.detach().exp(), 1, generator=g)
            outputs = [seen.y for seen in watched.values() if seen.y is not None]
            found = torch.autograd.grad(logs.gather(1, drawn).sum(), outputs, retain_graph=True)
            for seen, gradient in zip(watched.values(), found, strict=True):
                seen.gradients.append(gradient)
    finally:
        for hook in hooks:
            hook.remove()
    damages = {}
    for name, ladder in bench.ladders.items():
        measured = {w: _foreseen(bench, name, w, watched) for w in ladder.widths}
        damages[name] = SensitivityCurve.of(measured)
    return replace(bench.market, damages=damages)


def _readers(bench: Bench, name: str) -> list[Any]:
    return bench.scene.reading(bench.scene.graph.group(name))


def _hook(seen: _Watched) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
    def keep(_: nn.Module, x: tuple[Tensor, ...], y: Tensor) -> None:
        seen.x, seen.y = x[0].detach(), y

    return keep


@torch.no_grad()
def _foreseen(bench: Bench, name: str, width: int, watched: Mapping[str, _Watched]) -> float:
    tensors, _ = _refitted(bench, name, width)
    original = bench.scene.task.tensors
    total: Any = 0.0
    for reader in _readers(bench, name):
        layer, seen = (
            bench.subject.model.get_submodule(reader.site.layer),
            watched[reader.site.layer],
        )
        assert seen.x is not None
        assert seen.y is not None
        mine = {key: tensors[f"{reader.site.layer}.{key}"] for key, _ in layer.named_parameters()}
        change = torch.func.functional_call(layer, mine, seen.x) - seen.y
        home = reader.site.bias_home or ""
        if home.startswith("batchnorm:"):
            mean = f"{home.removeprefix('batchnorm:')}.running_mean"
            moved = tensors[mean] - original[mean]
            change = change - moved.view(-1, *[1] * (change.dim() - 2))
        total = total + torch.stack([(g * change).flatten(1).sum(1) for g in seen.gradients])
    return float(total.square().mean() / 2)


Cut = Callable[[float], nn.Module]
"""The network with so many times fewer MACs."""


def by_market(find: Callable[[Bench], AllocationProblem]) -> Callable[[Bench], Cut]:
    """Return the allocation by these damages, told once for all sizes."""

    def prepare(bench: Bench) -> Cut:
        market = find(bench)

        def cut(times: float) -> nn.Module:
            limits = entrim.Budget(macs=1 / times).limits(market.sizes)
            widths = market.fill_slack(market.greedy_path(limits)[-1], limits).widths
            return bench.finished(widths)

        return cut

    return prepare


def in_two_cuts(bench: Bench) -> Cut:
    """Return the default, half of the way cut and rebuilt before the damages are told anew."""
    whole = bench.market.sizes["macs"]

    def cut(times: float) -> nn.Module:
        model = bench.subject.model
        for share in (times**-0.5, 1 / times):
            budget = entrim.Budget(macs=int(whole * share))
            model = entrim.sparsify(model, bench.subject.images, budget=budget).model
        return model

    return cut


WAYS: dict[str, Callable[[Bench], Cut]] = {
    "divergence of the outputs, 256 images (default)": by_market(divergence),
    "64 images": by_market(with_images(64)),
    "500 images": by_market(with_images(500)),
    "again with the others held, a second round": by_market(second_round),
    "relative errors of the layers": by_market(layer_error),
    "output gradients instead of passes": by_market(output_gradients),
    "again after half of the cut, in two runs": in_two_cuts,
}


def measure(name: str, ledger: Ledger) -> None:
    """Measure what the ledger lacks of one network."""
    bench = cache(lambda: Bench.of(name))
    for way, prepare in WAYS.items():
        ready = cache(lambda prepare=prepare: prepare(bench()))
        for times in TIMES:

            def once(times: float = times, ready: Callable[[], Cut] = ready) -> dict[str, Any]:
                begin = time.perf_counter()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    model = ready()(times)
                seconds = round(time.perf_counter() - begin, 1)
                subject = bench().subject
                right = percent_right(model, subject.tests[DEV], subject.labels[DEV])
                return {"seconds": seconds, "dev": right}

            ledger.point(f"{name} | {way} | {times}", once)


def main(parts: Sequence[str]) -> None:
    """Measure what is asked for, then write the table of all that is known."""
    if not networks_at_hand():
        return
    ledger = Ledger.called("candidates")
    for name in parts or NETWORKS:
        measure(name, ledger)
    points = ledger.points()
    rows = []
    for way in WAYS:
        cells = [points.get(f"{n} | {way} | {t}") for n in NETWORKS for t in TIMES]
        rows.append([way, *(f"{c['dev']:.2f}" if c else "not run" for c in cells)])
    header = ("damage by", *(f"{name}, {times}x" for name in NETWORKS for times in TIMES))
    note = "Accuracy in percent on test images 0-1,999, 500 images to look at, nothing trained."
    print(
        write("candidates", "python -m experiments bench candidates", [note, table(header, rows)])
    )
