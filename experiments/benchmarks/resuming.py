"""The cost of checkpoints, and the time that they save an interrupted run.

`python -m experiments bench resuming` prunes ResNet-20 to half of its MACs with checkpoints, copies
these at two moments, and lets two other runs continue from the copies. Seconds are those of the
processor, so that other work on the machine has little influence. Needs ENTRIM_ASSETS.
"""

import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import entrim
from entrim.storage.checkpoint import CheckpointStore
from experiments.benchmarks.cifar import BenchmarkModel
from experiments.benchmarks.record import has_weights

NAME = "cifar10_resnet20"
BUDGET = entrim.Budget(macs=0.5)
MOMENTS = (("sensitivity", 1.0), ("reconstruct", 0.5))
"""When checkpoints are copied: a stage, and the fraction of it that is done."""
Seconds = dict[str, float]


@contextmanager
def add_seconds(seconds: Seconds) -> Iterator[None]:
    """Add the processor time and the elapsed time of the block."""
    begin = time.process_time(), time.perf_counter()
    yield
    seconds["processor"] = seconds.get("processor", 0.0) + time.process_time() - begin[0]
    seconds["elapsed"] = seconds.get("elapsed", 0.0) + time.perf_counter() - begin[1]


class TimedStore(CheckpointStore):
    """A checkpoint store that adds up the time of reading and writing, over all instances."""

    seconds: Seconds = {}  # noqa: RUF012

    def get(self, key: str) -> Any:
        with add_seconds(self.seconds):
            return super().get(key)

    def put(self, key: str, unit: Any) -> None:
        with add_seconds(self.seconds):
            super().put(key, unit)


class CopyCheckpoints(entrim.Callback):
    """Copies the folder of checkpoints at the moments above."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.copies: dict[tuple[str, float], Path] = {}

    def on_step(self, event: entrim.ProgressEvent) -> None:
        for number, (stage, share) in enumerate(MOMENTS):
            path = self.folder.with_name(f"copy {number}")
            reached = event.stage == stage and event.done >= share * event.total
            if reached and (stage, share) not in self.copies:
                self.copies[stage, share] = Path(shutil.copytree(self.folder, path))


def run(tested: BenchmarkModel, folder: Path, callbacks: Sequence[entrim.Callback]) -> Seconds:
    """Return the seconds of a run."""
    found: Seconds = {}
    with warnings.catch_warnings(), add_seconds(found):
        warnings.simplefilter("ignore")
        store = TimedStore(folder=folder)
        entrim.sparsify(
            tested.model, tested.images, BUDGET, checkpoint_dir=store, callbacks=callbacks
        )
    return found


def main() -> None:
    """Measure, and print."""
    if not has_weights():
        return
    tested = BenchmarkModel.of(NAME)
    entrim.trace(tested.model, tested.images[:4])  # the first export loads modules
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "checkpoints")
        copier = CopyCheckpoints(folder)
        full = run(tested, folder, [copier])
        cost = {clock: value / full[clock] for clock, value in TimedStore.seconds.items()}
        files = list(folder.glob("*.safetensors"))
        size = sum(file.stat().st_size for file in files)
        print(
            f"full run: {full['processor']:.1f} s, {torch.get_num_threads()} threads; checkpoints "
            f"of {len(files)} units, {size / 1e6:.1f} MB: {cost['processor']:.2%} of these "
            f"seconds, {cost['elapsed']:.2%} of the elapsed time",
            flush=True,
        )
        for (stage, share), path in copier.copies.items():
            rest = run(tested, path, [])["processor"]
            print(
                f"resumed at {share:.0%} of {stage}: {rest:.1f} s, {rest / full['processor']:.2f} "
                "of a full run",
                flush=True,
            )
