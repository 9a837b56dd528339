"""A result as a short table: text for a terminal, HTML for a notebook."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from entrim.records import Record
from entrim.report.assessment import (
    Assessment,
    Recommendation,
    assess,
    next_steps,
    plain_lines,
)
from entrim.report.markup import join, tag
from entrim.report.numbers import seconds, short, size, times
from entrim.report.report_data import ReportData

Rows = list[list[str]]
HTML_STYLE = """
.entrim-result { max-width: 46em; line-height: 1.45; }
.entrim-result .entrim-rows { border-collapse: collapse; margin: 6px 0 10px; }
.entrim-result .entrim-rows th, .entrim-result .entrim-rows td {
  text-align: right; padding: 3px 14px 3px 0; background: none; color: inherit; border: 0;
  border-bottom: 1px solid #8886; font-variant-numeric: tabular-nums; white-space: nowrap;
}
.entrim-result .entrim-rows th:first-child { text-align: left; font-weight: 600; }
.entrim-result .entrim-steps { margin: 4px 0 0; padding-left: 1.4em; }
.entrim-result .entrim-code { margin: 2px 0 6px; white-space: pre-wrap; overflow-wrap: anywhere; }
"""


@dataclass(frozen=True, slots=True)
class Summary:
    """Sizes, latency and hold-out figures of a result, its assessment and the next steps.

    `print(summary)` shows a table; a notebook shows it as HTML.
    """

    title: str
    rows: Rows
    unseen: Rows
    assessment: Assessment
    steps: Sequence[Recommendation]

    @classmethod
    def of(cls, data: ReportData) -> "Summary":
        """Return the summary of a run."""
        record = data.record
        return cls(
            title=f"{record.model}, pruned by entrim",
            rows=size_rows(record),
            unseen=unseen_rows(record),
            assessment=assess(record),
            steps=next_steps(data),
        )

    def __str__(self) -> str:
        parts = [self.title, align(self.rows)]
        parts += [align(self.unseen)] if len(self.unseen) > 1 else []
        parts += [self.assessment.text, "\n".join(["next steps:", *plain_lines(self.steps)])]
        return "\n\n".join(parts)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the summary as HTML; its style applies to nothing else on the page."""
        steps = (
            tag("li", step.title, None if step.code is None else _code(step.code))
            for step in self.steps
        )
        return str(
            tag(
                "div",
                tag("style", Markup(HTML_STYLE)),
                tag("strong", self.title),
                html_table(self.rows),
                html_table(self.unseen) if len(self.unseen) > 1 else None,
                tag("div", self.assessment.text),
                tag("div", "Next steps:"),
                tag("ol", *steps, class_="entrim-steps"),
                class_="entrim-result",
            )
        )


def size_rows(record: Record) -> Rows:
    """Return sizes, latency, energy and score before and after; the first row is the head."""
    before, after = record.before, record.after
    names = {"params": "parameters", "macs": "MACs", "latency": f"latency, batch of {after.batch}"}
    rows = [["", "before", "after", "less"]]
    for word, write in (("params", short), ("macs", short), ("bytes", size), ("latency", seconds)):
        old, new = getattr(before, word), getattr(after, word)
        rows.append([names.get(word, word), write(old), write(new), times(old, new)])
    if abs(before.latency - after.latency) <= (before.deviation + after.deviation) / 2:
        rows[-1][-1] = "within the noise"
    if before.energy is not None and after.energy is not None:
        ends = [f"{joules:.3g} J" for joules in (before.energy, after.energy)]
        rows.append(["energy per image", *ends, times(before.energy, after.energy)])
    if record.score is not None:
        rows.append(
            [record.score.name, f"{record.score.before:.4g}", f"{record.score.after:.4g}", ""]
        )
    return rows


def unseen_rows(record: Record) -> Rows:
    """Return the figures on hold-out images with their intervals; the first row is the head."""
    if record.holdout is None:
        return [[""]]
    rows = [[f"on {record.holdout.images} unseen images", "value", "95 % interval"]]
    figures = record.holdout.figures()
    return rows + [[name, v, f"{low} to {high}"] for name, (v, low, high) in figures.items()]


def align(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows in columns, the first one aligned left.

    >>> print(align([["", "before"], ["bytes", "9"]]))
           before
    bytes       9
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if k else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def html_table(rows: Rows) -> Markup:
    """Return the rows as a table; the first row is the head."""
    head, *body = (
        tag("tr", *(tag("th" if k == 0 else "td", cell) for k, cell in enumerate(row)))
        for row in rows
    )
    return tag("table", tag("thead", head), tag("tbody", join(*body)), class_="entrim-rows")


def _code(text: str) -> Markup:
    return tag("pre", text, class_="entrim-code")
