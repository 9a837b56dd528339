"""The lines of a table: what the paper prints of a row beside what each way gave."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from experiments.paper.cutting import WAYS, Measured
from experiments.paper.published import Cell
from experiments.paper.report import Line
from experiments.paper.rows import EMPTY, Row

Get = Callable[[Measured], float | str | None]
_DECIMALS = {"parameters": 0, "FLOPs": 0}
_QUANTITIES = {"FLOPs": "FLOPs; ours MACs", "size": "size, MB", "speedup": "speedup, batch of 4"}
_KINDS = {"tuned": "fine tuned", "scratch": "from scratch"}


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of one table, from what was measured now and earlier."""

    found: Sequence[Measured]
    baselines: Mapping[int, float]
    """By seed."""
    printed: Cell
    """The paper's baseline."""

    def of(self, row: Row, asked: Row) -> list[Line]:
        """Return the lines of one row: published epochs, those asked for, and those found."""
        paper = Cell("-".join(map(str, row.widths.values())))
        lines = [self._line(row, "channels kept", paper, lambda m: _widths(m, row))]
        for name, cell in row.cells.items():
            if name == "accuracy":
                lines += self._accuracy(row, "raw", cell, lambda m: _figure(m, "accuracy"))
            else:
                lines.append(self._line(row, name, cell, lambda m, name=name: _figure(m, name)))
        mine = [one for one in self.found if one.row == row.name]
        for kind, text in _KINDS.items():
            printed = getattr(row, kind)
            found = {epochs for one in mine for epochs in getattr(one, kind)}
            for epochs in sorted({*printed, *getattr(asked, kind), *found}):
                get = lambda m, kind=kind, epochs=epochs: getattr(m, kind).get(epochs)  # noqa: E731
                name = f"{text} {epochs} epoch{'s' * (epochs > 1)}"
                lines += self._accuracy(row, name, printed.get(epochs, EMPTY), get)
        return lines

    def _accuracy(
        self, row: Row, name: str, cell: Cell, get: Callable[[Measured], float | None]
    ) -> list[Line]:
        """Return the accuracy and the drop from the own baseline."""
        base = self.printed.value
        drop = EMPTY
        if base is not None and cell.value is not None:
            drop = Cell(f"{base - cell.value:.2f}")

        def lost(measured: Measured) -> float | None:
            value = get(measured)
            return None if value is None else self.baselines[measured.seed] - value

        return [
            self._line(row, f"accuracy, {name}", cell, get),
            self._line(row, f"drop, {name}", drop, lost),
        ]

    def _line(self, row: Row, name: str, paper: Cell, get: Get) -> Line:
        def values(way: str) -> list[float | str]:
            some = (get(m) for m in self.found if (m.row, m.way) == (row.name, way))
            return [v if isinstance(v, str) else float(v) for v in some if v is not None]

        return Line(
            row=row.name,
            quantity=_QUANTITIES.get(name, name),
            paper=paper,
            arithmetic=row.arithmetic.get(name, EMPTY),
            ours={way: values(way) for way in WAYS},
            decimals=_DECIMALS.get(name, 2),
            seeds=len(self.baselines),
        )


def _widths(measured: Measured, row: Row) -> str | None:
    if measured.cut is None:
        return None
    return "-".join(str(measured.cut["widths"][group]) for group in row.widths)


def _figure(measured: Measured, name: str) -> float | None:
    """Return what the cut alone gave, in the unit of the paper."""
    if name == "speedup":
        return None if measured.timing is None else measured.timing["speedup"]
    if measured.cut is None:
        return None
    return measured.cut["bytes"] / 1e6 if name == "size" else float(measured.cut[name])
