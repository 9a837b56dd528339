"""The lines of a table, published next to ours, and the checks below the LeNet tables."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from experiments.paper.pruning import METHODS, RowResult
from experiments.paper.published import Cell, tables
from experiments.paper.report import NOT_RUN, Line
from experiments.paper.rows import EMPTY, Row

Get = Callable[[RowResult], float | str | None]
Results = Sequence[RowResult]
_DECIMALS = {"parameters": 0, "FLOPs": 0}
_QUANTITIES = {"FLOPs": "FLOPs; ours MACs", "size": "size, MB", "speedup": "speedup, batch of 4"}
_TRAININGS = {
    "tuned": "fine tuned",
    "scratch": "from scratch",
    "by_epoch": "along one training from scratch",
}
_RAW = {"E1": 0.5, "E2": 1.5}
"""Percentage points by which the raw drop may differ from the paper's."""
_TUNED, _DEFAULT, _CHANNELS = 0.3, 0.4, 1
_EPOCHS = 10


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of one table, from new and earlier results."""

    found: Results
    baselines: Mapping[int, float]
    """By seed."""
    printed: Cell
    """The paper's baseline."""

    def of(self, row: Row, requested: Row) -> list[Line]:
        """Return the lines of one row, with published, requested and known epochs."""
        paper = Cell("-".join(map(str, row.widths.values())))
        lines = [
            self._line(row, "channels kept", paper, lambda r: _widths(r, row)),
            self._line(row, "channels alive", EMPTY, lambda r: _alive(r, row)),
        ]
        for name, cell in row.cells.items():
            if name == "accuracy":
                lines += self._accuracy(row, "raw", cell, lambda r: _figure(r, "accuracy"))
            else:
                lines.append(self._line(row, name, cell, lambda r, name=name: _figure(r, name)))
        mine = [result for result in self.found if result.row == row.name]
        for training, text in _TRAININGS.items():
            printed = getattr(row, training)
            found = {epochs for result in mine for epochs in getattr(result, training)}
            for epochs in sorted({*printed, *getattr(requested, training), *found}):
                get = lambda r, t=training, n=epochs: getattr(r, t).get(n)  # noqa: E731
                name = f"{text} {epochs} epoch{'s' * (epochs > 1)}"
                lines += self._accuracy(row, name, printed.get(epochs, EMPTY), get)
        return lines

    def _accuracy(
        self, row: Row, name: str, cell: Cell, get: Callable[[RowResult], float | None]
    ) -> list[Line]:
        """Return the accuracy and the drop from the own baseline."""
        base = self.printed.value
        drop = EMPTY
        if base is not None and cell.value is not None:
            drop = Cell(f"{base - cell.value:.2f}")

        def get_drop(result: RowResult) -> float | None:
            value = get(result)
            return None if value is None else self.baselines[result.seed] - value

        return [
            self._line(row, f"accuracy, {name}", cell, get),
            self._line(row, f"drop, {name}", drop, get_drop),
        ]

    def _line(self, row: Row, name: str, paper: Cell, get: Get) -> Line:
        def values(method: str) -> list[float | str]:
            some = (get(r) for r in self.found if (r.row, r.method) == (row.name, method))
            return [v if isinstance(v, str) else float(v) for v in some if v is not None]

        return Line(
            row=row.name,
            quantity=_QUANTITIES.get(name, name),
            paper=paper,
            arithmetic=row.arithmetic.get(name, EMPTY),
            ours={method: values(method) for method in METHODS},
            decimals=_DECIMALS.get(name, 2),
            seeds=len(self.baselines),
        )


def _widths(result: RowResult, row: Row) -> str | None:
    if result.pruned is None:
        return None
    return "-".join(str(result.pruned["widths"][group]) for group in row.widths)


def _alive(result: RowResult, row: Row) -> str | None:
    if not result.alive:
        return None
    return "-".join(str(result.alive[group]) for group in row.widths)


