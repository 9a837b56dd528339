"""Removal of entire residual blocks under a budget, against pruning of channels only.

`python -m experiments bench depth` measures what is missing in its ledger and writes the table;
with names of parts only those. Needs ENTRIM_ASSETS. Nothing is trained.
"""

import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import entrim
from entrim.allocation.allocate import Selection
from entrim.surgery.plan import Plan
from entrim.surgery.prune import prune
from experiments.benchmarks.cifar import BenchmarkModel, accuracy
from experiments.benchmarks.record import Ledger, check_line, has_weights, table, write

CHOICE, REPORT = slice(0, 5000), slice(5000, 10000)
"""Test images on which the default was chosen, and on which results are reported."""
FACTORS = {"cifar10_resnet20": (2.0, 3.0), "cifar10_resnet56": (2.1, 3.0)}
LATENCY, LATENCY_NETWORK, BATCH = "latency", "cifar10_resnet20", 32
SHARE, TARGET = 0.5, 75.0
"""Wanted share of the latency, and wanted accuracy there."""
RUNS, STEPS = 40, 6
"""Timed runs of each network, and steps of the bisection."""


def evaluate(tested: BenchmarkModel, model: nn.Module) -> dict[str, float]:
    """Return the accuracy on both halves of the test images."""
    halves = {"choice": CHOICE, "report": REPORT}
    return {
        key: accuracy(model, tested.test_images[half], tested.test_labels[half])
        for key, half in halves.items()
    }


def measure_macs(
    tested: BenchmarkModel, pruner: entrim.Pruner, factor: float, depth: bool
) -> dict[str, Any]:
    """Return the accuracy at a budget of MACs."""
    begin = time.perf_counter()
    result = pruner.prune(entrim.Budget(macs=1 / factor, depth=depth))
    return {
        "seconds": round(time.perf_counter() - begin, 1),
        "removed": list(result.plan.removed_blocks),
        "macs": result.record.after.macs / result.record.before.macs,
        **evaluate(tested, result.model.eval()),
    }


@torch.no_grad()
def latency_share(small: nn.Module, original: nn.Module, images: Tensor) -> float:
    """Return the ratio of the minimum seconds of two networks that run in turn.

    The minimum is not affected by other processes as a median is.
    """
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(RUNS):
        for is_small, model in ((True, small), (False, original)):
            begin = time.perf_counter()
            model(images)
            seconds[is_small].append(time.perf_counter() - begin)
    return min(seconds[True]) / min(seconds[False])


def prune_selection(pruner: entrim.Pruner, selection: Selection) -> nn.Module:
    """Return the network of a selection, without reconstruction."""
    widths = {name: len(found.kept) for name, found in selection.channels.items()}
    kept = {name: found.kept for name, found in selection.channels.items() if found.kept}
    plan = Plan(kept, removed_blocks=pruner.graph.emptied_blocks(widths))
    return prune(pruner.model, plan, pruner.example_inputs, graph=pruner.graph).model.eval()


def measure_latency(tested: BenchmarkModel, pruner: entrim.Pruner, depth: bool) -> dict[str, Any]:
    """Return the accuracy of the widest network whose measured latency is `SHARE` of the original.

    The limit of the estimated latency is bisected, because the seconds of a busy machine vary. The
    latency of the result is measured again.
    """
    costs, images = pruner.allocator.timed_costs, tested.images[:BATCH]
    full = costs.at({group.name: group.channels for group in pruner.graph.groups})["seconds"]
    low, high, best = 0.2, 0.7, None
    for _ in range(STEPS):
        share = (low + high) / 2
        limit = (lambda widths: costs.at(widths)["seconds"], share * full)
        try:
            selection = pruner.select(
                entrim.Budget(costs={"seconds of layers": limit}, depth=depth)
            )
        except entrim.errors.BudgetError:
            low = share
            continue
        measured = latency_share(prune_selection(pruner, selection), tested.model, images)
        if measured <= SHARE:
            low, best = share, selection
        else:
            high = share
    if best is None:
        return {}
    pruned = pruner.apply(best)
    macs = [entrim.measure(m, images, repeats=2).macs for m in (pruned.model, tested.model)]
    return {
        "latency": latency_share(pruned.model.eval(), tested.model, images),
        "removed": list(pruned.plan.removed_blocks),
        "macs": macs[0] / macs[1],
        **evaluate(tested, pruned.model.eval()),
    }


def measure(name: str, ledger: Ledger) -> None:
    """Measure all points of one part."""
    network = LATENCY_NETWORK if name == LATENCY else name
    tested = BenchmarkModel.of(network)
    tested.model.eval()
    inputs = tested.images[:BATCH] if name == LATENCY else None
    with (
        warnings.catch_warnings(),
        entrim.Pruner(tested.model, tested.images, example_inputs=inputs) as pruner,
    ):
        warnings.simplefilter("ignore")
        for depth in (True, False):
            shown = "with depth" if depth else "channels only"
            if name == LATENCY:
                key = f"{network} | half of the latency | {shown}"
                ledger.point(key, lambda d=depth: measure_latency(tested, pruner, d))
            for factor in () if name == LATENCY else FACTORS[name]:
                key = f"{network} | {factor}x fewer MACs | {shown}"
                ledger.point(key, lambda f=factor, d=depth: measure_macs(tested, pruner, f, d))


def section(points: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of all points."""
    rows = []
    for key, point in points.items():
        if "report" not in point:
            rows.append([*key.split(" | "), "cannot", "", "", "", ""])
            continue
        cells = [point["report"], point["choice"], point["macs"], point.get("latency", "")]
        rows.append([*key.split(" | "), *cells, ", ".join(point["removed"])])
    header = ("network", "budget", "candidates", "accuracy", "on images 0-4,999")
    return table((*header, "MACs", "latency", "removed blocks"), rows)


def checks(points: Mapping[str, Mapping[str, Any]]) -> str:
    """Return whether the accuracy at half of the latency is reached."""
    found = points.get(f"{LATENCY_NETWORK} | half of the latency | with depth", {})
    value = found.get("report", 0.0)
    return check_line(f"{TARGET} at half of the latency: {value:.2f}", value >= TARGET)


def main(parts: Sequence[str]) -> None:
    """Measure the requested parts, then write the table of all known points."""
    if not has_weights():
        return
    ledger = Ledger.open("depth")
    for name in parts or (*FACTORS, LATENCY):
        measure(name, ledger)
    points = ledger.points()
    note = (
        "Accuracy in percent on test images 5,000-9,999, without labels, from 500 images; MACs and "
        f"latency as shares of the original. The latency is that of a batch of {BATCH} images on "
        "one thread, the ratio of minima over runs in turn."
    )
    print(
        write("depth", "python -m experiments bench depth", [note, checks(points), section(points)])
    )
