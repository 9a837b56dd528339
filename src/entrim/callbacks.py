"""Progress of long calls: the events, the callbacks that receive them, and the stage timer."""

import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from entrim.errors import BadSettingError, warn


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressEvent:
    """One finished step of a stage.

    Attributes
    ----------
    stage : str
        trace, resume, collect, select, sensitivity, allocate, reconstruct, prune or measure; search
        or distill.
    name : str
        The finished item: a batch, a group, a layer, a trial or an epoch.
    done : int
        Number of finished steps of the stage.
    total : int
        Number of all steps of the stage.
    detail : str, default ""
        Short description of the result of the step.
    loss : float, optional
        Loss of the batch, in a training.
    work, total_work : float, optional
        Finished and all operations of the stage; steps may differ by far in their work.
    seconds_left : float, optional
        Estimated remaining time of the stage, without early stopping.
    is_final : bool, default False
        Whether the step determines the result for a group of channels or a layer.
    run_share : float, optional
        Finished share of the whole run, from 0 to 1; None if it is unknown.
    run_seconds_left : float, optional
        Estimated remaining time of the whole run.
    """

    stage: str
    name: str
    done: int
    total: int
    detail: str = ""
    loss: float | None = None
    work: int | float | None = None
    total_work: int | float | None = None
    seconds_left: int | float | None = None
    is_final: bool = False
    run_share: int | float | None = None
    run_seconds_left: int | float | None = None

    @property
    def share(self) -> int | float:
        """Finished share of the stage, by its work if that is known."""
        if self.work is not None and self.total_work:
            return self.work / self.total_work
        return self.done / max(self.total, 1)


@runtime_checkable
class Callback(Protocol):
    """Receives the progress of a call; subclass it and override the methods that you need.

    An exception raised by a method ends the call.
    """

    def on_run_begin(self, run: str) -> None:
        """Handle the beginning of a call: sparsify, distill or search."""

    def on_stage_begin(self, stage: str) -> None:
        """Handle the beginning of a stage."""

    def on_step(self, event: ProgressEvent) -> None:
        """Handle a finished step."""

    def on_stage_end(self, stage: str, seconds: float) -> None:
        """Handle the end of a stage that took `seconds`."""

    def on_result(
        self, run: str, settings: Mapping[str, Any], metrics: Mapping[str, float]
    ) -> None:
        """Handle the result of a call: its options as plain data, and `Record.metrics()`."""

    def on_run_end(self, run: str, seconds: float) -> None:
        """Handle the end of a call that took `seconds`; it is also called after an error."""


