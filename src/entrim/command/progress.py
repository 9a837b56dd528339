"""How far a run is, on stderr: one line that is rewritten, or now and then a line in a log."""

import sys
import time
from dataclasses import dataclass, field
from typing import TextIO

from entrim.records import Step

_BAR = 24


@dataclass(slots=True)
class Progress:
    """Shows steps; call it with each."""

    stream: TextIO = field(default_factory=lambda: sys.stderr)
    every: float = 30.0
    """Seconds between two lines, where nobody looks at a terminal."""
    _last: float = -1e9

    def __call__(self, step: Step) -> None:
        """Show `step`, unless another was shown a moment ago."""
        live = self.stream.isatty()
        now = time.monotonic()
        if now - self._last < (0.1 if live else self.every) and step.done < step.total:
            return
        self._last = now
        end = "" if live and step.done < step.total else "\n"
        self.stream.write(("\r\033[K" if live else "") + line(step) + end)
        self.stream.flush()


def line(step: Step) -> str:
    """Return one step as a line.

    >>> line(Step(stage="train", name="epoch 2", done=3, total=4, seconds_left=90.0))
    'train [##################......] 3/4 epoch 2, 1:30 left'
    """
    full = _BAR * step.done // max(step.total, 1)
    text = f"{step.stage} [{'#' * full}{'.' * (_BAR - full)}] {step.done}/{step.total} {step.name}"
    if step.detail:
        text += f", {step.detail}"
    if step.seconds_left is not None:
        minutes, seconds = divmod(round(step.seconds_left), 60)
        text += f", {minutes}:{seconds:02} left"
    return text
