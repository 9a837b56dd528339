"""One run of the pipeline: what is known so far, and whom to tell."""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import nn

from entrim.calibration.data import Calibration
from entrim.reconstruction.layer import Fitted
from entrim.records import Step
from entrim.settings import Settings
from entrim.storage.checkpoint import Journal


@dataclass(slots=True)
class Run:
    """What is known so far."""

    model: nn.Module
    settings: Settings
    images: Calibration
    seed: int | None
    """Of whatever is drawn."""
    on_step: Callable[[Step], None]
    journal: Journal = field(default_factory=Journal)
    """Where finished units of work are kept."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By stage."""
    notes: list[str] = field(default_factory=list)
    fitted: list[Fitted] = field(default_factory=list)
    sown: int | None = None
    """The seed of the generator that `seed` was drawn from, where it had not been drawn from."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the seconds of the block to the stage called `name`."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin

    def tell(
        self, stage: str, name: str, done: int, total: int, detail: str = "", settled: bool = False
    ) -> None:
        """Report one step to whoever watches."""
        self.on_step(
            Step(stage=stage, name=name, done=done, total=total, detail=detail, settled=settled)
        )

    def warn(self, note: str, category: type[UserWarning]) -> None:
        """Warn the user, and keep the sentence for the record."""
        self.notes.append(note)
        warnings.warn(note, category, stacklevel=2)
