"""The network as a ribbon: the width of every layer before, and inside it after pruning."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from markupsafe import Markup

from entrim.report.markup import join, picture, tag
from entrim.report.report_data import Layer

Point = tuple[int | float, int | float]
Turn = Callable[[int | float, int | float], Point]
_FLAT = 0.28
"""The part of a step, on either side, with the constant width of its layer."""
_LETTER = 6.4
"""The approximate width of a letter."""
_UNEVEN = 24
"""The ratio of widths from which on their square roots are drawn."""


def uses_square_roots(layers: Sequence[Layer]) -> bool:
    """Whether the widths differ so much that their square roots are drawn."""
    return max(x.before for x in layers) > _UNEVEN * min(x.before for x in layers)


def across(layers: Sequence[Layer]) -> Markup:
    """Return the ribbon from left to right, for wide screens."""
    step = max(15.0, 1000 / len(layers))
    middle, most = 130.0, 110.0
    lengths = [16 + _LETTER * len(_shorten(layer.name)) for layer in layers]
    slanted, counted = step < 90, step >= 24
    places = [step * (k + 0.5) for k in range(len(layers))]
    if slanted:  # a name ends below its layer, and must not begin outside of the picture
        margin = max(0.0, *(size / 2 - x for size, x in zip(lengths, places, strict=True)))
        places = [margin + x for x in places]
    span = places[-1] + step / 2
    below = 2 * middle + (30 if counted else 6) if slanted else 2 * middle + 22
    marks = [
        tag(
            "text",
            _shorten(layer.name),
            transform=f"translate({x + 4 * slanted:.1f},{below:.0f})" + " rotate(-60)" * slanted,
            text_anchor="end" if slanted else "middle",
            class_="name",
        )
        for layer, x in zip(layers, places, strict=True)
    ]
    for layer, x in zip(layers, places, strict=True):
        if not slanted:
            marks.append(_words(_change(layer), x, 2 * middle + 4, "count"))
        elif counted:
            marks += [
                _words(str(layer.before), x, 2 * middle - 2, "name"),
                _words(str(layer.after), x, 2 * middle + 13, "count"),
            ]
    height = below + (max(lengths) * math.sin(math.pi / 3) - 4 if slanted else 12)
    drawn = _bands(layers, places, step, middle, most, lambda a, b: (a, b), "across")
    return picture(_description(layers), span, height, drawn, *marks, class_="ribbon wide")


def down(layers: Sequence[Layer]) -> Markup:
    """Return the ribbon from top to bottom, for narrow screens."""
    step, middle, most = 26.0, 205.0, 82.0
    places = [step * (k + 0.5) for k in range(len(layers))]
    marks = [
        join(
            tag("text", _shorten(layer.name, 17), x=0, y=y + 4, class_="name"),
            tag("text", _change(layer), x=360, y=y + 4, text_anchor="end", class_="count"),
        )
        for layer, y in zip(layers, places, strict=True)
    ]
    drawn = _bands(layers, places, step, middle, most, lambda a, b: (b, a), "down")
    return picture(
        _description(layers), 360, step * len(layers), drawn, *marks, class_="ribbon narrow"
    )


def _bands(
    layers: Sequence[Layer],
    columns: Sequence[float],
    step: float,
    middle: float,
    most: float,
    turn: Turn,
    name: str,
) -> Markup:
    """Return the ribbons before and after, with full layers hatched, and areas for tooltips."""
    scale = math.sqrt if uses_square_roots(layers) else float
    unit = most / scale(max(layer.before for layer in layers))
    outer = [unit * scale(layer.before) for layer in layers]
    inner = [
        full * layer.after / max(layer.before, 1) for full, layer in zip(outer, layers, strict=True)
    ]
    ahead = _FLAT * step
    (x2, y2) = turn(columns[-1] + step / 2, 0)
    shade = tag(
        "linearGradient",
        tag("stop", offset="0", class_="from"),
        tag("stop", offset="1", class_="to"),
        id=f"shade-{name}",
        gradientUnits="userSpaceOnUse",
        x1=0,
        y1=0,
        x2=x2,
        y2=y2,
    )
    hatch = tag(
        "pattern",
        tag("path", d="M0 0V5", class_="hatch"),
        id=f"hatch-{name}",
        width=5,
        height=5,
        patternUnits="userSpaceOnUse",
        patternTransform="rotate(45)",
    )
    return join(
        tag("defs", shade, hatch),
        tag("path", d=_outline(columns, outer, ahead, middle, turn), class_="removed"),
        tag("path", d=_outline(columns, inner, ahead, middle, turn), fill=f"url(#shade-{name})"),
        *(
            _spot(layer, place, half, full, step, middle, turn, name)
            for layer, place, half, full in zip(layers, columns, inner, outer, strict=True)
        ),
    )


def _spot(
    layer: Layer,
    place: float,
    half: float,
    full: float,
    step: float,
    middle: float,
    turn: Turn,
    name: str,
) -> Markup:
    def box(wide: float, half: float, **attributes: str) -> Markup:
        (x, y), (right, low) = (
            turn(place - wide, middle - half),
            turn(place + wide, middle + half),
        )
        return tag(
            "rect",
            tag("title", describe(layer)),
            x=x,
            y=y,
            width=right - x,
            height=low - y,
            **attributes,
        )

    whole = layer.before == layer.after
    return join(
        box(_FLAT * step, half, fill=f"url(#hatch-{name})") if whole else None,
        box(0.5 * step, max(full, 8.0), class_="spot"),
    )


def _outline(
    columns: Sequence[float],
    halves: Sequence[float],
    ahead: float,
    middle: float,
    turn: Turn,
) -> str:
    """Return the outline of a band."""
    halves = [max(half, 1.0) for half in halves]
    upper = [
        (x + side, middle - half)
        for x, half in zip(columns, halves, strict=True)
        for side in (-ahead, ahead)
    ]
    lower = [(x, 2 * middle - y) for x, y in reversed(upper)]
    return f"M{_at(upper[0], turn)}{_path(upper, turn)}L{_at(lower[0], turn)}{_path(lower, turn)}Z"


def _path(points: Sequence[Point], turn: Turn) -> str:
    way = []
    for (xa, ya), (xb, yb) in pairwise(points):
        half = (xa + xb) / 2
        ends = (_at((half, ya), turn), _at((half, yb), turn), _at((xb, yb), turn))
        way.append("C" + " ".join(ends))
    return "".join(way)


def _at(point: Point, turn: Turn) -> str:
    x, y = turn(*point)
    return f"{x:.1f},{y:.1f}"


def describe(layer: Layer) -> str:
    """Return the widths of a layer as a sentence."""
    if layer.before != layer.after:
        return f"{layer.name}: {layer.after} of {layer.before} channels kept"
    if layer.reasons:
        return f"{layer.name}: all {layer.before} channels kept, because {layer.reasons[0]}"
    why = "all were selected" if layer.included else "it was excluded"
    return f"{layer.name}: all {layer.before} channels kept, {why}"


def _words(text: str, x: float, y: float, class_name: str) -> Markup:
    return tag("text", text, x=x, y=y, text_anchor="middle", class_=class_name)


def _description(layers: Sequence[Layer]) -> str:
    before, after = sum(x.before for x in layers), sum(x.after for x in layers)
    pruned = sum(x.before != x.after for x in layers)
    return (
        f"The network as a ribbon of {len(layers)} layers: {pruned} were pruned, and {after:,} of "
        f"{before:,} channels are kept. The table below contains every layer."
    )


def _change(layer: Layer) -> str:
    return f"{layer.before}" if layer.before == layer.after else f"{layer.before} → {layer.after}"


def _shorten(name: str, most: int = 22) -> str:
    """Return the end of a long name, which distinguishes layers best."""
    return name if len(name) <= most else "…" + name[1 - most :]
