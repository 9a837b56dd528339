"""A callback of your own: print what is decided, time the stages, and stop at a deadline.

Subclass `entrim.Callback` and override what you need. An exception that a method raises ends the
call; with `checkpoint_dir`, the same call continues later.
"""

import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import entrim


class StageLog(entrim.Callback):
    """Prints every decision, and adds up the seconds of each stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def on_step(self, event: entrim.ProgressEvent) -> None:
        """Print the steps that decide on a group or a layer."""
        if event.is_final or event.stage == "resume":
            print(f"{event.stage} {event.done}/{event.total}: {event.name}, {event.detail}")

    def on_stage_end(self, stage: str, seconds: float) -> None:
        """Add the time; some stages begin more than once."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds


class DeadlineError(Exception):
    """The time is up."""


class Deadline(entrim.Callback):
    """Ends the call at the first finished step after `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def on_step(self, event: entrim.ProgressEvent) -> None:
        """Raise when the time is up."""
        if event.stage == "reconstruct" and time.monotonic() > self.end:
            raise DeadlineError(f"stopped after {event.name}")


def main() -> None:
    """Stop a run at a deadline, then continue it."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10)),
    ).eval()
    images = torch.randn(200, 3, 12, 12)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "unfinished")
        try:
            entrim.sparsify(
                model,
                images,
                entrim.Budget(macs=0.3),
                callbacks=[Deadline(0.0)],
                checkpoint_dir=folder,
            )
        except DeadlineError as error:
            print(error)
        log = StageLog()
        result = entrim.sparsify(
            model, images, entrim.Budget(macs=0.3), callbacks=[log], checkpoint_dir=folder
        )
    print(f"{result.record.before.macs:,} -> {result.record.after.macs:,} MACs")
    print("stages:", ", ".join(log.seconds))


if __name__ == "__main__":
    main()
