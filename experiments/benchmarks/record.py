"""How measurements are written down: dated Markdown with the hardware beside the figures."""

import datetime as dt
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch

import entrim

RESULTS = Path(__file__).parents[1] / "results"
T = TypeVar("T")


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table; floats to four significant digits."""

    def line(cells: Sequence[object]) -> str:
        return "| " + " | ".join(map(cell, cells)) + " |"

    return "\n".join([line(header), "|" + "---|" * len(header), *map(line, rows)])


def cell(value: object) -> str:
    """Return one value as a person would write it."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def timed(work: Callable[[], T], repeats: int = 1) -> tuple[T, float]:
    """Return the result of `work` and the median of its seconds over `repeats` runs."""
    results, seconds = [], []
    for _ in range(repeats):
        begin = time.perf_counter()
        results.append(work())
        seconds.append(time.perf_counter() - begin)
    return results[-1], statistics.median(seconds)


def verdict(name: str, holds: bool) -> str:
    """Return one line that says whether a bar was met."""
    return f"- {'met' if holds else 'MISSED'}: {name}"


def write(name: str, command: str, sections: Sequence[str]) -> Path:
    """Write the sections under a header that says when, where and how they were measured."""
    today = dt.date.today().isoformat()
    header = (
        f"# {name}, {today}\n\nMade by `{command}` with entrim {entrim.__version__}, PyTorch "
        f"{torch.__version__}, Python {platform.python_version()}, {torch.get_num_threads()} "
        f"threads on {os.cpu_count()} cores of {_processor()}. Times are noisy; the ratios were "
        "measured in one run.\n"
    )
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{today}-{name.replace(' ', '-').lower()}.md"
    file.write_text("\n\n".join([header.strip(), *sections]) + "\n")
    return file


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = (
        [x for x in info.read_text().splitlines() if x.startswith("model name")]
        if info.exists()
        else []
    )
    return names[0].split(":", 1)[1].strip() if names else platform.processor() or "unknown"
