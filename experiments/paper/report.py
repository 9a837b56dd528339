"""Tables of published and own results with their difference, as Markdown and as JSON."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from experiments.paper.published import Cell
from experiments.paper.records import FORMAT
from experiments.paper.rows import EMPTY
from experiments.work import environment

NOT_RUN = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One quantity of one row: the printed value, and those of each method, by seed."""

    row: str
    quantity: str
    paper: Cell = EMPTY
    arithmetic: Cell = EMPTY
    """The value that the paper must mean where it contradicts itself; ours is compared with it."""
    ours: Mapping[str, Sequence[float | str]]
    """By method; an empty sequence was not run."""
    decimals: int = 2
    seeds: int = 1
    """Number of seeds in the whole table."""

    def cells(self) -> list[str]:
        """Return the cells of the line: the paper's, then ours and the difference by method."""
        paper = self.paper.printed or "-"
        if self.arithmetic.printed:
            paper += f", must be {self.arithmetic.printed}"
        cells = [self.row, self.quantity, paper]
        for values in self.ours.values():
            cells += [self._format(values), self._difference(values)]
        return cells

    def _format(self, values: Sequence[float | str]) -> str:
        if not values:
            return NOT_RUN
        numbers = [value for value in values if not isinstance(value, str)]
        if not numbers:
            alike = len(set(values)) == 1
            return str(values[0]) if alike else "; ".join(map(str, values))
        text = f"{statistics.mean(numbers):,.{self.decimals}f}"
        if len(numbers) > 1:
            text += f" ± {statistics.stdev(numbers):,.{self.decimals}f}"
        most = max(self.seeds, *(len(others) for others in self.ours.values()))
        return text if len(numbers) == most else f"{text} ({len(numbers)} of {most} seeds)"

    def _difference(self, values: Sequence[float | str]) -> str:
        """Return the difference from the paper, to the printed digits."""
        numbers = [value for value in values if not isinstance(value, str)]
        paper = self.arithmetic if self.arithmetic.printed else self.paper
        if not numbers or paper.value is None:
            return ""
        return f"{paper.round(statistics.mean(numbers)) - paper.value:+z,.{self.decimals}f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The output of one command, and its JSON record."""

    experiment: str
    title: str
    columns: tuple[str, ...]
    """Titles of the methods or variants."""
    lines: tuple[Line, ...]
    checks: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()
    """Further Markdown below the table."""
    notes: tuple[str, ...] = ()
    """Remarks: shorter trainings, missing networks, where the weights come from."""
    measured: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    """All points, by seed."""
    quick: bool = False
    """Whether images and epochs were reduced: no results."""

    def markdown(self) -> str:
        """Return the table with its notes."""
        header = ["row", "quantity", "paper"]
        for column in self.columns:
            header += [column, "difference"]
        parts = [f"## {self.experiment}: {self.title}"]
        parts += ["\n".join(f"- {note}" for note in self.notes)] if self.notes else []
        parts.append(table(header, [line.cells() for line in self.lines]))
        parts += ["\n".join(f"- {check}" for check in self.checks)] if self.checks else []
        parts += self.sections
        return "\n\n".join(parts) + "\n"

    def to_json(self) -> str:
        """Return the record: all figures, the seeds, and the environment."""
        return json.dumps(
            {"format": FORMAT, "printed with": environment(), **asdict(self)},
            indent=1,
            sort_keys=True,
        )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns.

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
