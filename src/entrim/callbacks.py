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
        What was finished: a batch, a group, a layer, a trial, an epoch.
    done : int
        Finished steps of the stage.
    total : int
        All steps of the stage.
    detail : str
        One phrase about the result of the step.
    loss : float, optional
        Of the batch, in a training.
    seconds_left : float, optional
        Estimated, without early stopping.
    is_final : bool
        Whether the step decides a group of channels or a layer: a line of the result.
    """

    stage: str
    name: str
    done: int
    total: int
    detail: str = ""
    loss: float | None = None
    seconds_left: float | None = None
    is_final: bool = False


@runtime_checkable
class Callback(Protocol):
    """Receives the progress of a call; subclass it and override what you need.

    Exceptions that a method raises end the call.
    """

    def on_stage_begin(self, stage: str) -> None:
        """Handle the beginning of a stage."""

    def on_step(self, event: ProgressEvent) -> None:
        """Handle a finished step."""

    def on_stage_end(self, stage: str, seconds: float) -> None:
        """Handle the end of a stage that took this long."""


@dataclass(slots=True)
class Progress:
    """Reports stages and steps to callbacks, adds up seconds by stage and keeps the warnings."""

    callbacks: Sequence[Callback] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, callbacks: Sequence[Callback] | None) -> "Progress":
        """Return the progress for the `callbacks` of a public call."""
        if callbacks is not None and not isinstance(callbacks, Sequence):
            raise BadSettingError(
                f"callbacks is a {type(callbacks).__name__}: pass a list of entrim.Callback"
            )
        known = tuple(callbacks or ())
        for callback in known:
            if not callable(getattr(callback, "on_step", None)):
                raise BadSettingError(
                    f"a callback is a {type(callback).__name__}: subclass entrim.Callback"
                )
        return cls(known)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time the block as part of the stage called `name`."""
        for callback in self.callbacks:
            callback.on_stage_begin(name)
        begin = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - begin
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
        """Report nothing in the block, and keep no warnings."""
        callbacks, notes = self.callbacks, self.notes
        self.callbacks, self.notes = (), []
        try:
            yield
        finally:
            self.callbacks, self.notes = callbacks, notes

    def step(
        self, stage: str, name: str, done: int, total: int, detail: str = "", is_final: bool = False
    ) -> None:
        """Report one step."""
        self.report(
            ProgressEvent(
                stage=stage, name=name, done=done, total=total, detail=detail, is_final=is_final
            )
        )

    def report(self, event: ProgressEvent) -> None:
        """Report an event."""
        for callback in self.callbacks:
            callback.on_step(event)

    def warn(self, note: str, category: type[UserWarning]) -> None:
        """Warn the user, and keep the sentence for the record."""
        self.notes.append(note)
        warnings.warn(note, category, stacklevel=3)
