"""The console: parser, results on stdout, and messages that name options."""

import argparse
import io
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NoReturn, TextIO

from rich.table import Table
from rich.text import Text

from entrim.display.bars import console_for
from entrim.errors import CommandError, EntrimError, LoadError
from entrim.records import Record
from entrim.report.numbers import percent
from entrim.report.summary import size_rows, unseen_rows

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
    console_for(_RESULTS.get(sys.stdout), text := io.StringIO()).print(grid)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def size_table(record: Record) -> str:
    """Return sizes, latency, output error and score before and after pruning."""
    lines = [table(size_rows(record))]
    if record.before.energy is None or record.after.energy is None:
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
        lines = [f"outputs compared as {kinds}:", table(unseen_rows(record))]
        lines += [] if holdout.guarantee is None else [str(holdout.guarantee)]
        lines += [] if holdout.note is None else [f"note: {holdout.note}"]
    if (unseen := record.worst_layer) is not None:
        lines = [f"largest error of a layer on hold-out images: {percent(unseen[1])} ({unseen[0]})"]
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
    console_for(sys.stderr).print(line, soft_wrap=True)


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
