"""Methods to choose the widths, at equal budgets, without training and without labels.

`python -m experiments bench allocation` measures what is missing in its ledger and writes the
table; with names of networks only those. Needs ENTRIM_ASSETS.
"""

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

import entrim
from experiments.benchmarks.cifar import REPORT, BenchmarkModel, accuracy, interval
from experiments.benchmarks.plots import PICTURES, plot_allocation
from experiments.benchmarks.record import Ledger, check_line, has_weights, table, write
from experiments.benchmarks.widths import METHODS, RANDOM, BudgetBenchmark

NETWORKS = ("lenet", "cifar10_resnet20", "cifar10_resnet56", "cifar10_vgg16")
SHARES, TIMES = (0.75, 0.5, 0.25, 0.1), (1.5, 2.0, 3.0)
BUDGETS = {
    **{f"{share:.0%} of the parameters": entrim.Budget(params=share) for share in SHARES},
    **{f"{times}x fewer MACs": entrim.Budget(macs=1 / times) for times in TIMES},
}
PEER = "cifar10_resnet56", "2.1x fewer MACs", entrim.Budget(macs=1 / 2.1)
"""The point at which another paper reports sparse training with labels."""
CHANCE = 10.0

OTHERS = [method for method in METHODS if method != "allocation"]


def point(bench: BudgetBenchmark, method: str, budget: entrim.Budget) -> dict[str, Any]:
    """Return the result of one method under one budget; empty if it cannot reach it."""
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = METHODS[method](bench, budget)
        if found is None:
            return {}
        model = found if isinstance(found, nn.Module) else found.model
        measured = {"seconds": round(time.perf_counter() - begin, 1), **_evaluate(bench, model)}
        if method == "allocation" and isinstance(found, entrim.SparsifyResult):
            distilled = entrim.distill(found, bench.tested.images).model
            measured["distilled"] = _evaluate(bench, distilled)["report"]
    return measured


def _evaluate(bench: BudgetBenchmark, model: nn.Module) -> dict[str, float]:
    cost = entrim.measure(model, bench.example_inputs, repeats=2)
    return {
        "params": cost.params / bench.full_sizes["params"],
        "macs": cost.macs / bench.full_sizes["macs"],
        "report": _accuracy(bench.tested, model),
    }


def measure(name: str, ledger: Ledger) -> None:
    """Measure every cell of one network that is missing in the ledger."""
    known = ledger.points()
    budgets = dict(BUDGETS)
    if name == PEER[0]:
        budgets[PEER[1]] = PEER[2]
    keys = {f"{name} | {b} | {m}": (b, m) for b in budgets for m in METHODS}
    missing = {key: cell for key, cell in keys.items() if key not in known}
    if not missing:
        return
    bench = BudgetBenchmark.of(name)
    intact = {"report": _accuracy(bench.tested, bench.tested.model)}
    ledger.point(f"{name} | intact", lambda: intact)
    for key, (budget, method) in missing.items():
        ledger.point(key, lambda b=budgets[budget], m=method: point(bench, m, b))


def _accuracy(tested: BenchmarkModel, model: nn.Module) -> float:
    return accuracy(model, tested.test_images[REPORT], tested.test_labels[REPORT])


def section(points: Mapping[str, Mapping[str, Any]], name: str) -> str:
    """Return the table of one network."""
    budgets = [*BUDGETS, *([PEER[1]] if name == PEER[0] else [])]
    rows = []
    for budget in budgets:
        cells = {m: points.get(f"{name} | {budget} | {m}") for m in METHODS}
        ours = cells["allocation"] or {}
        row: list[object] = [budget, _cell(cells["allocation"])]
        row.append(f"{ours['distilled']:.2f}" if "distilled" in ours else "not run")
        rows.append([*row, *(_cell(cells[method]) for method in OTHERS)])
    intact = points[f"{name} | intact"]["report"]
    lines = [
        f"## {name}, intact {intact:.2f} ± {interval(intact):.2f}",
        table(("budget", "allocation", "+ distill", *OTHERS), rows),
    ]
    return "\n\n".join(lines)


def _cell(point: Mapping[str, Any] | None) -> str:
    if point is None:
        return "not run"
    if "report" not in point:
        return "cannot"
    return f"{point['report']:.2f} ({100 * point['params']:.0f}/{100 * point['macs']:.0f})"


