"""Ask for a size: how the widths are chosen, at equal budgets, nothing trained and no labels.

`python -m experiments bench allocation` measures what its ledger lacks and writes the table; with
names of networks only those. Needs ENTRIM_ASSETS.
"""

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

import entrim
from experiments.benchmarks.cifar import REPORT, Subject, interval, percent_right
from experiments.benchmarks.ledger import Ledger, networks_at_hand
from experiments.benchmarks.plots import PICTURES, plot_allocation
from experiments.benchmarks.record import table, verdict, write
from experiments.benchmarks.widths import RANDOM, WAYS, Bench

NETWORKS = ("lenet", "cifar10_resnet20", "cifar10_resnet56", "cifar10_vgg16")
SHARES, TIMES = (0.75, 0.5, 0.25, 0.1), (1.5, 2.0, 3.0)
BUDGETS = {
    **{f"{share:.0%} of the parameters": entrim.Budget(params=share) for share in SHARES},
    **{f"{times}x fewer MACs": entrim.Budget(macs=1 / times) for times in TIMES},
}
PEER = "cifar10_resnet56", "2.1x fewer MACs", entrim.Budget(macs=1 / 2.1)
"""Where a peer reports what it reaches after sparse training with labels."""
CHANCE = 10.0

OTHERS = [way for way in WAYS if way != "allocation"]


def point(bench: Bench, way: str, budget: entrim.Budget) -> dict[str, Any]:
    """Return what one way gives under one budget; nothing where it cannot keep it."""
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = WAYS[way](bench, budget)
        if found is None:
            return {}
        model = found if isinstance(found, nn.Module) else found.model
        measured = {"seconds": round(time.perf_counter() - begin, 1), **_measured(bench, model)}
        if way == "allocation" and isinstance(found, entrim.SparsifyResult):
            distilled = entrim.distill(found, bench.subject.images).model
            measured["distilled"] = _measured(bench, distilled)["report"]
    return measured


def _measured(bench: Bench, model: nn.Module) -> dict[str, float]:
    cost = entrim.measure(model, bench.example, repeats=2)
    return {
        "params": cost.params / bench.whole["params"],
        "macs": cost.macs / bench.whole["macs"],
        "report": _right(bench.subject, model),
    }


def measure(name: str, ledger: Ledger) -> None:
    """Measure every cell of one network that the ledger lacks."""
    known = ledger.points()
    budgets = dict(BUDGETS)
    if name == PEER[0]:
        budgets[PEER[1]] = PEER[2]
    keys = {f"{name} | {b} | {way}": (b, way) for b in budgets for way in WAYS}
    missing = {key: cell for key, cell in keys.items() if key not in known}
    if not missing:
        return
    bench = Bench.of(name)
    intact = {"report": _right(bench.subject, bench.subject.model)}
    ledger.point(f"{name} | intact", lambda: intact)
    for key, (budget, way) in missing.items():
        ledger.point(key, lambda b=budgets[budget], w=way: point(bench, w, b))


def _right(subject: Subject, model: nn.Module) -> float:
    return percent_right(model, subject.tests[REPORT], subject.labels[REPORT])


def section(points: Mapping[str, Mapping[str, Any]], name: str) -> str:
    """Return the table of one network."""
    budgets = [*BUDGETS, *([PEER[1]] if name == PEER[0] else [])]
    rows = []
    for budget in budgets:
        cells = {way: points.get(f"{name} | {budget} | {way}") for way in WAYS}
        ours = cells["allocation"] or {}
        row: list[object] = [budget, _cell(cells["allocation"])]
        row.append(f"{ours['distilled']:.2f}" if "distilled" in ours else "not run")
        rows.append([*row, *(_cell(cells[way]) for way in OTHERS)])
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


