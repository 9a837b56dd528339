"""What a budget costs and what it saves, in seconds: run it on a machine that does nothing else.

`python -m experiments bench timing` measures what its ledger lacks and writes the tables. Needs
ENTRIM_ASSETS.
"""

import time
import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any

import entrim
from entrim.errors import BudgetError
from experiments.benchmarks.cifar import REPORT, Subject, percent_right
from experiments.benchmarks.ledger import Ledger, networks_at_hand
from experiments.benchmarks.record import table, verdict, write

NETWORKS = ("cifar10_resnet20", "cifar10_resnet56", "cifar10_vgg16")
BATCHES = (1, 32)
PLAIN, MACS = "eps of 1e-5, no budget", "half the MACs"
TIME = {f"half the time, batch of {batch}": batch for batch in BATCHES}
MOST = 6
Points = Mapping[str, Mapping[str, Any]]

subject = cache(Subject.of)


def wishes(name: str) -> tuple[str, ...]:
    """Return what is asked for; half the time where it takes minutes at most."""
    return (PLAIN, MACS) if name == "cifar10_resnet56" else (PLAIN, MACS, *TIME)


def options(name: str, wish: str) -> dict[str, Any]:
    """Return what `sparsify` is told, with the latency to be halved as it is at this moment."""
    if wish == PLAIN:
        return {"eps_w": -1e-5, "eps_l2": 1e-5}
    if wish == MACS:
        return {"budget": entrim.Budget(macs=0.5)}
    example = subject(name).images[: TIME[wish]]
    now = entrim.measure(subject(name).model, example).latency.median
    return {"budget": entrim.Budget(latency=now / 2), "example": example}


def run(name: str, wish: str) -> dict[str, Any]:
    """Return the seconds of one run by stage, and what it saves; or why it cannot be."""
    model, images = subject(name).model, subject(name).images
    told = options(name, wish)
    begin = time.perf_counter()
    try:
        done = entrim.sparsify(model, images, **told)
    except BudgetError as error:
        return {"cannot": str(error)}
    total = time.perf_counter() - begin
    tests, labels = subject(name).tests[REPORT], subject(name).labels[REPORT]
    found = {
        "seconds": {**done.record.seconds, "total": total},
        "macs": done.record.before.macs / done.record.after.macs,
        "report": percent_right(done.model, tests, labels),
    }
    for batch in BATCHES:
        before, after = (entrim.measure(net, images[:batch]).latency for net in (model, done.model))
        found[f"time {batch}"] = before.median / after.median
        found[f"spread {batch}"] = max(
            before.deviation / before.median, after.deviation / after.median
        )
    return found


def cost_section(points: Points) -> str:
    """Return the seconds by stage, and whether a budget stays within its bar."""
    rows, lines = [], []
    stages = ("trace", "collect", "choose", "sense", "allocate", "rebuild", "cut", "total")
    for name in NETWORKS:
        keys = {wish: f"{name} | {wish}" for wish in (PLAIN, MACS)}
        spent = {w: points[k]["seconds"] for w, k in keys.items() if k in points}
        for wish, seconds in spent.items():
            told = (f"{seconds[s]:.1f}" if s in seconds else "" for s in stages)
            rows.append([name, wish, *told])
        if len(spent) == len(keys):
            ratio = spent[MACS]["total"] / spent[PLAIN]["total"]
            text = f"{name}: at most {MOST} times the run without a budget: {ratio:.1f}"
            lines.append(verdict(text, ratio <= MOST))
    parts = ["## What a budget costs, seconds", table(("network", "asked for", *stages), rows)]
    return "\n\n".join([*parts, *lines])


def saved_section(points: Points) -> str:
    """Return MACs saved and time saved side by side."""
    rows = []
    for name in NETWORKS:
        for wish in (PLAIN, MACS, *TIME):
            point = points.get(f"{name} | {wish}", {})
            if "cannot" in point:
                rows.append([name, wish, "cannot", point["cannot"], "", ""])
            elif point:
                faster = (
                    f"{point[f'time {b}']:.2f}x (spread {point[f'spread {b}']:.0%})"
                    for b in BATCHES
                )
                rows.append(
                    [name, wish, f"{point['macs']:.2f}x", *faster, f"{point['report']:.2f}"]
                )
    times = (f"time saved, batch of {batch}" for batch in BATCHES)
    header = ("network", "asked for", "MACs saved", *times, "accuracy, %")
    return f"## MACs saved and time saved\n\n{table(header, rows)}"


def main() -> None:
    """Measure what is missing, then write the tables."""
    if not networks_at_hand():
        return
    ledger = Ledger.called("timing")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in NETWORKS:
            for wish in wishes(name):
                ledger.point(f"{name} | {wish}", lambda name=name, wish=wish: run(name, wish))
    points = ledger.points()
    note = (
        "500 unlabelled images, nothing trained, accuracy on test images 5,000-9,999. Latencies "
        "are medians, original and smaller network measured one after the other."
    )
    sections = [note, cost_section(points), saved_section(points)]
    print(write("timing", "python -m experiments bench timing", sections))