def checks(points: Mapping[str, Mapping[str, Any]]) -> str:
    """Return whether the allocation is best on average, and its largest distance from the best."""
    behind: dict[str, float] = {}
    means: dict[str, list[float]] = {m: [] for m in ("allocation", "+ distill", *OTHERS)}
    for name in NETWORKS:
        for budget in BUDGETS:
            keys = {m: f"{name} | {budget} | {m}" for m in METHODS}
            cells = {m: points[key] for m, key in keys.items() if key in points}
            if not {"allocation", "uniform", "one eps", "torch-pruning"} <= cells.keys():
                continue
            for method, cell in cells.items():
                means[method].append(cell.get("report", CHANCE))
            means["+ distill"].append(cells["allocation"].get("distilled", math.nan))
            best = max(cells[m].get("report", 0.0) for m in OTHERS if m in cells)
            behind[f"{name}, {budget}"] = best - cells["allocation"]["report"]
    if not behind:
        return "No cell was measured."
    average = {m: sum(v) / len(v) for m, v in means.items() if len(v) == len(behind)}
    worst = max(behind, key=lambda cell: behind[cell])
    text = ", ".join(f"{method} {value:.2f}" for method, value in average.items())
    lines = [
        f"Mean accuracy over {len(behind)} cells, {CHANCE:.0f} where a method cannot reach the "
        f"budget: {text}.",
        check_line(
            "the allocation is best on average of the methods without training",
            average["allocation"] == max(average[m] for m in METHODS if m in average),
        ),
        check_line(
            f"nowhere more than 0.5 below the best: at most {behind[worst]:.2f} ({worst})",
            behind[worst] <= 0.5,
        ),
    ]
    for name, budget, bar in (
        ("cifar10_resnet20", "2.0x fewer MACs", 86.0),
        (PEER[0], PEER[1], 88.9),
    ):
        if cell := points.get(f"{name} | {budget} | allocation"):
            text = f"{name}, {budget}: above {bar}: {cell['report']:.2f}"
            lines.append(check_line(text, cell["report"] > bar))
    return "\n\n".join(lines)


def overview(points: Mapping[str, Mapping[str, Any]], known: Sequence[str]) -> str:
    """Return a table of all networks, and one with distillation and random channels."""

    def cell(name: str, budget: str, method: str, key: str = "report") -> str:
        found = points.get(f"{name} | {budget} | {method}")
        if found is not None and "report" not in found:
            return "cannot"
        return f"{found[key]:.1f}" if found and key in found else "-"

    methods = [method for method in METHODS if method != RANDOM]
    rows = [
        [budget, *(" / ".join(cell(name, budget, m) for m in methods) for name in known)]
        for budget in BUDGETS
    ]
    trained = [("allocation", "report"), ("allocation", "distilled"), (RANDOM, "report")]
    more = [
        [budget, *(", ".join(cell(n, budget, m, key) for m, key in trained) for n in known)]
        for budget in BUDGETS
    ]
    header = [f"{n} ({points[f'{n} | intact']['report']:.1f})" for n in known]
    return "\n\n".join(
        [
            "## All networks",
            f"`-` was not run, `cannot` is out of reach: {' / '.join(methods)}.",
            table(("remains", *header), rows),
            "Allocation, the same distilled, and random channels at its widths:",
            table(("remains", *known), more),
        ]
    )


def main(parts: Sequence[str]) -> None:
    """Measure the requested networks, then write the tables of all known points."""
    if not has_weights():
        return
    ledger = Ledger.open("allocation")
    for name in parts or NETWORKS:
        measure(name, ledger)
    points = ledger.points()
    note = (
        "Accuracy in percent on test images 5,000-9,999, without labels, from 500 images; in "
        "brackets the parameters and MACs that remain, in percent. Nothing is trained except under "
        "`+ distill`, which uses the same 500 images. All methods except torch-pruning's global "
        "magnitude, which keeps the original weights, have the same reconstruction; one eps is the "
        "smallest from 1e-7, up to 15 percent, within the budget: widths jump, so it may remove "
        "more than necessary."
    )
    known = [name for name in NETWORKS if f"{name} | intact" in points]
    looks = {"allocation": "allocation", "+ distill": "allocation", **{m: m for m in OTHERS}}
    plot_allocation(points, known, looks, PICTURES / "allocation.png")
    sections = [
        note,
        checks(points),
        overview(points, known),
        *(section(points, name) for name in known),
    ]
    print(write("allocation", "python -m experiments bench allocation", sections))