def _figure(result: RowResult, name: str) -> float | None:
    """Return a quantity of the pruned network, in the unit of the paper."""
    if name == "speedup":
        return None if result.timing is None else result.timing["speedup"]
    if result.pruned is None:
        return None
    return result.pruned["bytes"] / 1e6 if name == "size" else float(result.pruned[name])


def checks(
    experiment: str, rows: Sequence[Row], found: Results, baselines: Mapping[int, float]
) -> tuple[str, ...]:
    """Return one line per check of a LeNet table: met, MISSED or not run, with the figure."""
    if experiment == "lenet-conv":
        return tuple(line for row in rows for line in _conv_checks(row, found, baselines))
    if experiment == "lenet-full":
        return tuple(_full_check(row, found) for row in rows)
    return ()


def _conv_checks(row: Row, found: Results, baselines: Mapping[int, float]) -> list[str]:
    paper, default = _select(found, row, "paper"), _select(found, row, "default")
    base = tables()["lenet-conv"].cell("baseline", "accuracy").value or 0.0
    printed = base - (row.cells["accuracy"].value or 0.0)
    printed_tuned = base - (row.tuned[_EPOCHS].value or 0.0)
    kept = [float(r.pruned["widths"]["conv1"]) for r in paper if r.pruned]
    raw, tuned = _raw_losses(paper, baselines), _tuned_losses(paper, baselines)
    lines = [
        _check(
            f"{row.name}: channels kept within {_CHANNELS} of {row.widths['conv1']} in every seed",
            kept,
            bool(kept) and max(abs(k - row.widths["conv1"]) for k in kept) <= _CHANNELS,
            ", ".join(f"{k:.0f}" for k in kept),
        ),
        _check_near(f"{row.name}: raw drop", raw, printed, _RAW[row.name]),
        _check_near(f"{row.name}: drop after fine tuning", tuned, printed_tuned, _TUNED),
    ]
    if row.name == "E1":
        lost = _raw_losses(default, baselines)
        name = f"{row.name}: our default loses at most {_DEFAULT} before fine tuning"
        lines.append(
            _check(name, lost, bool(lost) and statistics.mean(lost) <= _DEFAULT, _mean(lost))
        )
    return lines


def _full_check(row: Row, found: Results) -> str:
    ours = [r for r in _select(found, row, "default") if _EPOCHS in r.tuned and r.pruned]
    values = [r.tuned[_EPOCHS] for r in ours]
    lowest = row.tuned[_EPOCHS].value or 0.0
    most = row.cells["parameters"].value or 0.0
    small = all(r.pruned["parameters"] <= most for r in ours if r.pruned)
    name = (
        f"{row.name}: our default with at most {most:,.0f} parameters, fine tuned, not below "
        f"{lowest}"
    )
    return _check(
        name, values, bool(values) and small and statistics.mean(values) >= lowest, _mean(values)
    )


def _select(found: Results, row: Row, method: str) -> list[RowResult]:
    return [r for r in found if r.row == row.name and r.method == method]


def _raw_losses(found: Results, baselines: Mapping[int, float]) -> list[float]:
    return [baselines[r.seed] - r.pruned["accuracy"] for r in found if r.pruned]


def _tuned_losses(found: Results, baselines: Mapping[int, float]) -> list[float]:
    return [baselines[r.seed] - r.tuned[_EPOCHS] for r in found if _EPOCHS in r.tuned]


def _check_near(name: str, losses: list[float], printed: float, points: float) -> str:
    name = f"{name} within {points} of the paper's {printed:.2f}"
    holds = bool(losses) and abs(statistics.mean(losses) - printed) <= points
    return _check(name, losses, holds, _mean(losses))


def _mean(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.2f}" if values else ""


def _check(name: str, values: Sequence[float], holds: bool, shown: str) -> str:
    if not values:
        return f"{NOT_RUN}: {name}"
    return f"{'met' if holds else 'MISSED'}: {name} ({shown}; {len(values)} seeds)"
