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
    seconds_left : float, optional
        Estimated remaining time, without early stopping.
    is_final : bool, default False
        Whether the step determines the result for a group of channels or a layer.
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
class Progress:
    """Reports stages and steps to callbacks, times the stages, and stores warnings."""

    callbacks: Sequence[Callback] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

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
        """Report nothing in the block, and store no warnings."""
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
        """Issue a warning, and store it for the record."""
        self.notes.append(note)
        warnings.warn(note, category, stacklevel=3)
