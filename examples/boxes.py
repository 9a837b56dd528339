"""Draw the boxes of SPARTAn: 150 samples of 300 features, two of which decide, in three pieces.

Writes docs/boxes.svg, or the file named on the command line. Needs the extra `spartan`, but no data
and no plotting library.
"""

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np

from entrim.spartan.regressor import SPARTAnRegressor

ROWS, FEATURES, TRUE = 150, 300, (70, 220)
CENTERS = np.array([[-1.3, -0.9], [1.4, -0.7], [0.1, 1.3]])
SLOPES = np.array([[2.0, 0.0], [-1.0, 1.5], [0.0, -2.0]])
OFFSETS = np.array([1.0, 0.0, 1.5])
TINTS, SIDE, SPAN = ("#dbe9f6", "#fde6cf", "#dff0d8"), 300, 3.0


def problem(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and targets: a linear map in each of three pieces of a plane, and noise."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(ROWS, FEATURES))
    plane = x[:, TRUE]
    piece = np.square(plane[:, None] - CENTERS).sum(-1).argmin(1)
    y = OFFSETS[piece] + (plane * SLOPES[piece]).sum(1)
    return x, y + 0.1 * random.normal(size=ROWS)


def at(point: np.ndarray) -> tuple[float, float]:
    """Return the position of a point of the plane in the left panel."""
    return SIDE * (point[0] / SPAN + 1) / 2, SIDE * (1 - point[1] / SPAN) / 2


def regions(model: SPARTAnRegressor, cells: int = 120) -> list[str]:
    """Return the boxes as runs of cells: each cell belongs to the nearest center."""
    ticks = (np.arange(cells) + 0.5) / cells * 2 * SPAN - SPAN
    grid = np.zeros((cells * cells, FEATURES))
    grid[:, TRUE[0]], grid[:, TRUE[1]] = np.tile(ticks, cells), np.repeat(ticks[::-1], cells)
    box, size, runs = model.apply(grid).reshape(cells, cells), SIDE / cells, []
    for line, row in enumerate(box):
        edges = [0, *(np.flatnonzero(np.diff(row)) + 1), cells]
        for a, b in pairwise(edges):
            runs.append(
                f'<rect x="{a * size:.1f}" y="{line * size:.1f}" width="{(b - a) * size:.1f}" '
                f'height="{size + 0.1:.1f}" fill="{TINTS[row[a] % len(TINTS)]}"/>'
            )
    return runs


def dots(x: np.ndarray, y: np.ndarray) -> list[str]:
    """Return the samples, dark for a low target and light for a high one."""
    low, high = y.min(), y.max()
    marks = []
    for row, target in zip(x[:, TRUE], y, strict=True):
        if np.abs(row).max() < SPAN:
            share = (target - low) / (high - low)
            color = "#" + "".join(
                f"{int(a + share * (b - a)):02x}" for a, b in ((40, 255), (20, 220), (90, 60))
            )
            across, down = at(row)
            marks.append(
                f'<circle cx="{across:.1f}" cy="{down:.1f}" r="4" fill="{color}" '
                'stroke="#444" stroke-width="0.5"/>'
            )
    return marks


def arrows(model: SPARTAnRegressor) -> list[str]:
    """Return the center of each box, and the direction in which its regression increases."""
    marks = []
    for center, slope in zip(model.centers_[:, TRUE], model.coef_[:, TRUE], strict=True):
        (a, b), (c, d) = at(center), at(center + 0.35 * slope)
        marks.append(
            f'<line x1="{a:.1f}" y1="{b:.1f}" x2="{c:.1f}" y2="{d:.1f}" stroke="#b00020" '
            'stroke-width="3" marker-end="url(#tip)"/>'
            f'<rect x="{a - 5:.1f}" y="{b - 5:.1f}" width="10" height="10" fill="#b00020" '
            'stroke="white"/>'
        )
    return marks


def bars(w: np.ndarray) -> list[str]:
    """Return the importances, one bar per feature; kept features are labeled."""
    marks = []
    for d, value in enumerate(w):
        across, up = SIDE * (d + 0.5) / len(w), (SIDE - 30) * value
        marks.append(
            f'<line x1="{across:.1f}" y1="{SIDE}" x2="{across:.1f}" y2="{SIDE - up - 1:.1f}" '
            f'stroke="{"#b00020" if value > 0 else "#999"}" stroke-width="{3 if value else 1}"/>'
        )
        if value > 0:
            marks.append(
                f'<text x="{across:.1f}" y="{SIDE - up - 8:.1f}" text-anchor="middle">feature {d}: '
                f"{value:.2f}</text>"
            )
    return marks


def picture(model: SPARTAnRegressor, x: np.ndarray, y: np.ndarray) -> str:
    """Return the drawing: boxes in the plane of the true features, and w over all features."""
    frame = f'<rect width="{SIDE}" height="{SIDE}" fill="none" stroke="#444"/>'
    middle, below = SIDE // 2, SIDE + 18
    tip = '<marker id="tip" markerWidth="5" markerHeight="5" refX="2" refY="2.5" orient="auto">'
    tip += '<path d="M0,0 L5,2.5 L0,5 z" fill="#b00020"/></marker>'
    title = 'text-anchor="middle" font-weight="bold"'
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 365" width="700" '
            'font-family="sans-serif" font-size="12">',
            f'<defs>{tip}</defs><rect width="700" height="365" fill="white"/>',
            '<g transform="translate(30,30)">',
            '<g shape-rendering="crispEdges">',
            *regions(model),
            "</g>",
            *dots(x, y),
            *arrows(model),
            frame,
            f'<text x="{middle}" y="-10" {title}>boxes in the plane of the two features</text>',
            f'<text x="{middle}" y="{below}" text-anchor="middle">feature {TRUE[0]}</text>',
            f'<text transform="translate(-10,{middle}) rotate(-90)" text-anchor="middle">feature '
            f"{TRUE[1]}</text></g>",
            '<g transform="translate(375,30)">',
            *bars(model.w_),
            frame,
            f'<text x="{middle}" y="-10" {title}>importance w of the {FEATURES} features</text>',
            f'<text x="{middle}" y="{below}" text-anchor="middle">feature 0 to {FEATURES - 1}'
            "</text></g></svg>\n",
        ]
    )


def main() -> None:
    """Fit, print the selected features, and draw."""
    default = Path(__file__).parent.parent / "docs" / "boxes.svg"
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    x, y = problem(0)
    model = SPARTAnRegressor(n_boxes=3, random_state=0).fit(x, y)
    x_new, y_new = problem(1)
    print(f"features {np.flatnonzero(model.w_).tolist()} of {FEATURES}; {model.status_}")
    print(f"R2 on new rows: {model.score(x_new, y_new):.2f}")
    file.write_text(picture(model, x, y))
    print(f"wrote {file}")


if __name__ == "__main__":
    main()
