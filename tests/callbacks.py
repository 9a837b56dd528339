"""Callbacks for the tests: one that records the progress, and one that ends a call."""

from collections.abc import Callable

import entrim


class Recorder(entrim.Callback):
    """Records every event in `events`, and every method call in `calls`."""

    def __init__(self) -> None:
        self.events: list[entrim.ProgressEvent] = []
        self.calls: list[tuple[str, str]] = []
        self.seconds: dict[str, float] = {}

    def on_stage_begin(self, stage: str) -> None:
        self.calls.append(("begin", stage))

    def on_step(self, event: entrim.ProgressEvent) -> None:
        self.calls.append(("step", event.stage))
        self.events.append(event)

    def on_stage_end(self, stage: str, seconds: float) -> None:
        self.calls.append(("end", stage))
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    def in_stage(self, stage: str) -> list[entrim.ProgressEvent]:
        """Return the events of one stage."""
        return [event for event in self.events if event.stage == stage]

    @property
    def stages(self) -> set[str]:
        """The stages that reported a step."""
        return {event.stage for event in self.events}


class StopError(Exception):
    """Raised by `StopAt`."""


class StopAt(entrim.Callback):
    """Raises `StopError` at the first event for which `condition` holds."""

    def __init__(self, condition: Callable[[entrim.ProgressEvent], bool]) -> None:
        self.condition = condition

    def on_step(self, event: entrim.ProgressEvent) -> None:
        if self.condition(event):
            raise StopError
