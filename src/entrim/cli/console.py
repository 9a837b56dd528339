"""The console: parser, results on stdout, progress on stderr, and messages that name options."""

import argparse
import io
import json
import os
import re
import shutil
import sys
import textwrap
import time
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TextIO

from entrim.callbacks import Callback, ProgressEvent
from entrim.errors import CommandError, EntrimError, LoadError
from entrim.records import Record
from entrim.report.numbers import percent, seconds, short, size, times

# Tables


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows in columns: the first is aligned left, the others right."""
    widths = [max(columns_of(row[k]) for row in rows) for k in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            _gap(cell, width) + cell if k else cell + _gap(cell, width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def columns_of(text: str) -> int:
    """Return the columns that `text` takes on a terminal; East Asian characters take two.

    >>> columns_of("conv"), columns_of("卷积"), columns_of("e\u0301")
    (4, 4, 1)
    """
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.combining(letter) > 0 for letter in text)


def _gap(text: str, width: int) -> str:
    return " " * (width - columns_of(text))


def size_table(record: Record) -> str:
    """Return sizes, latency, output error and score before and after pruning."""
    before, after = record.before, record.after
    rows = [["", "before", "after", "less"]]
    names = {"params": "parameters", "macs": "MACs", "latency": f"latency, batch of {after.batch}"}
    for word, write in (("params", short), ("macs", short), ("bytes", size), ("latency", seconds)):
        old, new = getattr(before, word), getattr(after, word)
        rows.append([names.get(word, word), write(old), write(new), times(old, new)])
    lines = [table(rows)]
    if record.error is not None:
        lines.append(f"output error: {percent(record.error)} of the variance of the outputs")
    if record.score is not None:
        lines.insert(0, f"{record.score}\n")
    return "\n".join(lines)


def width_table(record: Record) -> str:
    """Return the kept channels of every group."""
    rows = [["group", "channels", "kept", "fraction"]]
    for group in record.groups:
        kept = len(group.kept)
        rows.append([group.name, str(group.channels), str(kept), percent(kept / group.channels)])
    return table(rows)


# Streams

_RESULTS: ContextVar[TextIO | None] = ContextVar("results")
"""The stream of results, while stdout is reserved for them."""


@contextmanager
def reserve_stdout() -> Iterator[None]:
    """Reserve stdout for results: anything that user code prints goes to stderr."""
    token = _RESULTS.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _RESULTS.reset(token)


def print_result(text: str) -> None:
    """Print a result to stdout; raise if stdout is closed or full."""
    stdout = _RESULTS.get(sys.stdout)
    if stdout is None:  # Python's value for a closed descriptor
        raise _stdout_error("it is closed")
    try:
        print(text, file=stdout, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_stdout()
        raise _stdout_error(error.strerror) from error


def print_json(data: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print a result as JSON."""
    print_result(json.dumps(data, indent=2))


def _stdout_error(reason: str | None) -> CommandError:
    return CommandError(
        f"the result cannot be written to stdout ({reason}): redirect it; saved files are intact"
    )


def print_reading(model: str, images: str | None) -> None:
    """Print to stderr what is being read, because it may take a while."""
    print(f"reading {model}" + ("" if images is None else f" and {images}"), file=sys.stderr)


