"""Several runs side by side: as text, as HTML in a notebook, and as a page."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from entrim.records import Holdout, Record
from entrim.report.markup import join, picture, tag
from entrim.report.numbers import percent, seconds, short, size
from entrim.report.page import save_page, template
from entrim.report.plot import STYLE
from entrim.report.report_data import ReportData
from entrim.report.summary import HTML_STYLE, Rows, align, html_table

NAMES = ("network", "images", "parameters", "fraction", "MACs", "fraction", "bytes", "latency")
NAMES += ("agreement, unseen images", "KL divergence, unseen images", "error, unseen images")
NAMES += ("error, fitting images", "worst layer error", "distillation loss", "proof", "seconds")
TITLE = "Comparison of pruned networks"
_GAP = "–"


@dataclass(frozen=True, slots=True, repr=False)
class RunComparison:
    """Several runs side by side. `print` shows a table, and so does a notebook."""

    headings: tuple[str, ...]
    runs: tuple[ReportData, ...]

    def __repr__(self) -> str:
        return f"<comparison of {', '.join(self.headings)}: print it for a table>"

    def __str__(self) -> str:
        return align(self.rows())

    def _repr_pretty_(self, printer: object, cycle: bool) -> None:
        printer.text(str(self))  # pyright: ignore[reportAttributeAccessIssue]

    def _repr_html_(self) -> str:
        parts = tag("style", Markup(HTML_STYLE)), html_table(self.rows()), self.chart()
        return str(tag("div", *parts, class_="entrim-result"))

    def save(self, file: str | os.PathLike[str]) -> Path:
        """Write the comparison as one self-contained HTML page."""
        return save_page(template("compare.html.jinja").render(found=self, title=TITLE), Path(file))

    def rows(self, *, layers: bool = False) -> Rows:
        """Return one column per run; the first row is the head."""
        columns = [["", *NAMES], *map(_column, self.headings, self.runs)]
        head, *rows = [list(row) for row in zip(*columns, strict=True)]
        return [head, *_scores(self.runs), *rows, *(_layer_rows(self.runs) if layers else ())]

    def chart(self) -> Markup:
        """Return agreement on unseen images, or 1 - error, against MACs, if it was measured."""
        found = [
            (name, data.record.after.macs / max(data.record.before.macs, 1), value)
            for name, data in zip(self.headings, self.runs, strict=True)
            if (value := _quality(data.record)) is not None
        ]
        return _scatter(found) if found else Markup("")


def _quality(record: Record) -> float | None:
    """Return the agreement on unseen images, or 1 - error for outputs without classes."""
    if record.holdout is None:
        return None
    if record.holdout.agreement is not None:
        return record.holdout.agreement.value
    return None if record.holdout.error is None else max(0.0, 1 - record.holdout.error.value)


def _scatter(points: Sequence[tuple[str, float, float]]) -> Markup:
    left, right, top, floor = 46.0, 440.0, 26.0, 210.0
    low = min(0.9, *(int(10 * value) / 10 for *_, value in points))

    def at(share: float, value: float) -> tuple[float, float]:
        return left + (right - left) * share, floor - (floor - top) * (value - low) / (1 - low)

    marks = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = at(share, low + (1 - low) * share)
        marks += [
            tag("path", d=f"M{left} {y:.1f}H{right}", class_="grid"),
            tag("text", percent(share), x=x, y=floor + 17, text_anchor="middle"),
            tag("text", percent(low + (1 - low) * share), x=left - 6, y=y + 4, text_anchor="end"),
        ]
    for name, share, value in points:
        x, y = at(share, value)
        end = x > (left + right) / 2
        marks += [
            tag("circle", tag("title", f"{name}: {percent(value)}"), cx=x, cy=y, r=5, class_="dot"),
            tag(
                "text",
                name,
                x=x + (-9 if end else 9),
                y=y + 4,
                text_anchor="end" if end else "start",
                class_="caption",
            ),
        ]
    return picture(
        f"Agreement against MACs of {len(points)} networks",
        460,
        250,
        tag("style", Markup(STYLE)),
        join(*marks),
        tag("text", "agreement with the original on unseen images", x=0, y=12),
        tag("text", "MACs, % of the original", x=right, y=246, text_anchor="end"),
        class_="entrim-chart",
    )


def _scores(runs: Sequence[ReportData]) -> Rows:
    """Return one row for each metric of any run."""
    known = [data.record.score for data in runs]
    return [
        [
            name,
            *(_format_change(s.before, s.after) if s and s.name == name else _GAP for s in known),
        ]
        for name in dict.fromkeys(score.name for score in known if score)
    ]


def _format_change(before: float, after: float) -> str:
    return f"{before:.4g} → {after:.4g}"


def _column(heading: str, data: ReportData) -> list[str]:
    record, errors = data.record, [layer.error for layer in data.record.layers]
    before, after, done = record.before, record.after, record.distilled
    return [
        heading,
        record.model,
        f"{record.images:,}",
        short(after.params),
        percent(after.params / max(before.params, 1)),
        short(after.macs),
        percent(after.macs / max(before.macs, 1)),
        size(after.bytes),
        seconds(after.latency),
        *_unseen(record.holdout),
        _GAP if record.error is None else percent(record.error),
        percent(max(errors)) if errors else _GAP,
        _format_change(done.before, done.after) if done is not None else _GAP,
        f"{record.proof['final']:.0e}",
        f"{sum(record.seconds.values()):.1f}",
    ]


def _unseen(holdout: Holdout | None) -> list[str]:
    """Return the figures on hold-out images with their intervals."""
    figures = {} if holdout is None else holdout.figures()
    found = (figures.get(name) for name in ("agreement", "KL divergence", "error"))
    return [_GAP if one is None else f"{one[0]} ({one[1]} to {one[2]})" for one in found]


def _layer_rows(runs: Sequence[ReportData]) -> Rows:
    """Return one row for each layer of any run."""
    names = dict.fromkeys(layer.name for data in runs for layer in data.layers)
    known = [{layer.name: layer for layer in data.layers} for data in runs]
    return [
        [
            name,
            *(
                f"{layers[name].before} → {layers[name].after}" if name in layers else _GAP
                for layers in known
            ),
        ]
        for name in names
    ]


def headings_of(folders: Sequence[str]) -> tuple[str, ...]:
    """Return the shortest end of every path that distinguishes it from the others.

    >>> headings_of(["r1/x", "r2/x", "r2/y/"])
    ('r1/x', 'r2/x', 'y')
    """
    places = [Path(folder).parts for folder in folders]
    found = []
    for mine in places:
        others = [parts for parts in places if parts != mine]
        ends = (mine[-k:] for k in range(1, len(mine) + 1))
        apart = (end for end in ends if all(o[-len(end) :] != end for o in others))
        found.append(str(Path(*next(apart, mine))))
    return tuple(found)
