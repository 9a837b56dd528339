"""What a journal costs a run, and what it saves one that was interrupted.

`python -m experiments bench resuming` cuts ResNet-20 to half of its MACs with a journal, copies
that at two moments, and lets two other runs go on from the copies. Seconds are those of the
processor, so that other work on the machine counts little. Needs ENTRIM_ASSETS.
"""

import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

import entrim
from entrim.storage.checkpoint import CheckpointStore, CheckpointUnit
from experiments.benchmarks.cifar import Subject
from experiments.benchmarks.ledger import networks_at_hand

NAME = "cifar10_resnet20"
BUDGET = entrim.Budget(macs=0.5)
MOMENTS = (("sense", 1.0), ("rebuild", 0.5))
"""When the journal is copied: a stage, and how much of it is done then."""
Seconds = dict[str, float]


@contextmanager
def counting(seconds: Seconds) -> Iterator[None]:
    """Add what the block takes: of the processor, and on the clock."""
    begin = time.process_time(), time.perf_counter()
    yield
    seconds["processor"] = seconds.get("processor", 0.0) + time.process_time() - begin[0]
    seconds["clock"] = seconds.get("clock", 0.0) + time.perf_counter() - begin[1]


class Timed(CheckpointStore):
    """A journal that knows what all of its kind have cost."""

    seconds: Seconds = {}  # noqa: RUF012

    def find(self, name: str) -> CheckpointUnit | None:
        with counting(self.seconds):
            return super().get(name)

    def keep(self, name: str, unit: CheckpointUnit) -> None:
        with counting(self.seconds):
            super().put(name, unit)


def run(subject: Subject, folder: Path, on_step: Callable[[entrim.ProgressEvent], None]) -> Seconds:
    """Return the seconds of a run."""
    found: Seconds = {}
    with warnings.catch_warnings(), counting(found):
        warnings.simplefilter("ignore")
        journal = Timed(folder=folder)
        entrim.sparsify(
            subject.model, subject.images, budget=BUDGET, journal=journal, on_step=on_step
        )
    return found


def main() -> None:
    """Measure, and print."""
    if not networks_at_hand():
        return
    subject = Subject.of(NAME)
    entrim.trace(subject.model, subject.images[:4])  # the first export loads what all need
    with tempfile.TemporaryDirectory() as name:
        journal, copies = Path(name, "journal"), dict.fromkeys(MOMENTS, Path())

        def copy(step: entrim.ProgressEvent) -> None:
            for number, (stage, share) in enumerate(MOMENTS):
                place = Path(name, f"copy {number}")
                if step.stage == stage and step.done >= share * step.total and not place.exists():
                    copies[(stage, share)] = Path(shutil.copytree(journal, place))

        whole = run(subject, journal, copy)
        cost = {kind: value / whole[kind] for kind, value in Timed.seconds.items()}
        files = list(journal.glob("*.safetensors"))
        size = sum(file.stat().st_size for file in files)
        print(
            f"whole: {whole['processor']:.1f} s, {torch.get_num_threads()} threads; its journal of "
            f"{len(files)} units, {size / 1e6:.1f} MB: {cost['processor']:.2%} of these seconds, "
            f"{cost['clock']:.2%} on the clock",
            flush=True,
        )
        for (stage, share), place in copies.items():
            rest = run(subject, place, lambda _: None)["processor"]
            print(
                f"resumed at {share:.0%} of {stage}: {rest:.1f} s, {rest / whole['processor']:.2f} "
                "of a whole run",
                flush=True,
            )
