"""The time that a budget costs and saves, in seconds: run it on an idle machine.

`python -m experiments bench timing` measures what is missing in its ledger and writes the tables.
Needs ENTRIM_ASSETS.
"""

import time
import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any

import entrim
from entrim.errors import BudgetError
from experiments.benchmarks.cifar import REPORT, BenchmarkModel, accuracy
from experiments.benchmarks.record import Ledger, check_line, has_weights, table, write

NETWORKS = ("cifar10_resnet20", "cifar10_resnet56", "cifar10_vgg16")
BATCHES = (1, 32)
PLAIN, MACS = "eps of 1e-5, no budget", "half the MACs"
TIME = {f"half the time, batch of {batch}": batch for batch in BATCHES}
MOST = 6
Points = Mapping[str, Mapping[str, Any]]

load_model = cache(BenchmarkModel.of)


def requests(name: str) -> tuple[str, ...]:
    """Return the requests; half the time only where it takes minutes at most."""
    return (PLAIN, MACS) if name == "cifar10_resnet56" else (PLAIN, MACS, *TIME)


def options(name: str, request: str) -> dict[str, Any]:
    """Return the options of `sparsify`; latencies are half of the present one."""
    if request == PLAIN:
        return {"budget": entrim.EntropicPenalty(eps_w=-1e-5, eps_l2=1e-5)}
    if request == MACS:
        return {"budget": entrim.Budget(macs=0.5)}
    example = load_model(name).images[: TIME[request]]
    now = entrim.measure(load_model(name).model, example).latency.median
    return {"budget": entrim.Budget(latency=now / 2), "example_inputs": example}


def run(name: str, request: str) -> dict[str, Any]:
    """Return the seconds of one run by stage, and its savings; or why it is impossible."""
    model, images = load_model(name).model, load_model(name).images
    chosen = options(name, request)
    begin = time.perf_counter()
    try:
        done = entrim.sparsify(model, images, **chosen)
    except BudgetError as error:
        return {"cannot": str(error)}
    total = time.perf_counter() - begin
    tests, labels = load_model(name).test_images[REPORT], load_model(name).test_labels[REPORT]
    found = {
        "seconds": {**done.record.seconds, "total": total},
        "macs": done.record.before.macs / done.record.after.macs,
        "report": accuracy(done.model, tests, labels),
    }
    for batch in BATCHES:
        before, after = (entrim.measure(net, images[:batch]).latency for net in (model, done.model))
        found[f"time {batch}"] = before.median / after.median
        found[f"deviation {batch}"] = max(
            before.deviation / before.median, after.deviation / after.median
        )
    return found


def cost_section(points: Points) -> str:
    """Return the seconds by stage, and whether a budget costs at most `MOST` times more."""
    rows, lines = [], []
    stages = (
        "trace",
        "collect",
        "select",
        "sensitivity",
        "allocate",
        "reconstruct",
        "prune",
        "total",
    )
    for name in NETWORKS:
        keys = {request: f"{name} | {request}" for request in (PLAIN, MACS)}
        spent = {r: points[k]["seconds"] for r, k in keys.items() if k in points}
        for request, seconds in spent.items():
            cells = (f"{seconds[s]:.1f}" if s in seconds else "" for s in stages)
            rows.append([name, request, *cells])
        if len(spent) == len(keys):
            ratio = spent[MACS]["total"] / spent[PLAIN]["total"]
            text = f"{name}: at most {MOST} times the run without a budget: {ratio:.1f}"
            lines.append(check_line(text, ratio <= MOST))
    parts = ["## What a budget costs, seconds", table(("network", "requested", *stages), rows)]
    return "\n\n".join([*parts, *lines])


def saved_section(points: Points) -> str:
    """Return MACs saved and time saved side by side."""
    rows = []
    for name in NETWORKS:
        for request in (PLAIN, MACS, *TIME):
            point = points.get(f"{name} | {request}", {})
            if "cannot" in point:
                rows.append([name, request, "cannot", point["cannot"], "", ""])
            elif point:
                speedups = (
                    f"{point[f'time {b}']:.2f}x (deviation {point[f'deviation {b}']:.0%})"
                    for b in BATCHES
                )
                rows.append(
                    [name, request, f"{point['macs']:.2f}x", *speedups, f"{point['report']:.2f}"]
                )
    times = (f"time saved, batch of {batch}" for batch in BATCHES)
    header = ("network", "requested", "MACs saved", *times, "accuracy, %")
    return f"## MACs saved and time saved\n\n{table(header, rows)}"


def main() -> None:
    """Measure what is missing, then write the tables."""
    if not has_weights():
        return
    ledger = Ledger.open("timing")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in NETWORKS:
            for request in requests(name):
                ledger.point(f"{name} | {request}", lambda n=name, r=request: run(n, r))
    points = ledger.points()
    note = (
        "500 unlabeled images, nothing trained, accuracy on test images 5,000-9,999. Latencies "
        "are medians, original and smaller network measured one after the other."
    )
    sections = [note, cost_section(points), saved_section(points)]
    print(write("timing", "python -m experiments bench timing", sections))
