"""Several runs side by side: as text, as HTML in a notebook, and as a page."""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from entrim.records import Holdout, Record
from entrim.report.markup import join, picture, tag
from entrim.report.numbers import percent, seconds, short, size
from entrim.report.page import save_page, template
from entrim.report.plot import STYLE
from entrim.report.report_data import ReportData
from entrim.report.summary import HTML_STYLE, Rows, align, html_table
from entrim.report.tradeoff import LETTER

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
        rows = [row for row in rows if any(cell != _GAP for cell in row[1:])]
        return [head, *_scores(self.runs), *rows, *(_layer_rows(self.runs) if layers else ())]

    def chart(self) -> Markup:
        """Return agreement on unseen images, or 1 - error, against MACs, if it was measured."""
        named = list(zip(self.headings, (data.record for data in self.runs), strict=True))
        classes = any(one.holdout is not None and one.holdout.agreement for _, one in named)
        found = [
            _Point(name, one.after.macs / max(one.before.macs, 1), *values)
            for name, one in named
            if (values := _quality(one, "agreement" if classes else "error")) is not None
        ]
        label = "agreement with the original" if classes else "1 - error of the outputs"
        return _scatter(found, f"{label} on unseen images, 95 % interval") if found else Markup("")


class _Point(NamedTuple):
    """A run in the chart: its share of the MACs, its quality and the interval of that."""

    name: str
    share: float
    value: float
    low: float
    high: float


def _quality(record: Record, figure: str) -> tuple[float, float, float] | None:
    """Return the agreement on unseen images or 1 - error, with its interval."""
    one = None if record.holdout is None else getattr(record.holdout, figure)
    if one is None:
        return None
    if figure == "agreement":
        return one.value, one.low, one.high
    value, low, high = (max(0.0, 1 - error) for error in (one.value, one.high, one.low))
    return value, low, high


def _scatter(points: Sequence[_Point], label: str) -> Markup:
    left, right, top, floor = 46.0, 440.0, 26.0, 210.0
    least = min(0.9, *(point.low for point in points))
    step = next(one for one in (0.02, 0.05, 0.1, 0.2) if one >= (1 - least) / 6)
    count = math.ceil(round((1 - least) / step, 6))
    low = 1 - step * count

    def at(share: float, value: float) -> tuple[float, float]:
        return left + (right - left) * share, floor - (floor - top) * (value - low) / (1 - low)

    marks = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = at(share, low)[0]
        marks.append(tag("text", percent(share), x=x, y=floor + 17, text_anchor="middle"))
    for value in (1 - step * k for k in range(count + 1)):
        y = at(0, value)[1]
        marks.append(tag("path", d=f"M{left} {y:.1f}H{right}", class_="grid"))
        marks.append(tag("text", percent(value), x=left - 6, y=y + 4, text_anchor="end"))
    for one in points:
        (x, y), (_, bottom), (_, ceiling) = (
            at(one.share, value) for value in (one.value, one.low, one.high)
        )
        text = f"{one.name}: {percent(one.value)} ({percent(one.low)} to {percent(one.high)})"
        marks.append(tag("path", d=f"M{x:.1f} {bottom:.1f}V{ceiling:.1f}", class_="interval"))
        marks.append(tag("circle", tag("title", text), cx=x, cy=y, r=5, class_="dot"))
    names = _labels([(*at(one.share, one.value), one.name) for one in points], right)
    return picture(
        f"{label[:1].upper()}{label[1:]}, against MACs of {len(points)} networks",
        460,
        250,
        tag("style", Markup(STYLE)),
        join(*marks, *names),
        tag("text", label, x=0, y=12),
        tag("text", "MACs, % of the original", x=right, y=246, text_anchor="end"),
        class_="entrim-chart",
    )


def _labels(points: Sequence[tuple[float, float, str]], right: float) -> Iterator[Markup]:
    """Return the names of points so that no name covers another name or point."""
    taken = [(x - 6, x + 6, y) for x, y, _ in points]
    for x, y, name in points:
        width = LETTER * len(name)
        sides = [(x + 9, y + 4), (x - 9 - width, y + 4)]
        sides += [(x + 9, y + 4 + rise) for k in range(1, 9) for rise in (-13 * k, 13 * k)]
        free = (
            (start, base)
            for start, base in sides
            if 0 <= start <= right + 20 - width
            and 30 <= base <= 210
            and all(
                start > to or start + width < since or abs(base - 4 - middle) >= 12
                for since, to, middle in taken
            )
        )
        start, base = next(free, sides[0])
        taken.append((start, start + width, base - 4))
        yield tag("text", name, x=start, y=base, class_="caption")


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
