"""Mirror images: more images to refit the layers of a network that is invariant to mirroring."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

from entrim.calibration.collect import Pass
from entrim.graph.eager import ExampleInputs
from entrim.metrics import mirror


@dataclass(frozen=True, slots=True)
class MirroredBatches(Sequence[ExampleInputs]):
    """All batches, followed by the same batches mirrored; made on demand."""

    batches: Sequence[ExampleInputs]

    @overload
    def __getitem__(self, index: int) -> ExampleInputs: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ExampleInputs]: ...
    def __getitem__(self, index: int | slice) -> "ExampleInputs | Sequence[ExampleInputs]":
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        copy, number = divmod(index % len(self), len(self.batches))
        return mirror(self.batches[number]) if copy else self.batches[number]

    def __len__(self) -> int:
        return 2 * len(self.batches)


def add_mirrored(task: Pass) -> Pass:
    """Return a pass over the images of `task` and their mirror images."""
    return replace(
        task,
        programs=[*task.programs, *task.programs],
        batches=MirroredBatches(task.batches),
        views=2,
    )
