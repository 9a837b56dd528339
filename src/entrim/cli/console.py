"""The console: parser, results on stdout, progress on stderr, and messages that name options."""

import argparse
import io
import json
import math
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Table
from rich.text import Text

from entrim.callbacks import Callback, ProgressEvent
from entrim.errors import CommandError, EntrimError, LoadError
from entrim.records import Record
from entrim.report.numbers import percent, seconds, short, size, times

_UNLIMITED = 100_000
"""The width of a stream that is not a terminal: lines are not wrapped."""


def _console(stream: Any, file: Any = None) -> Console:
    """Return a console for `stream`: without a terminal, it writes plain text.

    With `file`, it writes there what it would write to `stream`.
    """
    terminal = stream is not None and stream.isatty()
    return Console(
        file=file or stream,
        force_terminal=terminal,
        width=None if terminal else _UNLIMITED,
        highlight=False,
    )


# Tables


def table(rows: Sequence[Sequence[str]], *, left: Collection[int] = (0,)) -> str:
    """Return the rows in columns for stdout; the first row is the head.

    The columns in `left` are aligned left, the others right.
    """
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for k, name in enumerate(rows[0]):
        justify = "left" if k in left else "right"
        grid.add_column(Text(name), justify=justify, overflow="fold")
    for row in rows[1:]:
        grid.add_row(*map(Text, row))
    _console(_RESULTS.get(sys.stdout), text := io.StringIO()).print(grid)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def size_table(record: Record) -> str:
    """Return sizes, latency, output error and score before and after pruning."""
    before, after = record.before, record.after
    rows = [["", "before", "after", "less"]]
    names = {"params": "parameters", "macs": "MACs", "latency": f"latency, batch of {after.batch}"}
    for word, write in (("params", short), ("macs", short), ("bytes", size), ("latency", seconds)):
        old, new = getattr(before, word), getattr(after, word)
        rows.append([names.get(word, word), write(old), write(new), times(old, new)])
    if before.energy is not None and after.energy is not None:
        ends = [f"{joules:.3g} J" for joules in (before.energy, after.energy)]
        rows.append(["energy per image", *ends, times(before.energy, after.energy)])
    lines = [table(rows)]
    if before.energy is None or after.energy is None:
        lines.append("energy: not measured, no readable counter (RAPL)")
    lines.append(f"\n{comparison_text(record)}")
    if record.score is not None:
        lines.insert(0, f"{record.score}\n")
    return "\n".join(lines)


def comparison_text(record: Record) -> str:
    """Return how much the outputs changed, on unseen and on fitting images."""
    lines = ["not measured on unseen images: no images were held out"]
    if (holdout := record.holdout) is not None:
        assumed = " (recognized)" if holdout.recognized else ""
        kinds = f"{' and '.join(holdout.outputs)}{assumed}"
        lines = [f"on {holdout.images} unseen images, outputs compared as {kinds}:"]
        rows = [["", "value", "95 % interval"]]
        rows += [
            [name, v, f"{low} to {high}"] for name, (v, low, high) in holdout.figures().items()
        ]
        lines.append(table(rows))
        lines += [] if holdout.guarantee is None else [str(holdout.guarantee)]
        lines += [] if holdout.note is None else [f"note: {holdout.note}"]
    if record.error is not None:
        lines.append(f"error on fitting images: {record.error:.3g} of the variance of the outputs")
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


def print_message(label: str, style: str, message: str) -> None:
    """Print a message to stderr after a label in this style."""
    line = Text.assemble((f"{label}:", style), f" {message}")
    _console(sys.stderr).print(line, soft_wrap=True)


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


class _TimeLeft(ProgressColumn):
    """The time left according to the event, otherwise estimated from the finished steps."""

    def render(self, task: Task) -> Text:
        """Return the time left, or an empty text if it is unknown."""
        known = task.fields["seconds_left"]
        left = task.time_remaining if known is None else known
        return Text(f"{seconds(math.ceil(left))} left" if left and not task.finished else "")


