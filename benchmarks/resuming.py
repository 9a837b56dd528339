"""What a journal costs a run, and what it saves one that was interrupted.

`python -m benchmarks.resuming` cuts ResNet-20 to half of its MACs four times: whole, whole with a
journal, and twice resumed. Seconds are those of the processor, so that other work on the machine
counts little. Needs ENTRIM_ASSETS.
"""

import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import entrim
from benchmarks.cifar import Subject
from benchmarks.ledger import networks_at_hand
from entrim.journal import Journal

NAME = "cifar10_resnet20"
BUDGET = entrim.Budget(macs=0.5)
MOMENTS = (("sense", 1.0), ("rebuild", 0.5))
"""Where runs are stopped: a stage, and how much of it is done then."""


class StopError(Exception):
    """What interrupts a run."""


class Timed(Journal):
    """A journal that knows what it costs."""

    spent = 0.0

    def find(self, name: str) -> Any:
        return timed(super().find, name)

    def keep(self, name: str, unit: Any) -> Any:
        return timed(super().keep, name, unit)


def timed(work: Callable[..., Any], *args: Any) -> Any:
    """Return what the work does, and count its seconds."""
    begin = time.perf_counter()
    try:
        return work(*args)
    finally:
        Timed.spent += time.perf_counter() - begin


def run(subject: Subject, journal: Journal | None, stop: tuple[str, float] | None = None) -> float:
    """Return the seconds of a run, up to where it is stopped."""

    def on_step(step: entrim.Step) -> None:
        if stop and step.stage == stop[0] and step.done >= stop[1] * step.total:
            raise StopError

    begin = time.process_time()
    with warnings.catch_warnings(), suppress(StopError):
        warnings.simplefilter("ignore")
        entrim.sparsify(
            subject.model, subject.images, budget=BUDGET, journal=journal, on_step=on_step
        )
    return time.process_time() - begin


def main() -> None:
    """Measure, and print."""
    subject = Subject.of(NAME)
    run(subject, None, ("trace", 1.0))  # the first export loads what all need
    whole = run(subject, None)
    print(f"whole: {whole:.1f} s with {torch.get_num_threads()} threads", flush=True)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name, "journal")
        begin = time.perf_counter()
        kept = run(subject, Timed(folder=place))
        share = Timed.spent / (time.perf_counter() - begin)
        size = sum(file.stat().st_size for file in place.iterdir())
        files = len(list(place.iterdir()))
        print(
            f"with a journal: {kept:.1f} s, {kept / whole:.3f} of that; reading and writing "
            f"{files} files of {size / 1e6:.1f} MB took {Timed.spent:.2f} s, {share:.2%} of the "
            "time that passed",
            flush=True,
        )
        shutil.rmtree(place)
        for stop in MOMENTS:
            before = run(subject, Journal(folder=place), stop)
            shutil.copytree(place, Path(name, "copy"))
            rest = run(subject, Journal(folder=Path(name, "copy")))
            shutil.rmtree(Path(name, "copy"))
            print(
                f"stopped at {stop[1]:.0%} of {stop[0]} ({before:.1f} s in this sitting): the rest "
                f"takes {rest:.1f} s, {rest / whole:.2f} of a whole run",
                flush=True,
            )


if __name__ == "__main__":
    if not networks_at_hand():
        sys.exit(0)
    main()