def verdicts(points: Mapping[str, Mapping[str, Any]]) -> str:
    """Return whether the allocation is best on average, and how far below the best it ever is."""
    behind: dict[str, float] = {}
    means: dict[str, list[float]] = {way: [] for way in ("allocation", "+ distill", *OTHERS)}
    for name in NETWORKS:
        for budget in BUDGETS:
            keys = {way: f"{name} | {budget} | {way}" for way in WAYS}
            cells = {way: points[key] for way, key in keys.items() if key in points}
            if not {"allocation", "uniform", "one eps", "torch-pruning"} <= cells.keys():
                continue
            for way, cell in cells.items():
                means[way].append(cell.get("report", CHANCE))
            means["+ distill"].append(cells["allocation"].get("distilled", math.nan))
            best = max(cells[way].get("report", 0.0) for way in OTHERS if way in cells)
            behind[f"{name}, {budget}"] = best - cells["allocation"]["report"]
    if not behind:
        return "No cell was measured."
    average = {w: sum(v) / len(v) for w, v in means.items() if len(v) == len(behind)}
    worst = max(behind, key=lambda cell: behind[cell])
    told = ", ".join(f"{way} {value:.2f}" for way, value in average.items())
    lines = [
        f"Mean accuracy over {len(behind)} cells, {CHANCE:.0f} where a way cannot keep the budget: "
        f"{told}.",
        verdict(
            "the allocation is best on average of what is not trained",
            average["allocation"] == max(average[way] for way in WAYS if way in average),
        ),
        verdict(
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
            lines.append(verdict(text, cell["report"] > bar))
    return "\n\n".join(lines)


def overview(points: Mapping[str, Mapping[str, Any]], known: Sequence[str]) -> str:
    """Return all networks beside one another, and what distilling and chance give."""

    def cell(name: str, budget: str, way: str, key: str = "report") -> str:
        found = points.get(f"{name} | {budget} | {way}")
        if found is not None and "report" not in found:
            return "cannot"
        return f"{found[key]:.1f}" if found and key in found else "-"

    ways = [way for way in WAYS if way != RANDOM]
    rows = [
        [budget, *(" / ".join(cell(name, budget, way) for way in ways) for name in known)]
        for budget in BUDGETS
    ]
    learnt = [("allocation", "report"), ("allocation", "distilled"), (RANDOM, "report")]
    more = [
        [budget, *(", ".join(cell(n, budget, way, key) for way, key in learnt) for n in known)]
        for budget in BUDGETS
    ]
    header = [f"{n} ({points[f'{n} | intact']['report']:.1f})" for n in known]
    return "\n\n".join(
        [
            "## All networks",
            f"`-` was not run, `cannot` is out of reach: {' / '.join(ways)}.",
            table(("remains", *header), rows),
            "Allocation, the same distilled, and random channels at its widths:",
            table(("remains", *known), more),
        ]
    )


def main(parts: Sequence[str]) -> None:
    """Measure what is asked for, then write the tables of all that is known."""
    if not networks_at_hand():
        return
    ledger = Ledger.called("allocation")
    for name in parts or NETWORKS:
        measure(name, ledger)
    points = ledger.points()
    note = (
        "Accuracy in percent on test images 5,000-9,999, without labels, from 500 images; in "
        "brackets the parameters and MACs that remain, in percent. Nothing is trained but under "
        "`+ distill`, which learns from the same 500 images. All ways but torch-pruning's global "
        "magnitude, which keeps the old weights, are rebuilt alike; one eps is the least "
        "from 1e-7, up to 15 percent, that keeps the budget: widths jump, so it may cut more than "
        "it must."
    )
    known = [name for name in NETWORKS if f"{name} | intact" in points]
    looks = {"allocation": "allocation", "+ distill": "allocation", **{w: w for w in OTHERS}}
    plot_allocation(points, known, looks, PICTURES / "allocation.png")
    sections = [
        note,
        verdicts(points),
        overview(points, known),
        *(section(points, name) for name in known),
    ]
    print(write("allocation", "python -m experiments bench allocation", sections))
