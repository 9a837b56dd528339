"""What a budget costs and what it saves, in seconds: run it on a machine that does nothing else.

`python -m benchmarks.timing` measures what its ledger lacks and writes the tables. Needs
ENTRIM_ASSETS.
"""

import time
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import entrim
from benchmarks.cifar import REPORT, Subject, percent_right
from benchmarks.ledger import Ledger, networks_at_hand
from benchmarks.record import table, verdict, write
from entrim.errors import BudgetError
from entrim.network.measure import Measurement

COSTED = ("cifar10_resnet56", "cifar10_vgg16")
TIMED = ("cifar10_resnet20", "cifar10_resnet56", "cifar10_vgg16")
BATCHES = (1, 32)
PLAIN: dict[str, Any] = {"eps_w": -1e-5, "eps_l2": 1e-5}
"""A run without a budget, its widths by eps; 1e-5 leaves both networks near their accuracy."""
MOST = 6


def cost(name: str) -> dict[str, Any]:
    """Return the seconds of a run without a budget and of one with it, by stage."""
    subject = Subject.of(name)
    asked = {"plain": PLAIN, "budget": {"budget": entrim.Budget(macs=0.5)}}
    found: dict[str, Any] = {"threads": torch.get_num_threads()}
    for way, options in asked.items():
        begin = time.perf_counter()
        record = entrim.sparsify(subject.model, subject.images, **options).record
        found[way] = {"total": time.perf_counter() - begin, **record.seconds}
    return found


def latency(name: str) -> dict[str, Any]:
    """Return what half the MACs and half the time really give, at one image and at 32."""
    subject = Subject.of(name)
    found: dict[str, Any] = {"threads": torch.get_num_threads()}
    for batch in BATCHES:
        example = subject.images[:batch]
        before = entrim.measure(subject.model, example)
        wishes = {
            "MACs": entrim.Budget(macs=0.5),
            "time": entrim.Budget(latency=before.latency.median / 2),
        }
        for wish, budget in wishes.items():
            found[f"half the {wish}, batch of {batch}"] = _saved(subject, example, budget, before)
    return found


def _saved(
    subject: Subject, example: Tensor, budget: entrim.Budget, before: Measurement
) -> dict[str, Any]:
    """Return what a budget saves, or why it cannot be kept."""
    try:
        r = entrim.sparsify(subject.model, subject.images, budget=budget, example=example)
    except BudgetError as error:
        return {"cannot": str(error)}
    after = entrim.measure(r.model, example)
    return {
        "macs": before.macs / after.macs,
        "time": before.latency.median / after.latency.median,
        "spread": after.latency.spread / after.latency.median,
        "report": percent_right(r.model, subject.tests[REPORT], subject.labels[REPORT]),
    }


def cost_section(points: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the seconds by stage, and whether a budget stays within its bar."""
    known = {name: points[key] for name in COSTED if (key := f"{name} | cost") in points}
    if not known:
        return "What a budget costs was not run."
    rows, lines = [], []
    stages = list(dict.fromkeys(s for one in known.values() for s in one["budget"] if s != "total"))
    for name, found in known.items():
        plain, budget = found["plain"], found["budget"]
        for way, seconds in (("eps", plain), ("half the MACs", budget)):
            told = (f"{seconds[stage]:.1f}" if stage in seconds else "" for stage in stages)
            rows.append([name, way, *told, f"{seconds['total']:.1f}"])
        ratio = budget["total"] / plain["total"]
        text = f"{name}: at most {MOST} times the run without a budget: {ratio:.1f}"
        lines.append(verdict(text, ratio <= MOST))
    header = ("network", "asked for", *stages, "total")
    return "\n\n".join(["## What a budget costs, seconds", table(header, rows), *lines])


def saved_section(points: Mapping[str, Mapping[str, Any]]) -> str:
    """Return MACs saved and time saved side by side."""
    rows = []
    for name in TIMED:
        for wish, cell in points.get(f"{name} | latency", {}).items():
            if not isinstance(cell, Mapping):
                continue
            if "cannot" in cell:
                rows.append([name, wish, "cannot", cell["cannot"], ""])
                continue
            faster = f"{cell['time']:.2f}x (spread {cell['spread']:.0%})"
            rows.append([name, wish, f"{cell['macs']:.2f}x", faster, f"{cell['report']:.2f}"])
    header = ("network", "asked for", "MACs saved", "time saved", "accuracy, %")
    return f"## MACs saved and time saved\n\n{table(header, rows)}" if rows else "Not run."


def main() -> None:
    """Measure what is missing, then write the tables."""
    if not networks_at_hand():
        return
    ledger = Ledger.called("timing")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in COSTED:
            ledger.point(f"{name} | cost", lambda name=name: cost(name))
        for name in TIMED:
            ledger.point(f"{name} | latency", lambda name=name: latency(name))
    points = ledger.points()
    note = (
        "500 unlabelled images, nothing trained, accuracy on test images 5,000-9,999. Latencies "
        "are medians; the spread is that of the smaller network's."
    )
    sections = [note, cost_section(points), saved_section(points)]
    print(write("timing", "python -m benchmarks.timing", sections))


if __name__ == "__main__":
    main()
