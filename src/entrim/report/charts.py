"""Small charts, as SVG."""

import math
from collections.abc import Collection, Mapping, Sequence

from markupsafe import Markup

from entrim.entropic.algorithm import THRESHOLD
from entrim.report.markup import picture, tag
from entrim.report.numbers import power_of_ten

WIDE, HIGH = 300.0, 120.0
WIDTHS = {"wide": 460.0, "narrow": 310.0}
"""Wide charts are drawn twice, so that their text is readable on a phone too."""
_LETTER = 6.8
"""The approximate width of a letter."""


def barcode(kept: Collection[int], channels: int) -> Markup:
    """Return one mark per channel, strong if it is kept."""
    each = WIDE / channels
    gap = min(1.0, each / 4)
    runs: list[list[int]] = []
    for unit in sorted(kept):
        if gap < 0.4 and runs and runs[-1][1] == unit:  # thousands of channels: one mark per run
            runs[-1][1] = unit + 1
        else:
            runs.append([unit, unit + 1])
    lines = "".join(
        f"M{each * a + gap / 2:.2f} 0H{each * b - gap / 2:.2f}V22H{each * a + gap / 2:.2f}Z"
        for a, b in runs
    )
    return picture(
        f"Kept channels: {len(kept)} of {channels}",
        WIDE,
        22,
        tag("rect", width=WIDE, height=22, rx=3, class_="removed"),
        tag("path", d=lines, class_="kept"),
        preserveAspectRatio="none",
        class_="barcode",
    )


def importance(w: Sequence[float], kept: Collection[int]) -> Markup:
    """Return the sorted importances, with the threshold of removal."""
    order = sorted(range(len(w)), key=lambda d: (-w[d], d))
    most, each = max(max(w), THRESHOLD), WIDE / len(w)
    floor = HIGH - 17
    bars = {"kept": "", "dropped": ""}
    for place, d in enumerate(order):
        tall = max(1.2, (floor - 6) * w[d] / most)
        left, right = each * (place + 0.1), each * (place + 0.9)
        bars["kept" if d in kept else "dropped"] += (
            f"M{left:.2f} {floor:.0f}H{right:.2f}V{floor - tall:.2f}H{left:.2f}Z"
        )
    edge, line = each * len(kept), floor - (floor - 6) * THRESHOLD / most
    beyond = edge > 0.6 * WIDE
    return picture(
        f"Importance w of {len(w)} channels, sorted: {len(kept)} kept, the largest is {max(w):.2g}",
        WIDE,
        HIGH,
        tag("path", d=bars["dropped"], class_="dropped"),
        tag("path", d=bars["kept"], class_="kept"),
        tag("path", d=f"M0 {line:.2f}H{WIDE}", class_="limit"),
        tag("path", d=f"M{edge:.1f} 2V{floor:.0f}", class_="guide"),
        tag(
            "text",
            f"{len(kept)} kept",
            x=edge + (-5 if beyond else 5),
            y=14,
            text_anchor="end" if beyond else "start",
            class_="caption",
        ),
        tag("text", f"w, largest {max(w):.2g}", x=0, y=HIGH - 2),
        tag("text", f"threshold {power_of_ten(THRESHOLD)}", x=WIDE, y=HIGH - 2, text_anchor="end"),
    )


def descent(trace: Sequence[float], optimality_residual: float | None) -> Markup:
    """Return the objective F after every step, with the optimality residual."""
    high, low = max(trace), min(trace)
    floor, span = HIGH - 17, (high - low) or 1.0
    points = [
        (
            4 + (WIDE - 8) * k / max(len(trace) - 1, 1),
            8 + (floor - 14) * (high - value) / span,
        )
        for k, value in enumerate(trace)
    ]
    way = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    last = points[-1]
    labels = [f"{trace[0]:.3g} → {trace[-1]:.3g}"]
    if optimality_residual is not None:
        labels.append(f"residual {power_of_ten(optimality_residual)}")
    return picture(
        f"The objective F in {len(trace)} steps: {', '.join(labels)}",
        WIDE,
        HIGH,
        tag(
            "polygon", points=f"{points[0][0]},{floor} {way} {last[0]:.1f},{floor}", class_="under"
        ),
        tag("polyline", points=way, class_="line"),
        tag("circle", cx=last[0], cy=last[1], r=4, class_="dot"),
        *(
            tag("text", line, x=WIDE, y=16 + 16 * k, text_anchor="end", class_="caption")
            for k, line in enumerate(labels)
        ),
        tag("text", "the objective F", x=0, y=HIGH - 2),
        tag("text", f"{len(trace)} steps", x=WIDE, y=HIGH - 2, text_anchor="end"),
    )


def proof(values: Mapping[str, float], screen: str) -> Markup:
    """Return the measured differences and the tolerance on a logarithmic scale."""
    span = WIDTHS[screen] - 40
    names = {"sliced": "sliced", "final": "final", "tolerance": "tolerance"}
    found = {names[key]: values[key] for key in names if key in values}
    tiny = 1e-17
    lowest = math.log10(max(min(found.values()), tiny)) - 1
    highest = math.log10(max(*found.values(), tiny)) + 1

    def at(value: float) -> float:
        return 20 + span * (math.log10(max(value, tiny)) - lowest) / (highest - lowest)

    limit = at(found["tolerance"])
    marks = [tag("rect", x=20, y=56, width=limit - 20, height=10, rx=5, class_="allowed")]
    every = max(2, math.ceil(7 * _LETTER * (highest - lowest) / span))
    for power in range(math.ceil(lowest), math.floor(highest) + 1, every):
        x = at(10.0**power)
        marks.append(tag("text", power_of_ten(10.0**power), x=x, y=86, text_anchor="middle"))
    for k, (name, value) in enumerate(found.items()):
        x, up = at(value), (18, 36, 18)[k % 3]
        marks += [
            tag(
                "path",
                d=f"M{x:.1f} {up + 4}V70",
                class_="limit" if name == "tolerance" else "guide",
            ),
            tag("text", name, x=x, y=up, text_anchor="middle", class_="caption"),
        ]
        if name != "tolerance":
            marks.append(tag("circle", cx=x, cy=61, r=5, class_="dot"))
    values_text = ", ".join(f"{name} {power_of_ten(value)}" for name, value in found.items())
    title = f"Largest relative differences: {values_text}"
    return picture(title, WIDTHS[screen], 92, *marks, class_=f"proof {screen}")