def repair_streams() -> None:
    """Replace characters that stdout cannot encode, and open stderr if it is closed."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 it stays open to the end


def discard_stdout() -> None:
    """Discard buffered output, so that Python does not report it when it exits."""
    stdout = _RESULTS.get(sys.stdout)
    assert stdout is not None
    os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())


# Progress


@dataclass(slots=True)
class ProgressDisplay(Callback):
    """One line per stage: updated in place on a terminal, printed now and then elsewhere."""

    stream: Any = field(default_factory=lambda: sys.stderr)
    every: float = 60.0
    """Seconds between two lines if the stream is not a terminal."""
    each: frozenset[str] = frozenset()
    """Stages of which every step is printed then."""
    _first_event: ProgressEvent | None = None
    """The first event of the current stage; the remaining time is estimated from it."""
    _started_at: float = field(default_factory=time.monotonic)
    _last_event: ProgressEvent | None = None
    _printed_at: float = field(default_factory=time.monotonic)
    _open: bool = False
    """Whether the last event does not have a finished line yet."""

    def __enter__(self) -> "ProgressDisplay":
        return self

    def __exit__(self, *_: object) -> None:
        """Finish the line of the last event."""
        self._end_stage()

    def print_heading(self, name: str) -> None:
        """Print a heading for the following steps."""
        self._end_stage()
        self._first_event = None
        self.stream.write(f"{name}:\n")
        self.stream.flush()

    def on_step(self, event: ProgressEvent) -> None:
        """Show one step."""
        first, last = self._first_event, self._last_event
        if first is None or last is None or event.stage != first.stage or event.done < last.done:
            self._end_stage()
            self._first_event, self._started_at = event, time.monotonic()
        self._last_event = event
        if self.stream.isatty():
            self._draw(event)
        elif self._is_due(event):
            self._write(event)
        else:
            self._open = True
        self.stream.flush()

    def _end_stage(self) -> None:
        """Finish the line of a stage that ended before its total."""
        if self._open and self.stream.isatty():
            self.stream.write("\n")
        elif self._open and self._last_event is not None:
            self._write(self._last_event)
        self._open = False
        self.stream.flush()

    def _write(self, event: ProgressEvent) -> None:
        self._printed_at, self._open = time.monotonic(), False
        line = f"{event.stage}: {event.done} of {event.total}  {event.detail}"
        self.stream.write(line.rstrip() + "\n")

    def _draw(self, event: ProgressEvent) -> None:
        """Redraw the line; final groups and layers get a permanent line above it."""
        columns, final = _columns(self.stream), ""
        if event.is_final:
            final = f"  {event.name:<24} {event.detail}"[:columns] + "\n"
        self._open = event.done < event.total
        end = "" if self._open else "\n"
        self.stream.write(f"\r\x1b[K{final}{self._line(event)[:columns]}{end}")

    def _is_due(self, event: ProgressEvent) -> bool:
        waited = time.monotonic() - self._printed_at >= self.every
        return waited or event.done >= event.total or event.stage in self.each

    def _line(self, event: ProgressEvent) -> str:
        full = 20 * event.done // max(event.total, 1)
        left = event.seconds_left if event.seconds_left is not None else self._seconds_left(event)
        ahead = f"  {_duration(left)} left" if left and event.done < event.total else ""
        bar = "█" * full + "░" * (20 - full)
        counts = f"{event.done}/{event.total}{ahead}"
        return f"{event.stage:<11} {bar} {counts}  {event.name}  {event.detail}"

    def _seconds_left(self, event: ProgressEvent) -> float | None:
        """Return the estimated seconds left; None at the first step of a stage."""
        since = event.done - (event.done if self._first_event is None else self._first_event.done)
        pace = time.monotonic() - self._started_at
        return pace / since * (event.total - event.done) if since > 0 else None


def _duration(value: int | float) -> str:
    """Return a time in words.

    >>> _duration(0.2), _duration(7.4), _duration(400)
    ('less than a second', '7 s', '7 min')
    """
    if value < 1:
        return "less than a second"
    return f"{value:.0f} s" if value < 120 else seconds(value)


def _columns(stream: Any) -> int:
    """Return how long a line may be without being wrapped."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):
        columns = 0
    return min(columns - 1 if columns > 1 else 100, 100)


# Messages of the library, with options instead of parameters

