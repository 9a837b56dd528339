"""The progress displays: one bar for the whole run in a terminal, lines in a log, a notebook."""

import html
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from entrim.callbacks import Callback, ProgressEvent, in_notebook
from entrim.report.numbers import clock, seconds

UNLIMITED = 100_000
"""The width of a stream that is not a terminal: lines are not wrapped."""
TICK = 0.5
"""Seconds between two updates of the elapsed time while no step ends."""
_DRAWING = threading.RLock()
"""Held while a display is drawn, and while the process forks: no child inherits a locked stream."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_DRAWING.acquire,
        after_in_parent=_DRAWING.release,
        after_in_child=_DRAWING.release,
    )


def console_for(stream: Any, file: Any = None) -> Console:
    """Return a console for `stream`: without a terminal, it writes plain text.

    With `file`, it writes there what it would write to `stream`.
    """
    terminal = stream is not None and stream.isatty()
    return Console(
        file=file or stream,
        force_terminal=terminal,
        width=None if terminal else UNLIMITED,
        highlight=False,
    )


def make_display() -> Callback:
    """Return the display for the person who is watching."""
    return NotebookDisplay() if in_notebook() else ProgressDisplay()


@dataclass(slots=True)
class _Watch:
    """The state of a run that is shown."""

    run: str
    begin: float = field(default_factory=lambda: time.monotonic())
    event: ProgressEvent | None = None
    stage_begin: float = field(default_factory=lambda: time.monotonic())
    known_at: float = 0.0
    """Time of the last step."""

    def step(self, event: ProgressEvent) -> None:
        self.event, self.known_at = event, time.monotonic()

    @property
    def share(self) -> float | None:
        """The finished share of the run; that of the stage if it is the only one."""
        event = self.event
        if event is None or (event.run_share is None and event.stage != self.run):
            return None
        return float(event.share if event.run_share is None else event.run_share)

    def times(self) -> str:
        """Return the elapsed and the remaining time."""
        now = time.monotonic()
        event, passed = self.event, clock(now - self.begin)
        if event is None:
            return passed
        left = event.seconds_left if event.run_share is None else event.run_seconds_left
        if left is None or (event.run_share is None and event.done >= event.total):
            return passed
        rest = math.ceil(max(left - (now - self.known_at), 0.0))
        return f"{passed}, {seconds(rest)} left" if rest else f"{passed}, nearly done"

    def step_text(self) -> str:
        """Return the current stage and step."""
        if self.event is None:
            return "preparing"
        one = self.event
        return f"{one.stage} {one.done}/{one.total}  {one.name}"


class _Ticker:
    """Calls a function from a thread now and then, so that no display looks frozen."""

    def __init__(self, draw: Callable[[], None]) -> None:
        self._draw, self._ended = draw, threading.Event()
        # a notebook sends the output of a thread to the cell of its context
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._run,), name="entrim progress", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(TICK):
            with _DRAWING:
                if not self._ended.is_set():
                    self._draw()

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()


@dataclass(slots=True)
class ProgressDisplay(Callback):
    """One bar for the whole run on a terminal, with a line per stage; lines now and then elsewhere.

    Events are shown during a run, or in a `with` block.
    """

    stream: Any = field(default_factory=lambda: sys.stderr)
    every: float = 60.0
    """Seconds between two lines if the stream is not a terminal."""
    each: frozenset[str] = frozenset()
    """Stages of which every step gets a line."""
    verbose: bool = False
    """Whether every group and layer gets a line."""
    refresh: float = 0.1
    """Seconds between two updates of the bar."""
    _console: Console = field(init=False)
    _open: int = 0
    _watch: _Watch | None = None
    _bar: Progress | None = None
    _ticker: _Ticker | None = None
    _drawn_at: float = 0.0
    _printed_at: float = field(init=False)
    _pending: bool = False
    """Whether the last event has no line."""

    def __post_init__(self) -> None:
        self._console, self._printed_at = console_for(self.stream), time.monotonic()

    def __enter__(self) -> "ProgressDisplay":
        self._open += 1
        return self

    def __exit__(self, *_: object) -> None:
        """Finish the line of the last event."""
        self._open -= 1
        self._close()

    @property
    def draws(self) -> bool:
        """Whether a bar is drawn."""
        return self._console.is_terminal and not self._console.is_dumb_terminal

    def print_heading(self, name: str) -> None:
        """Print a heading for the following steps."""
        self._close()
        self._console.print(Text(f"{name}:", "bold"))

    def on_run_begin(self, run: str) -> None:
        """Show a bar that is empty until the length of the run is known."""
        self._close()
        self._open, self._watch = self._open + 1, _Watch(run)
        self._draw()

    def on_run_end(self, run: str, seconds: float) -> None:
        """Remove the bar; the lines of the stages stay."""
        self._open -= 1
        self._close()

    def on_step(self, event: ProgressEvent) -> None:
        """Show one step."""
        if not self._open:
            return
        if self._watch is None:
            self._watch = _Watch(event.stage)
        last = self._watch.event
        if last is not None and (event.stage != last.stage or event.done < last.done):
            self._end_stage()
        self._watch.step(event)
        self._pending = True
        waited = not self.draws and time.monotonic() - self._printed_at >= self.every
        begins = not self.draws and event.done == 0
        if waited or begins or event.stage in self.each or (self.verbose and event.is_final):
            self._print_step(event)
        if event.done >= event.total:
            self._end_stage()
        if time.monotonic() - self._drawn_at >= self.refresh:
            self._draw()

    def _draw(self) -> None:
        """Draw the bar, and start it if there is none."""
        if not self.draws or self._watch is None:
            return
        with _DRAWING:
            if self._bar is None:
                self._bar = self._new_bar(self._watch.run)
                self._bar.start()
                self._ticker = _Ticker(self._draw)
            share, watch = self._watch.share, self._watch
            self._bar.update(
                self._bar.task_ids[0],
                total=None if share is None else 1.0,
                completed=share or 0.0,
                share="" if share is None else f"{share:.0%}",
                times=watch.times(),
                text=watch.step_text(),
            )
            self._bar.refresh()
            self._drawn_at = time.monotonic()

    def _new_bar(self, run: str) -> Progress:
        bar = Progress(
            TextColumn("{task.description}", markup=False, style="bold"),
            BarColumn(20),
            TextColumn("{task.fields[share]:>4}", markup=False),
            TextColumn("{task.fields[times]}", markup=False),
            TextColumn("{task.fields[text]}", markup=False, style="dim"),
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=self.stream is sys.stderr,
        )
        bar.add_task(run, total=None, share="", times="", text="")
        return bar

    def _close(self) -> None:
        """End the stage, and remove the bar."""
        self._end_stage()
        with _DRAWING:
            if self._ticker is not None:
                self._ticker.stop()
            if self._bar is not None:
                self._bar.stop()
            self._bar = self._ticker = self._watch = None

    def _end_stage(self) -> None:
        """Print the line of the stage of the last event, unless it has one."""
        watch = self._watch
        if watch is None or watch.event is None or not self._pending:
            return
        if self.draws:
            self._print_line(watch.event)
        else:
            self._print_step(watch.event)
        watch.stage_begin, self._pending = time.monotonic(), False

    def _print_line(self, event: ProgressEvent) -> None:
        """Print the line of a finished stage above the bar."""
        assert self._watch is not None
        took = time.monotonic() - self._watch.stage_begin
        count = "" if event.done == event.total == 1 else f"{event.done} of {event.total}"
        line = Text.assemble(
            ("✓ " if event.done >= event.total else "· ", "green"),
            f"{event.stage:<12}{seconds(took):>8}  ",
            (f"{count}  {event.detail}".strip(), "dim"),
        )
        self._print(line)

    def _print_step(self, event: ProgressEvent) -> None:
        """Print a line for one step."""
        if self.draws:
            self._print(Text(f"    {event.name:<24} {event.detail}"))
            return
        self._printed_at, self._pending = time.monotonic(), False
        left = event.seconds_left if event.done < event.total else None
        time_left = f"  {seconds(math.ceil(left))} left" if left else ""
        name = f"  {event.name}" if self.verbose else ""
        line = f"{event.stage}: {event.done} of {event.total}{time_left}{name}  {event.detail}"
        self._console.print(Text(line.rstrip()))

    def _print(self, line: Text) -> None:
        with _DRAWING:
            self._console.print(line, no_wrap=True, overflow="ellipsis")


@dataclass(slots=True)
class NotebookDisplay(Callback):
    """One line in the output of a notebook cell, which is updated in place."""

    refresh: float = 0.25
    """Seconds between two updates."""
    _watch: _Watch | None = None
    _handle: Any = None
    _ticker: _Ticker | None = None
    _drawn_at: float = 0.0

    def on_run_begin(self, run: str) -> None:
        """Show the line."""
        self._watch = _Watch(run)
        display: Any = sys.modules["IPython.display"].display
        self._handle = display(self._data(), raw=True, display_id=True)
        self._ticker = _Ticker(self._draw)

    def on_step(self, event: ProgressEvent) -> None:
        """Update the line."""
        if self._watch is None:
            return
        self._watch.step(event)
        if time.monotonic() - self._drawn_at >= self.refresh:
            with _DRAWING:
                self._draw()

    def on_run_end(self, run: str, seconds: float) -> None:
        """Show the time that the run took."""
        if self._watch is None or self._ticker is None:
            return
        with _DRAWING:
            self._ticker.stop()
            self._update(f"{run}: {clock(seconds)}", None)
        self._watch = None

    def _draw(self) -> None:
        self._drawn_at = time.monotonic()
        self._handle.update(self._data(), raw=True)

    def _update(self, text: str, share: float | None) -> None:
        self._handle.update(_rich_text(text, share), raw=True)

    def _data(self) -> dict[str, str]:
        assert self._watch is not None
        watch, share = self._watch, self._watch.share
        shown = "" if share is None else f" {share:.0%}"
        return _rich_text(f"{watch.run}{shown}  {watch.times()}  {watch.step_text()}", share or 0.0)


def _rich_text(text: str, share: float | None) -> dict[str, str]:
    """Return a line as plain text and as HTML, with a bar if there is a share."""
    bar = ""
    if share is not None:
        bar = (
            f'<progress value="{share:.3f}" max="1" style="width:12em;vertical-align:middle">'
            "</progress> "
        )
    style = "font-variant-numeric:tabular-nums;white-space:pre-wrap"
    return {
        "text/plain": text,
        "text/html": f'<div class="entrim-progress" style="{style}">{bar}{html.escape(text)}</div>',
    }
