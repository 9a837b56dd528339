"""Tables on stdout, progress on stderr."""

import io
import json
import os
import sys
import time
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from entrim.errors import CommandError
from entrim.records import Record, Step
from entrim.report.numbers import percent, seconds, short, size, times


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows in columns: the first to the left, the others to the right."""
    widths = [max(columns_of(row[k]) for row in rows) for k in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            _gap(cell, width) + cell if k else cell + _gap(cell, width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def columns_of(text: str) -> int:
    """Return how many columns a terminal gives to `text`: two to a letter of Chinese, say.

    >>> columns_of("conv"), columns_of("卷积"), columns_of("e\u0301")
    (4, 4, 1)
    """
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.combining(letter) > 0 for letter in text)


def _gap(text: str, width: int) -> str:
    return " " * (width - columns_of(text))


def tell(text: str) -> None:
    """Print a result; where stdout is closed or full, that is no success."""
    if sys.stdout is None:  # as Python has it where the descriptor is closed
        raise _untold("it is closed")
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        give_up_stdout()
        raise _untold(error.strerror) from error


def tell_json(data: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print a result for machines."""
    tell(json.dumps(data, indent=2))


def _untold(why: str | None) -> CommandError:
    return CommandError(
        f"stdout does not take the result ({why}): send it elsewhere; what was saved is intact"
    )


def tell_reading(model: str, images: str | None) -> None:
    """Say on stderr what is read, since that may take a while."""
    print(f"reading {model}" + ("" if images is None else f" and {images}"), file=sys.stderr)


def mend_streams() -> None:
    """Let letters that stdout cannot show be replaced, and stderr be something to write to."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 it is open to the end


def give_up_stdout() -> None:
    """Let what is still to be written to stdout go nowhere, so that the end of Python is quiet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def sizes(record: Record) -> str:
    """Return what the network cost before and costs now."""
    before, after = record.before, record.after
    rows = [["", "before", "after", "less"]]
    for word, write in (("params", short), ("macs", short), ("bytes", size), ("latency", seconds)):
        was, now = getattr(before, word), getattr(after, word)
        name = {"params": "parameters", "macs": "MACs"}.get(word, word)
        rows.append([name, write(was), write(now), times(was, now)])
    return table(rows)


def widths(record: Record) -> str:
    """Return what every group keeps."""
    rows = [["group", "channels", "kept", "stays"]]
    for group in record.groups:
        kept = len(group.kept)
        rows.append([group.name, str(group.channels), str(kept), percent(kept / group.channels)])
    return table(rows)


@dataclass(slots=True)
class Progress:
    """One line that is written over on a terminal; elsewhere one now and then, and the last."""

    stream: Any = field(default_factory=lambda: sys.stderr)
    every: float = 60.0
    """Seconds between two lines where nobody looks at a terminal."""
    each: frozenset[str] = frozenset()
    """Stages of which every step is worth a line there."""
    _stage: str = ""
    _begun: float = field(default_factory=time.monotonic)
    _told: float = field(default_factory=time.monotonic)
    _open: bool = False
    """Whether the line on the terminal may still be written over."""

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the line as it is, for what is said next."""
        if self._open:
            self.stream.write("\n")
            self.stream.flush()

    def __call__(self, step: Step) -> None:
        """Show one step."""
        if step.stage != self._stage:
            self._stage, self._begun = step.stage, time.monotonic()
        if self.stream.isatty():
            self._draw(step)
        elif self._due(step):
            self._told = time.monotonic()
            self.stream.write(
                f"{step.stage}: {step.done} of {step.total}  {step.detail}".rstrip() + "\n"
            )
        self.stream.flush()

    def _draw(self, step: Step) -> None:
        """Write the line anew; above it stays a line for every group and layer that is settled."""
        columns, settled = _columns(self.stream), ""
        if step.settled:
            settled = f"  {step.name:<24} {step.detail}"[:columns] + "\n"
        self._open = step.done < step.total
        end = "" if self._open else "\n"
        self.stream.write(f"\r\x1b[K{settled}{self._line(step)[:columns]}{end}")

    def _due(self, step: Step) -> bool:
        waited = time.monotonic() - self._told >= self.every
        return waited or step.done >= step.total or step.stage in self.each

    def _line(self, step: Step) -> str:
        full = 20 * step.done // max(step.total, 1)
        left = step.seconds_left
        if left is None and step.done:
            left = (time.monotonic() - self._begun) / step.done * (step.total - step.done)
        ahead = f"  {seconds(left)} left" if left else ""
        bar = "█" * full + "░" * (20 - full)
        return f"{step.stage:<9}{bar} {step.done}/{step.total}{ahead}  {step.name}  {step.detail}"


def _columns(stream: Any) -> int:
    """Return how long a line may be so that the terminal does not break it."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):
        columns = 0
    return min(columns - 1 if columns > 1 else 100, 100)
