"""Progress of long calls: the events, the callbacks that receive them, and the stage timer."""

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from entrim.errors import BadSettingError


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


@runtime_checkable
class Callback(Protocol):
    """Receives the progress of a call; subclass it and override the methods that you need.

    An exception raised by a method ends the call.
    """

    def on_stage_begin(self, stage: str) -> None:
        """Handle the beginning of a stage."""

    def on_step(self, event: ProgressEvent) -> None:
        """Handle a finished step."""

    def on_stage_end(self, stage: str, seconds: float) -> None:
        """Handle the end of a stage that took `seconds`."""


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

    @classmethod
    def of(cls, callbacks: Sequence[Callback] | None) -> "Progress":
        """Return the progress for the `callbacks` of a public call."""
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
    def reporting_to(self, callbacks: Sequence[Callback] | None) -> Iterator[None]:
        """Report to other callbacks in the block."""
        known, self.callbacks = self.callbacks, Progress.of(callbacks).callbacks
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

    def report(self, event: ProgressEvent) -> None:
        """Report an event."""
        for callback in self.callbacks:
            callback.on_step(event)

    def warn(self, note: str, category: type[UserWarning]) -> None:
        """Issue a warning, and store it for the record."""
        self.notes.append(note)
        warnings.warn(note, category, stacklevel=3)