_OPTION_NAMES = {
    "widths": "--width",
    "score": "--metric",
    "patterns": "--part",
    "method": "--selector",
    "weights": "--reconstruction",
    "per_group": "--eps",
    "batch": "--batch-size",
}
"""Parameters whose option has another name."""
_BUDGET = "a budget such as --params 30%"
_PHRASES = {
    "entrim.Widths(0.5) or a Budget": ("--width", f"--width 0.5 or {_BUDGET}"),
    "pass Widths instead": ("--width", "pass --width instead"),
    "pass a Budget": ("--params", f"pass {_BUDGET}"),
    "an EntropicPenalty, or Widths with the entropic selector": (
        "--width",
        "--eps-w, or --width with --selector entropic",
    ),
    'Reconstruction(weights="solution")': ("--reconstruction", "--reconstruction solution"),
    "reconstruction=None": ("--no-reconstruction", "--no-reconstruction"),
    "single_consumer=False": (
        "--single-consumer",
        "leave out --single-consumer and --preset paper",
    ),
    "leave the selector out": ("--selector", "leave --selector out"),
    "leave the order out": ("--order", "leave --order out"),
    "or the widths": ("--width", "or --width"),
    "None to score all": ("--no-early-stop", "--no-early-stop to score all"),
    "another holdout": ("--holdout", "another --holdout"),
    "score raised": ("--metric", "--metric raised"),
    "score returned": ("--metric", "--metric returned"),
    "another name=": ("--metric", "another --out"),
}
"""Phrases of the library, the option that a command must have, and what replaces the phrase."""
_VALUE = r'"(?P<word>\w+)"|\{"\*": (?P<all>[^}]+)\}|(?P<number>-?\d(?:[\d.,e+-]*\d)?)|(?P<none>)'
_KEYWORD = re.compile(rf"(?<![\w./=-])(?P<name>[a-z][a-z_0-9]*)=(?:{_VALUE})(?![\w{{(])")
_SUBJECT = re.compile(r"^(?P<name>[a-z][a-z_0-9]*)(?= (?:is|must) )")
_BARE = re.compile(r"(?<![\w./='\"-])(?P<name>[a-z]+(?:_[a-z0-9]+)+)(?![\w./='\"-])")
"""A word with an underscore is a parameter wherever it appears."""


def error_message(error: EntrimError, options: Collection[str]) -> str:
    """Return the message of an error for a command with these options.

    Messages about files are unchanged: a file name may look like a parameter.
    """
    if isinstance(error, CommandError | LoadError | OSError):
        return str(error)
    return translate_options(str(error), options)


def translate_options(message: str, options: Collection[str]) -> str:
    """Return the message with Python parameters replaced by the options that exist.

    >>> translate_options('leave widths= out, or raise memory_limit=', {"--width"})
    'leave --width out, or raise memory_limit='
    >>> translate_options("round_to is 0: pass max_error=0.05", {"--round-to", "--max-error"})
    '--round-to is 0: pass --max-error 0.05'
    """
    for phrase, (needed, replacement) in _PHRASES.items():
        if needed in options:
            message = message.replace(phrase, replacement)

    def option(found: re.Match[str]) -> str:
        name = _OPTION_NAMES.get(found["name"], f"--{found['name'].replace('_', '-')}")
        if name not in options:
            return found[0]
        return " ".join((name, *_values(found.groupdict())))

    for pattern in (_KEYWORD, _SUBJECT, _BARE):
        message = pattern.sub(option, message)
    return message


def _values(found: Mapping[str, str | None]) -> list[str]:
    return [
        value.replace(",", "") if key == "number" else value
        for key, value in found.items()
        if key != "name" and value
    ]


# The parser

EXAMPLES = "examples:"
"""The beginning of a text whose lines are not wrapped."""
_WIDE = 80


class _Help(argparse.RawDescriptionHelpFormatter):
    """Wraps descriptions, but not examples."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(_WIDE, shutil.get_terminal_size().columns - 2))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(EXAMPLES):
            return super()._fill_text(text, width, indent)
        return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)


class Parser(argparse.ArgumentParser):
    """A parser that reports errors in one line; so do its subcommands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_Help, **options)

    def error(self, message: str) -> NoReturn:
        """Exit with code 2 and one line on stderr."""
        self.exit(2, f"{self.prog}: error: {message}: see {self.prog} --help\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help like any result, so that a full disk is reported."""
        if file is sys.stdout:
            print_result(message.rstrip())
        else:
            super()._print_message(message, file)
