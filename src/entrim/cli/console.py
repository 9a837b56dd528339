"""How a command is read: help of 80 columns, and one line for words that are no command."""

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

from entrim.errors import CommandError, EntrimError, LoadError
from entrim.records import ProgressEvent, Record
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


_RESULTS: ContextVar[TextIO | None] = ContextVar("results")
"""The stream of results, where stdout is kept for them."""


@contextmanager
def stdout_for_results() -> Iterator[None]:
    """Keep stdout for results: what the code of a network or a metric prints goes to stderr."""
    token = _RESULTS.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _RESULTS.reset(token)


def print_progress(text: str) -> None:
    """Print a result; where stdout is closed or full, that is no success."""
    stdout = _RESULTS.get(sys.stdout)
    if stdout is None:  # as Python has it where the descriptor is closed
        raise _untold("it is closed")
    try:
        print(text, file=stdout, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        give_up_stdout()
        raise _untold(error.strerror) from error


def tell_json(data: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print a result for machines."""
    print_progress(json.dumps(data, indent=2))


def _untold(reason: str | None) -> CommandError:
    return CommandError(
        f"stdout does not take the result ({reason}): send it elsewhere; what was saved is intact"
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
    stdout = _RESULTS.get(sys.stdout)
    assert stdout is not None
    os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())


def sizes(record: Record) -> str:
    """Return what the network cost before and costs now, and how well it did and does."""
    before, after = record.before, record.after
    rows = [["", "before", "after", "less"]]
    passed = f"latency, batch of {after.batch}"
    names = {"params": "parameters", "macs": "MACs", "latency": passed}
    for word, write in (("params", short), ("macs", short), ("bytes", size), ("latency", seconds)):
        was, now = getattr(before, word), getattr(after, word)
        name = names.get(word, word)
        rows.append([name, write(was), write(now), times(was, now)])
    told = [table(rows)]
    if record.error is not None:
        told.append(f"outputs {percent(record.error)} of their variance away from the original's")
    if record.score is not None:
        told.insert(0, f"{record.score}\n")
    return "\n".join(told)


def widths(record: Record) -> str:
    """Return what every group keeps."""
    rows = [["group", "channels", "kept", "stays"]]
    for group in record.groups:
        kept = len(group.kept)
        rows.append([group.name, str(group.channels), str(kept), percent(kept / group.channels)])
    return table(rows)


@dataclass(slots=True)
class Progress:
    """One line a stage, written over on a terminal; elsewhere one now and then, and the last."""

    stream: Any = field(default_factory=lambda: sys.stderr)
    every: float = 60.0
    """Seconds between two lines where nobody looks at a terminal."""
    each: frozenset[str] = frozenset()
    """Stages of which every step is worth a line there."""
    _first: ProgressEvent | None = None
    """The first step of this stage that was heard of, and when: the time left follows from it."""
    _begun: float = field(default_factory=time.monotonic)
    _last: ProgressEvent | None = None
    _told: float = field(default_factory=time.monotonic)
    _open: bool = False
    """Whether the last step is not on a line of its own yet."""

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the last step on its line, for what is said next."""
        self._close()

    def head(self, name: str) -> None:
        """Name what the next steps belong to, on a line of its own."""
        self._close()
        self._first = None
        self.stream.write(f"{name}:\n")
        self.stream.flush()

    def __call__(self, step: ProgressEvent) -> None:
        """Show one step."""
        first, last = self._first, self._last
        if first is None or last is None or step.stage != first.stage or step.done < last.done:
            self._close()
            self._first, self._begun = step, time.monotonic()
        self._last = step
        if self.stream.isatty():
            self._draw(step)
        elif self._due(step):
            self._write(step)
        else:
            self._open = True
        self.stream.flush()

    def _close(self) -> None:
        """End a stage that ended before its total: its last step stays, or is told after all."""
        if self._open and self.stream.isatty():
            self.stream.write("\n")
        elif self._open and self._last is not None:
            self._write(self._last)
        self._open = False
        self.stream.flush()

    def _write(self, step: ProgressEvent) -> None:
        self._told, self._open = time.monotonic(), False
        line = f"{step.stage}: {step.done} of {step.total}  {step.detail}"
        self.stream.write(line.rstrip() + "\n")

    def _draw(self, step: ProgressEvent) -> None:
        """Write the line anew; above it stays a line for every group and layer that is settled."""
        columns, settled = _columns(self.stream), ""
        if step.settled:
            settled = f"  {step.name:<24} {step.detail}"[:columns] + "\n"
        self._open = step.done < step.total
        end = "" if self._open else "\n"
        self.stream.write(f"\r\x1b[K{settled}{self._line(step)[:columns]}{end}")

    def _due(self, step: ProgressEvent) -> bool:
        waited = time.monotonic() - self._told >= self.every
        return waited or step.done >= step.total or step.stage in self.each

    def _line(self, step: ProgressEvent) -> str:
        full = 20 * step.done // max(step.total, 1)
        left = step.seconds_left if step.seconds_left is not None else self._left(step)
        ahead = f"  {_duration(left)} left" if left and step.done < step.total else ""
        bar = "█" * full + "░" * (20 - full)
        return f"{step.stage:<9} {bar} {step.done}/{step.total}{ahead}  {step.name}  {step.detail}"

    def _left(self, step: ProgressEvent) -> float | None:
        """Return the seconds left at the pace since the first step, None where that is this one."""
        since = step.done - (step.done if self._first is None else self._first.done)
        pace = time.monotonic() - self._begun
        return pace / since * (step.total - step.done) if since > 0 else None


def _duration(value: int | float) -> str:
    """Return a time as one tells it when asked how long.

    >>> _duration(0.2), _duration(7.4), _duration(400)
    ('less than a second', '7 s', '7 min')
    """
    if value < 1:
        return "less than a second"
    return f"{value:.0f} s" if value < 120 else seconds(value)


def _columns(stream: Any) -> int:
    """Return how long a line may be so that the terminal does not break it."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):
        columns = 0
    return min(columns - 1 if columns > 1 else 100, 100)


_OTHERS = {"widths": "--width", "score": "--metric", "patterns": "--part", "method": "--selector"}
"""Keywords whose option has another name."""
_PHRASES = {
    "a budget=": ("--params", "a budget, such as --params 30%"),
    "budget=": ("--params", "a budget, such as --params 30%"),
    "leave refit=True": ("--no-refit", "leave --no-refit out"),
    "refit=False": ("--no-refit", "--no-refit"),
    "correct=False": ("--no-correct", "--no-correct"),
    "None to score all": ("--no-prune", "--no-prune to score all"),
    'method="reference"': ("--alternation", "--alternation"),
    "score raised": ("--metric", "--metric raised"),
    "score returned": ("--metric", "--metric returned"),
    "another name=": ("--metric", "another --out"),
}
"""What is said in a command that has the option, instead of what the library says."""
_VALUE = r'"(?P<word>\w+)"|\{"\*": (?P<all>[^}]+)\}|(?P<number>-?\d(?:[\d.,e+-]*\d)?)|(?P<none>)'
_KEYWORD = re.compile(rf"(?<![\w./=-])(?P<name>[a-z][a-z_0-9]*)=(?:{_VALUE})(?![\w{{(])")
_SUBJECT = re.compile(r"^(?P<name>[a-z][a-z_0-9]*)(?= is )")
_BARE = re.compile(r"(?<![\w./='\"-])(?P<name>[a-z]+(?:_[a-z0-9]+)+)(?![\w./='\"-])")
"""A word with an underscore is a keyword of Python, wherever it stands."""


def sentence_of(error: EntrimError, options: Collection[str]) -> str:
    """Return what went wrong, as a command with these options says it.

    Files are named as they are: what they are called may look like a keyword.
    """
    if isinstance(error, CommandError | LoadError | OSError):
        return str(error)
    return in_options(str(error), options)


def in_options(sentence: str, options: Collection[str]) -> str:
    """Return the sentence with keywords of Python as options, where there are such options.

    >>> in_options('leave widths= out, raise memory_limit= or pass mode="independent"', {"--width"})
    'leave --width out, raise memory_limit= or pass mode="independent"'
    >>> in_options("round_to is 0: pass max_error=0.05", {"--round-to", "--max-error"})
    '--round-to is 0: pass --max-error 0.05'
    """
    for said, (needed, instead) in _PHRASES.items():
        if needed in options:
            sentence = sentence.replace(said, instead)

    def option(found: re.Match[str]) -> str:
        name = _OTHERS.get(found["name"], f"--{found['name'].replace('_', '-')}")
        if name not in options:
            return found[0]
        return " ".join((name, *_values(found.groupdict())))

    for pattern in (_KEYWORD, _SUBJECT, _BARE):
        sentence = pattern.sub(option, sentence)
    return sentence


def _values(found: Mapping[str, str | None]) -> list[str]:
    return [value for key, value in found.items() if key != "name" and value]


EXAMPLES = "examples:"
"""How a text begins whose lines stay as they are."""
_WIDE = 80


class _Help(argparse.RawDescriptionHelpFormatter):
    """Wraps descriptions, and leaves examples alone."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(_WIDE, shutil.get_terminal_size().columns - 2))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(EXAMPLES):
            return super()._fill_text(text, width, indent)
        return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line; those of its commands too."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_Help, **options)

    def error(self, message: str) -> NoReturn:
        """End with exit code 2 and one line on stderr."""
        self.exit(2, f"{self.prog}: error: {message}: see {self.prog} --help\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help on stdout as every result, so that a full disk is not passed over."""
        if file is sys.stdout:
            print_progress(message.rstrip())
        else:
            super()._print_message(message, file)