@dataclass(slots=True)
class ProgressDisplay(Callback):
    """One line per stage: a progress bar on a terminal, printed now and then elsewhere."""

    stream: Any = field(default_factory=lambda: sys.stderr)
    every: float = 60.0
    """Seconds between two lines if the stream is not a terminal."""
    each: frozenset[str] = frozenset()
    """Stages of which every step is printed then."""
    refresh: float = 0.1
    """Seconds between two updates of a progress bar."""
    _console: Console = field(init=False)
    _bar: Progress | None = None
    """The progress bar of the current stage, on a terminal."""
    _last_event: ProgressEvent | None = None
    _printed_at: float = field(init=False)
    _pending: bool = False
    """Whether the last event was not printed."""

    def __post_init__(self) -> None:
        self._console, self._printed_at = _console(self.stream), time.monotonic()

    def __enter__(self) -> "ProgressDisplay":
        return self

    def __exit__(self, *_: object) -> None:
        """Finish the line of the last event."""
        self._end_stage()

    def print_heading(self, name: str) -> None:
        """Print a heading for the following steps."""
        self._end_stage()
        self._last_event = None
        self._console.print(Text(f"{name}:", "bold"))

    def on_step(self, event: ProgressEvent) -> None:
        """Show one step."""
        last = self._last_event
        if last is not None and (event.stage != last.stage or event.done < last.done):
            self._end_stage()
        self._last_event = event
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._draw(event)
        else:
            self._log(event)

    def _end_stage(self) -> None:
        """Finish the line of a stage that ended before its total."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        elif self._pending and self._last_event is not None:
            self._print(self._last_event)

    def _draw(self, event: ProgressEvent) -> None:
        """Update the progress bar; final groups and layers get a permanent line above it."""
        if self._bar is None:
            self._bar = self._new_bar(event)
        if event.is_final:
            line = Text(f"  {event.name:<24} {event.detail}")
            self._console.print(line, no_wrap=True, overflow="ellipsis")
        self._bar.update(
            self._bar.task_ids[0],
            completed=event.done if event.work is None else event.work,
            count=f"{event.done}/{event.total}",
            text=f"{event.name}  {event.detail}".rstrip(),
            seconds_left=event.seconds_left,
        )
        self._bar.start()  # draws it, unless it was started before
        if event.done >= event.total:
            self._end_stage()
        elif time.monotonic() - self._printed_at >= self.refresh:
            self._printed_at = time.monotonic()
            self._bar.refresh()

    def _new_bar(self, event: ProgressEvent) -> Progress:
        """Return the progress bar of a stage.

        There is no refresh thread, because user code may fork. The estimate of the time left uses
        all steps, because one may take minutes.
        """
        bar = Progress(
            TextColumn("{task.description:<11}", markup=False),
            BarColumn(20),
            TextColumn("{task.fields[count]}", markup=False),
            _TimeLeft(),
            TextColumn("{task.fields[text]}", markup=False),
            console=self._console,
            auto_refresh=False,
            speed_estimate_period=math.inf,
            get_time=time.monotonic,
        )
        total = event.total if event.total_work is None else event.total_work
        bar.add_task(event.stage, total=total, count="", text="", seconds_left=None)
        return bar

    def _log(self, event: ProgressEvent) -> None:
        waited = time.monotonic() - self._printed_at >= self.every
        self._pending = True
        announced = event.done == 0 or event.done >= event.total
        if waited or announced or event.stage in self.each:
            self._print(event)

    def _print(self, event: ProgressEvent) -> None:
        self._printed_at, self._pending = time.monotonic(), False
        left = event.seconds_left if event.done < event.total else None
        time_left = f"  {seconds(math.ceil(left))} left" if left else ""
        line = f"{event.stage}: {event.done} of {event.total}{time_left}  {event.detail}"
        self._console.print(Text(line.rstrip()))


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
