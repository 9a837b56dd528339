"""A chart of a result on its own: for a notebook, or as an SVG file."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from entrim.config import SIZES
from entrim.errors import BadSettingError, SaveError
from entrim.report import ribbon, tradeoff
from entrim.report.report_data import ReportData
from entrim.storage import atomic

CHARTS = ("network", *SIZES)
"""The ribbon, and the trade-off against each size."""
STYLE = """
.entrim-chart { width: 100%; max-width: 60em; height: auto; }
.entrim-chart text { font: 11.5px system-ui, "DejaVu Sans", sans-serif; fill: currentColor; }
.entrim-chart .count, .entrim-chart .caption { font-weight: 600; }
.entrim-chart .from { stop-color: #4f46e5; } .entrim-chart .to { stop-color: #0d9488; }
.entrim-chart .removed { fill: #8f94d6; opacity: 0.35; }
.entrim-chart .hatch { stroke: #fff6; stroke-width: 3.2; } .entrim-chart .spot { fill: none; }
.entrim-chart .line { fill: none; stroke: #6366f1; stroke-width: 2.4; }
.entrim-chart .under { fill: #6366f1; opacity: 0.15; }
.entrim-chart .dot, .entrim-chart .point { fill: #6366f1; }
.entrim-chart .grid { stroke: currentColor; opacity: 0.15; fill: none; }
.entrim-chart .guide { stroke: currentColor; stroke-dasharray: 2 3; fill: none; }
.entrim-chart .interval { stroke: #6366f1; stroke-width: 2.4; opacity: 0.4; }
.entrim-chart .at { display: none; }
"""
_ALONE = """
svg { color: #1c2230; }
@media (prefers-color-scheme: dark) { svg { color: #e9ebf2; } }
"""
"""The color of the text in a file; in a notebook, it is that of the page."""


@dataclass(frozen=True, slots=True, repr=False)
class Chart:
    """A chart as SVG. A notebook shows it; `save` writes it to a file."""

    title: str
    svg: str

    def __repr__(self) -> str:
        return f'<{self.title}: a notebook shows it; save("chart.svg") writes it>'

    def _repr_html_(self) -> str:
        return self.svg

    def save(self, file: str | os.PathLike[str]) -> Path:
        """Write the chart as an SVG file, which is readable on light and dark pages."""
        place = Path(file)
        start = '<svg xmlns="http://www.w3.org/2000/svg"'
        text = self.svg.replace("<svg", start, 1).replace("<style>", f"<style>{_ALONE}", 1)
        try:
            atomic.write(place, text.encode())
        except OSError as error:
            raise SaveError(
                f"{place} cannot be written ({error.strerror}): name another file"
            ) from error
        return place


def plot(data: ReportData, name: str = "network") -> Chart:
    """Return the chart called `name` of a run."""
    if name not in CHARTS:
        raise BadSettingError(f"name must be one of {', '.join(map(repr, CHARTS))}, got {name!r}")
    if name == "network":
        drawn, title = ribbon.across(data.layers), f"widths of {data.record.model}"
    elif data.record.tradeoff:
        drawn = tradeoff.chart(data.record, name, "wide")
        title = f"trade-off of {data.record.model}"
    else:
        raise BadSettingError(
            'only a run with a Budget, or without a target, has a trade-off: pass name="network"'
        )
    svg = str(drawn)
    known = hashlib.sha256(svg.encode()).hexdigest()[:8]
    for part in ("shade-across", "hatch-across"):  # unique among all charts of a page
        svg = svg.replace(part, f"{part}-{known}")
    head, _, rest = svg.partition(">")
    head = head.replace('class="', 'class="entrim-chart ')
    return Chart(title, f"{head}><style>{STYLE}</style>{rest}")
