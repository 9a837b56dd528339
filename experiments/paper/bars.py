"""What the LeNet tables shall reach, as drops from the own baseline, and whether they do."""

import statistics
from collections.abc import Mapping, Sequence

from experiments.paper.cutting import Measured
from experiments.paper.published import tables
from experiments.paper.report import NOT_RUN
from experiments.paper.rows import Row

_RAW = {"E1": 0.5, "E2": 1.5}
"""Points that the raw drop may be off the paper's."""
_TUNED, _DEFAULT, _CHANNELS = 0.3, 0.4, 1
_EPOCHS = 10

Found = Sequence[Measured]


def verdicts(
    experiment: str, rows: Sequence[Row], found: Found, baselines: Mapping[int, float]
) -> tuple[str, ...]:
    """Return one line a bar: met, MISSED or not run, with the figure."""
    if experiment == "lenet-conv":
        return tuple(line for row in rows for line in _conv(row, found, baselines))
    if experiment == "lenet-full":
        return tuple(_full(row, found) for row in rows)
    return ()


def _conv(row: Row, found: Found, baselines: Mapping[int, float]) -> list[str]:
    paper, default = _of(found, row, "paper"), _of(found, row, "default")
    base = tables()["lenet-conv"].cell("baseline", "accuracy").value or 0.0
    printed = base - (row.cells["accuracy"].value or 0.0)
    printed_tuned = base - (row.tuned[_EPOCHS].value or 0.0)
    kept = [float(m.cut["widths"]["conv1"]) for m in paper if m.cut]
    raw, tuned = _drops(paper, baselines), _tuned_drops(paper, baselines)
    near = _judged(
        f"{row.name}: channels kept within {_CHANNELS} of {row.widths['conv1']} in every seed",
        kept,
        bool(kept) and max(abs(k - row.widths["conv1"]) for k in kept) <= _CHANNELS,
        ", ".join(f"{k:.0f}" for k in kept),
    )
    lines = [
        near,
        _within(f"{row.name}: raw drop", raw, printed, _RAW[row.name]),
        _within(f"{row.name}: drop after fine tuning", tuned, printed_tuned, _TUNED),
    ]
    if row.name == "E1":
        lost = _drops(default, baselines)
        name = f"{row.name}: our default loses at most {_DEFAULT} before fine tuning"
        lines.append(
            _judged(name, lost, bool(lost) and statistics.mean(lost) <= _DEFAULT, _mean(lost))
        )
    return lines


def _full(row: Row, found: Found) -> str:
    ours = [m for m in _of(found, row, "default") if _EPOCHS in m.tuned and m.cut]
    values = [m.tuned[_EPOCHS] for m in ours]
    wanted = row.tuned[_EPOCHS].value or 0.0
    most = row.cells["parameters"].value or 0.0
    small = all(m.cut["parameters"] <= most for m in ours if m.cut)
    name = (
        f"{row.name}: our default with at most {most:,.0f} parameters, fine tuned, not below "
        f"{wanted}"
    )
    return _judged(
        name, values, bool(values) and small and statistics.mean(values) >= wanted, _mean(values)
    )


def _of(found: Found, row: Row, way: str) -> list[Measured]:
    return [m for m in found if m.row == row.name and m.way == way]


def _drops(found: Found, baselines: Mapping[int, float]) -> list[float]:
    return [baselines[m.seed] - m.cut["accuracy"] for m in found if m.cut]


def _tuned_drops(found: Found, baselines: Mapping[int, float]) -> list[float]:
    return [baselines[m.seed] - m.tuned[_EPOCHS] for m in found if _EPOCHS in m.tuned]


def _within(name: str, drops: list[float], printed: float, points: float) -> str:
    name = f"{name} within {points} of the paper's {printed:.2f}"
    holds = bool(drops) and abs(statistics.mean(drops) - printed) <= points
    return _judged(name, drops, holds, _mean(drops))


def _mean(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.2f}" if values else ""


def _judged(name: str, values: Sequence[float], holds: bool, shown: str) -> str:
    if not values:
        return f"{NOT_RUN}: {name}"
    return f"{'met' if holds else 'MISSED'}: {name} ({shown}; {len(values)} seeds)"
