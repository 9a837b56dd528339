"""The tables of the coverage, from its ledger."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.benchmarks.record import RESULTS, check_line, format_cell, table, write
from experiments.coverage.networks import NETWORKS

Points = Mapping[str, Mapping[str, Any]]
RATIO, TRACED = 3, 0.95
"""Target for the time of a trace, in torch.exports, and for the share of networks that meet it."""
_HEADER = (
    "network",
    "version",
    "outcome",
    "groups",
    "share of parameters",
    "share of MACs",
    "seconds",
    "seconds of torch.export",
    "half of all channels",
    "budget",
    "torch-pruning",
)


def write_tables(points: Points, ledger: Path) -> None:
    """Write the dated tables among the results, if the ledger is there."""
    names = [name for name in NETWORKS if f"{name}: trace" in points]
    if ledger.parent == RESULTS and names:
        write(
            "coverage",
            "python -m experiments coverage",
            ["\n".join(summary(points, names)), details(points, names), reasons(points, names)],
            "Seconds are those of the processor; other programs were running.",
        )


def summary(points: Points, names: Sequence[str]) -> list[str]:
    """Return the figures that are compared with targets, which are met by the whole list only."""
    complete = len(names) == len(NETWORKS)
    rows = [points[f"{name}: trace"] for name in names]
    traced = [row for row in rows if row["status"] in ("traced", "NothingToCutError")]
    timed = [row for row in traced if row["export"] > 0]
    quick = [row for row in timed if row["seconds"] <= RATIO * row["export"]]
    halves = Counter(row["half"]["status"] for row in rows if "half" in row)
    runs = [points[key] for name in names if (key := f"{name}: budget") in points]
    whole = [run for run in runs if run["status"] == "done" and run["loaded"] and run["exported"]]
    peers = Counter(
        points[key]["status"] for name in names if (key := f"{name}: torch-pruning") in points
    )
    return [
        f"{len(rows)} of the {len(NETWORKS)} networks in the list are measured; a target is met "
        "when all of them are.",
        "",
        check_line(
            f"traced: {len(traced)} of {len(rows)}", complete and len(traced) >= TRACED * len(rows)
        ),
        check_line(
            f"trace within {RATIO} torch.exports: {len(quick)} of {len(timed)}",
            complete and len(quick) >= TRACED * len(timed),
        ),
        check_line(
            f"every second channel of every group removed, verified: {halves['verified']} of "
            f"{halves.total()}",
            complete and halves["verified"] == halves.total(),
        ),
        check_line(
            f"pruned to a budget, saved, loaded and exported: {len(whole)} of {len(runs)}",
            complete and len(runs) > 0 and len(whole) == len(runs),
        ),
        f"- torch-pruning: {', '.join(f'{n} {kind}' for kind, n in peers.items()) or 'none'}",
    ]


def details(points: Points, names: Sequence[str]) -> str:
    """Return one row for each network."""
    return "## Networks\n\n" + table(_HEADER, [_row(points, name) for name in names])


def reasons(points: Points, names: Sequence[str]) -> str:
    """Return the reasons of frozen channels, by the number of networks."""
    counts: Counter[str] = Counter()
    for name in names:
        counts.update(points[f"{name}: trace"].get("frozen", {}).keys())
    rows = [(reason, count) for reason, count in counts.most_common()]
    return "## Reasons of frozen channels\n\n" + table(("reason", "networks"), rows)


def _row(points: Points, name: str) -> list[str]:
    row, half = points[f"{name}: trace"], points[f"{name}: trace"].get("half", {})
    run, peer = (points.get(f"{name}: {step}", {}) for step in ("budget", "torch-pruning"))
    cells = [
        name,
        row["library"],
        row["status"],
        row.get("groups", 0),
        row.get("share of parameters", 0.0),
        row.get("share of MACs", 0.0),
        row.get("seconds", ""),
        row.get("export", ""),
        _outcome(half, "parameters"),
        _outcome(run, "macs"),
        _outcome(peer, "parameters"),
    ]
    return [format_cell(cell) for cell in cells]


def _outcome(row: Mapping[str, Any], size: str) -> str:
    """Return the status of a pruned network, and the share of its size that is left."""
    left = f", {row[size]:.2f} of the {size}" if size in row else ""
    return f"{row.get('status', '')}{left}"
