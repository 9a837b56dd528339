"""The trade-off chart: predicted divergence against parameters, MACs and bytes.

The page contains one chart for each size; a radio button shows one of them. The script of the page
reads the sizes, widths and commands of the points from the table below the chart.
"""

import math
from dataclasses import dataclass

from markupsafe import Markup

from entrim.config import SIZES
from entrim.records import Record, TradeOff
from entrim.report.charts import WIDTHS
from entrim.report.markup import join, picture, tag
from entrim.report.numbers import percent, short, size
from entrim.report.repeat import resize
from entrim.report.report_data import ReportData

LEFT, RIGHT, TOP, FLOOR, HEIGHT = 58.0, 22.0, 30.0, 226.0, 272.0
LETTER = 6.8
"""The approximate width of a letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point of the chart as the table below it and the script show it."""

    cells: tuple[str, ...]
    """Parameters, MACs, bytes and divergence, with fractions of the original."""
    selected: bool
    widths: tuple[int, ...]
    """The width of every group; empty in older records."""
    code: str
    """The command or call that prunes to this point."""


def default_axis(record: Record) -> str:
    """Return the size on the horizontal axis: that of the budget."""
    budget = record.settings.get("budget") or {}
    return next((kind for kind in SIZES if budget.get(kind)), "params")


def points(data: ReportData) -> list[Point]:
    """Return all points, in the order of the record."""
    record, axis = data.record, default_axis(data.record)
    return [_point(data, one, record.before, axis) for one in record.tradeoff]


def _point(data: ReportData, one: TradeOff, before: object, axis: str) -> Point:
    cells = [
        f"{size(value) if kind == 'bytes' else short(value)} "
        f"({percent(value / max(getattr(before, kind), 1))})"
        for kind in SIZES
        for value in (getattr(one, kind),)
    ]
    value = getattr(one, axis)
    out = f"{data.folder or 'small'}-{100 * value / max(getattr(before, axis), 1):.0f}"
    return Point(
        cells=(*cells, f"{one.divergence:.3g}"),
        selected=one.selected,
        widths=one.widths,
        code=resize(data.commands, data.record, axis, value, out),
    )


def unit(record: Record) -> str:
    """Return the unit of the divergence."""
    if (record.settings.get("calibration") or {}).get("sensitivity") is not None:
        return "own measure"
    outputs = () if record.holdout is None else record.holdout.outputs
    if outputs and all(kind == "values" for kind in outputs):
        return "share of the variance"
    return "KL divergence in nats" if outputs else "KL divergence or squared error"


def chart(record: Record, resource: str, screen: str) -> Markup:
    """Return the predicted divergence against one size, with the selected point."""
    found, word = record.tradeoff, SIZES[resource]
    full = max(max(getattr(point, resource) for point in found), 1)
    largest = max(point.divergence for point in found) or 1.0
    right = WIDTHS[screen] - RIGHT

    def at(point: TradeOff) -> tuple[float, float]:
        x = LEFT + (right - LEFT) * getattr(point, resource) / full
        return x, FLOOR - (FLOOR - TOP) * math.sqrt(max(point.divergence, 0.0) / largest)

    places = [at(point) for point in found]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in sorted(places))
    first, last = min(places)[0], max(places)[0]
    selected = next((k for k, point in enumerate(found) if point.selected), None)
    title, marks = f"Predicted divergence against {word}", Markup("")
    if selected is not None:
        share = percent(getattr(found[selected], resource) / full)
        title += f"; selected: {share}"
        marks = _selected_mark(*places[selected], f"selected: {share}", right)
    total = size(full) if resource == "bytes" else f"{short(full)} {word}"
    return picture(
        title,
        WIDTHS[screen],
        HEIGHT,
        _grid(right, largest),
        tag(
            "polygon",
            points=f"{first:.1f},{FLOOR} {line} {last:.1f},{FLOOR}",
            class_="under",
        ),
        tag("polyline", points=line, class_="line"),
        *(_spot(x, y, k) for k, (x, y) in enumerate(places)),
        marks,
        tag("g", tag("path", class_="guide"), tag("circle", r=6, class_="cursor"), class_="at"),
        tag("text", f"predicted divergence ({unit(record)}), √ scale", x=0, y=12),
        tag("text", f"size, % of {total}", x=right, y=HEIGHT - 8, text_anchor="end"),
        class_=f"tradeoff {screen}",
    )


def _spot(x: float, y: float, number: int) -> Markup:
    return tag("circle", cx=x, cy=y, r=2.2, class_="point", data_point=number)


def _grid(right: float, largest: float) -> Markup:
    marks = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        x, y = LEFT + (right - LEFT) * share, FLOOR - (FLOOR - TOP) * share
        marks += [
            tag("path", d=f"M{LEFT} {y:.1f}H{right}", class_="grid"),
            tag("text", percent(share), x=x, y=FLOOR + 17, text_anchor="middle"),
            tag("text", f"{largest * share**2:.2g}", x=LEFT - 6, y=y + 4, text_anchor="end"),
        ]
    return join(*marks)


def _selected_mark(x: float, y: float, label: str, right: float) -> Markup:
    """Return the mark of the selected point, with its label on the right if there is room."""
    return join(
        tag("path", d=f"M{x:.1f} {y:.1f}V{FLOOR}", class_="guide"),
        tag("circle", cx=x, cy=y, r=6.5, class_="dot"),
        tag(
            "text",
            label,
            x=min(x + 10, right - LETTER * len(label)),
            y=max(y - 10, TOP + 12),
            class_="caption",
        ),
    )
