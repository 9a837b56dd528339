"""Published beside ours: tables of both with their difference, as Markdown and as JSON."""

import json
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

import torch

from entrim.experiments.published import Cell
from entrim.experiments.rows import EMPTY

NOT_RUN = "not run"
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One quantity of one row: what the paper prints, and what each way gave, seed by seed."""

    row: str
    quantity: str
    paper: Cell = EMPTY
    ours: Mapping[str, Sequence[float | str]]
    """By way; an empty sequence was not run."""
    decimals: int = 2

    def cells(self) -> list[str]:
        """Return the line of the table: the paper's cell, then ours and the difference by way."""
        cells = [self.row, self.quantity, self.paper.printed or "-"]
        for values in self.ours.values():
            cells += [self._shown(values), self._difference(values)]
        return cells

    def _shown(self, values: Sequence[float | str]) -> str:
        if not values:
            return NOT_RUN
        numbers = [value for value in values if not isinstance(value, str)]
        if not numbers:
            return "; ".join(dict.fromkeys(map(str, values)))
        mean = f"{statistics.mean(numbers):,.{self.decimals}f}"
        if len(numbers) == 1:
            return mean
        return f"{mean} ± {statistics.stdev(numbers):,.{self.decimals}f}"

    def _difference(self, values: Sequence[float | str]) -> str:
        numbers = [value for value in values if not isinstance(value, str)]
        if not numbers or self.paper.value is None:
            return ""
        return f"{statistics.mean(numbers) - self.paper.value:+z,.{self.decimals}f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one command prints, and what its JSON record holds."""

    experiment: str
    title: str
    columns: tuple[str, ...]
    """The ways, as they are called in the header."""
    lines: tuple[Line, ...]
    verdicts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What the reader must know: shrunk epochs, seeds, where the weights come from."""
    measured: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    """Every point, seed by seed."""

    def markdown(self) -> str:
        """Return the table with its notes."""
        header = ["row", "quantity", "paper"]
        for column in self.columns:
            header += [column, "difference"]
        parts = [f"## {self.experiment}: {self.title}"]
        parts += ["\n".join(f"- {note}" for note in self.notes)] if self.notes else []
        parts.append(table(header, [line.cells() for line in self.lines]))
        parts += ["\n".join(f"- {verdict}" for verdict in self.verdicts)] if self.verdicts else []
        return "\n\n".join(parts) + "\n"

    def to_json(self) -> str:
        """Return the record: every figure, the seeds, and the versions that it was made with."""
        versions = {
            "entrim": version("entrim"),
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
        return json.dumps(
            {"format": FORMAT, "versions": versions, **asdict(self)}, indent=1, sort_keys=True
        )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose columns stand below one another in plain text too.

    >>> print(table(["row", "paper"], [["E1", "98.49%"]]))
    | row | paper  |
    |-----|--------|
    | E1  | 98.49% |
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return "| " + " | ".join(padded) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([line(header), rule, *map(line, rows)])