def in_notebook() -> bool:
    """Whether this code runs in a kernel, which shows rich output."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


def _is_watched() -> bool:
    """Whether a person is watching: in a notebook or at a terminal."""
    return in_notebook() or (sys.stderr is not None and sys.stderr.isatty())


@dataclass(slots=True)
class Pace:
    """The time that a stage takes for its work; restored steps do not count."""

    seconds: int | float = 0.0
    work: int | float = 0.0
    done: int | float = 0.0
    """The work at the last step."""

    def seconds_left(
        self, seconds: int | float, done: int | float, total: int | float, restored: bool
    ) -> int | float | None:
        """Add a step that took `seconds`, and return the remaining time; None if unknown."""
        if not restored:
            self.seconds, self.work = self.seconds + seconds, self.work + done - self.done
        self.done = done
        return (total - done) * self.seconds / self.work if self.work > 0 else None


PRIOR = 0.05
"""Share of a run whose expected time counts as much as the measured time."""


@dataclass(slots=True)
class RunPace:
    """The finished share of a run and its remaining time, from the expected time of its stages."""

    expected: Mapping[str, tuple[int | float, int | float]]
    """Seconds and operations of every stage, in their order."""
    begin: int | float
    shares: dict[str, int | float] = field(default_factory=dict)
    """Finished share of every stage."""
    finished: dict[str, int | float] = field(default_factory=dict)
    """Operations in finished repetitions of a stage."""
    last: ProgressEvent | None = None

    def advance(self, event: ProgressEvent) -> None:
        """Note a step; all stages before its own are finished."""
        last, self.last = self.last, event
        if last is not None and (event.stage != last.stage or event.done < last.done):
            work = self.finished.get(last.stage, 0.0) + (last.work or 0.0)
            self.finished[last.stage] = work
        for stage in self.expected:
            if stage == event.stage:
                self.shares[stage] = max(self.shares.get(stage, 0.0), self._share(event))
                return
            self.shares[stage] = 1.0

    def _share(self, event: ProgressEvent) -> int | float:
        """Return the finished share of the stage, which may be repeated."""
        _, operations = self.expected[event.stage]
        if event.work is None or operations <= 0:
            return event.share
        return min(1.0, (self.finished.get(event.stage, 0.0) + event.work) / operations)

    def estimate(self, now: int | float) -> tuple[int | float, int | float]:
        """Return the finished share and the remaining seconds.

        The expected times are scaled by the ratio of measured to expected time so far.
        """
        total = sum(seconds for seconds, _ in self.expected.values())
        done = sum(self.expected[stage][0] * share for stage, share in self.shares.items())
        if total <= 0:
            return 0.0, 0.0
        ratio = (now - self.begin + PRIOR * total) / (done + PRIOR * total)
        return min(1.0, done / total), max(0.0, total - done) * ratio


@dataclass(slots=True)
class Progress:
    """Reports stages and steps to callbacks, times the stages, and stores warnings."""

    callbacks: Sequence[Callback] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _paces: dict[str, Pace] = field(default_factory=dict)
    """The pace of the open stages."""
    _mark: float = 0.0
    """Time of the last step, or of the last beginning or end of a stage."""
    _run: str | None = None
    """The open run."""
    _run_pace: RunPace | None = None

    @classmethod
    def of(
        cls, callbacks: Sequence[Callback] | None, display: Callable[[], Callback] | None = None
    ) -> "Progress":
        """Return the progress for the `callbacks` of a public call.

        If they are None and a person is watching, `display` returns the callback.
        """
        if callbacks is None and display is not None and _is_watched():
            callbacks = (display(),)
        if callbacks is not None and not isinstance(callbacks, Sequence):
            raise BadSettingError(
                f"callbacks must be a list of entrim.Callback, got {type(callbacks).__name__}"
            )
        known = tuple(callbacks or ())
        for callback in known:
            if not callable(getattr(callback, "on_step", None)):
                raise BadSettingError(
                    f"a callback must be an entrim.Callback, got {type(callback).__name__}"
                )
        return cls(known)

    @contextmanager
    def run(self, name: str) -> Iterator[None]:
        """Report the beginning and the end of a run; inside another run, do nothing."""
        if self._run is not None:
            yield
            return
        begin, self._run = time.perf_counter(), name
        try:
            for callback in self.callbacks:
                callback.on_run_begin(name)
            yield
        finally:
            self._run = self._run_pace = None
            for callback in self.callbacks:
                callback.on_run_end(name, time.perf_counter() - begin)

    def expect(self, stages: Mapping[str, tuple[int | float, int | float]]) -> None:
        """Estimate the rest of the run from the expected seconds and operations of its stages."""
        self._run_pace = RunPace(stages, time.perf_counter())

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the block to the stage called `name`."""
        for callback in self.callbacks:
            callback.on_stage_begin(name)
        begin = self._mark = time.perf_counter()
        self._paces[name] = Pace()
        try:
            yield
        finally:
            self._mark = time.perf_counter()
            seconds = self._mark - begin
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        for callback in self.callbacks:
            callback.on_stage_end(name, seconds)

    @contextmanager
    def reporting_to(
        self, callbacks: Sequence[Callback] | None, display: Callable[[], Callback] | None = None
    ) -> Iterator[None]:
        """Report to other callbacks in the block."""
        known, self.callbacks = self.callbacks, Progress.of(callbacks, display).callbacks
        try:
            yield
        finally:
            self.callbacks = known

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Report nothing in the block, and store no warnings."""
        callbacks, notes = self.callbacks, self.notes
        self.callbacks, self.notes = (), []
        try:
            yield
        finally:
            self.callbacks, self.notes = callbacks, notes

    def step(
        self,
        stage: str,
        name: str,
        done: int,
        total: int,
        detail: str = "",
        *,
        is_final: bool = False,
        work: tuple[int | float, int | float] | None = None,
        restored: bool = False,
    ) -> None:
        """Report one step; `work` contains the finished and all operations of the stage."""
        detail = f"{detail}, restored" if restored else detail
        now = time.perf_counter()
        seconds, self._mark = now - self._mark, now
        left = None
        if work is not None:
            left = self._paces.setdefault(stage, Pace()).seconds_left(seconds, *work, restored)
        finished, every = (None, None) if work is None else work
        self.report(
            ProgressEvent(
                stage=stage,
                name=name,
                done=done,
                total=total,
                detail=detail,
                work=finished,
                total_work=every,
                seconds_left=left,
                is_final=is_final,
            )
        )

    def steps(
        self, stage: str, works: Mapping[str, int | float], restored: Collection[str]
    ) -> Callable[..., None]:
        """Return a function that reports a finished item of a stage, by its name.

        `works` contains the operations of every item. An item was restored if its key is in
        `restored`.
        """
        total = sum(works.values())
        finished: dict[str, int | float] = {}

        def report(name: str, detail: str, key: str = "", is_final: bool = False) -> None:
            finished[name] = works[name]
            self.step(
                stage,
                name,
                len(finished),
                len(works),
                detail,
                is_final=is_final,
                work=(min(total, sum(finished.values())), total),
                restored=key in restored,
            )

        return report

    def report(self, event: ProgressEvent) -> None:
        """Report an event; the share of the run is added if it is known."""
        if not self.callbacks:
            return
        if self._run_pace is not None and event.stage in self._run_pace.expected:
            self._run_pace.advance(event)
            share, left = self._run_pace.estimate(time.perf_counter())
            event = replace(event, run_share=share, run_seconds_left=left)
        for callback in self.callbacks:
            callback.on_step(event)

    def report_result(
        self, settings: Mapping[str, Any], metrics: Callable[[], Mapping[str, float]]
    ) -> None:
        """Report the result of the open run; `metrics` is called if there are callbacks."""
        for callback in self.callbacks:
            callback.on_result(self._run or "", settings, metrics())

    def warn(self, note: str, category: type[UserWarning]) -> None:
        """Issue a warning, and store it for the record."""
        self.notes.append(note)
        warn(note, category)
