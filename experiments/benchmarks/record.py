"""Records of benchmarks: ledgers of measured points, and dated Markdown with the hardware."""

import datetime as dt
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

import entrim
from entrim.storage import atomic

RESULTS = Path(__file__).parents[1] / "results"
T = TypeVar("T")


def has_weights() -> bool:
    """Return whether the pre-trained networks can be loaded; print a message if not."""
    known = bool(os.environ.get("ENTRIM_ASSETS"))
    if not known:
        print("skipped: the pre-trained networks are looked for in ENTRIM_ASSETS, which is unset")
    return known


@dataclass(frozen=True, slots=True)
class Ledger:
    """The record of measured points, one JSON line each; a benchmark adds missing ones."""

    file: Path

    @classmethod
    def open(cls, name: str) -> "Ledger":
        """Return the ledger called `name` among the results."""
        RESULTS.mkdir(exist_ok=True)
        return cls(RESULTS / f"{name}.jsonl")

    def point(self, key: str, measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Return the point under `key`, measured and written if it is missing."""
        known = self.points()
        if key not in known:
            found = {"key": key, **measure()}
            lines = [json.dumps(point) for point in (*self.points().values(), found)]
            atomic.write(self.file, ("\n".join(lines) + "\n").encode())
            print(found, flush=True)
            return found
        return known[key]

    def points(self) -> dict[str, dict[str, Any]]:
        """Return all points by key."""
        if not self.file.exists():
            return {}
        lines = [json.loads(line) for line in self.file.read_text().splitlines()]
        return {line["key"]: line for line in lines}


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table; floats to four significant digits."""

    def line(cells: Sequence[object]) -> str:
        return "| " + " | ".join(map(format_cell, cells)) + " |"

    return "\n".join([line(header), "|" + "---|" * len(header), *map(line, rows)])


def format_cell(value: object) -> str:
    """Return one value as text."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def measure_time(work: Callable[[], T], repeats: int = 1) -> tuple[T, float]:
    """Return the result of `work` and the median of its seconds over `repeats` runs."""
    results, seconds = [], []
    for _ in range(repeats):
        begin = time.perf_counter()
        results.append(work())
        seconds.append(time.perf_counter() - begin)
    return results[-1], statistics.median(seconds)


def check_line(name: str, holds: bool) -> str:
    """Return one line that states whether a check is met."""
    return f"- {'met' if holds else 'MISSED'}: {name}"


ONE_RUN = "Times are noisy; the ratios were measured in one run."


def write(name: str, command: str, sections: Sequence[str], times: str = ONE_RUN) -> Path:
    """Write the sections under a header with the date, the command, the hardware and `times`."""
    today = dt.date.today().isoformat()
    threads = torch.get_num_threads()
    header = (
        f"# {name}, {today}\n\nMade by `{command}` with entrim {entrim.__version__}, PyTorch "
        f"{torch.__version__}, Python {platform.python_version()}, {threads} "
        f"thread{'s' * (threads > 1)} on {os.cpu_count()} cores of {_processor()}. {times}\n"
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
