"""The expected time, memory and disk space of a run, from its operations and measured rates."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from entrim.calibration.collect import Pass
from entrim.calibration.executor import advance
from entrim.config import Target
from entrim.graph.channel_graph import Group
from entrim.planning.workload import PassWork, Work, Workload
from entrim.selection.base import GroupTarget

PRODUCT = 512
"""Rows and columns of the matrices whose product is timed."""
SLOW = 1.0
"""Seconds of a batch above which it is not repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEstimate:
    """The expected cost of one stage.

    Attributes
    ----------
    stage : str
        The name of the stage, as in progress events and `record.seconds`.
    seconds : int | float
        Expected time.
    passes : int | float
        The same time in forward passes of all fitting images through the original network.
    """

    stage: str
    seconds: int | float
    passes: int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEstimate:
    """The expected cost of a run, as `Pruner.plan` returns it.

    Attributes
    ----------
    images : int
        Number of fitting images.
    groups : int
        Number of groups of channels that are considered.
    pass_seconds : int | float
        Expected time of one forward pass of the fitting images.
    stages : tuple of StageEstimate
        The stages in their order.
    memory : int
        Bytes of the network, stored data, activations of one batch and matrices of one layer. The
        Python process itself and the images of a tensor are not included.
    disk : int
        Bytes of temporary files.
    """

    images: int
    groups: int
    pass_seconds: int | float
    stages: tuple[StageEstimate, ...]
    memory: int
    disk: int

    @classmethod
    def of(
        cls,
        workload: Workload,
        target: Target | None,
        groups: Sequence[Group],
        targets: Mapping[str, GroupTarget],
        *,
        trace_seconds: float,
        stored: tuple[int, int],
    ) -> "RunEstimate":
        """Return the estimate of pruning `groups` to `target`. Cost: one batch.

        The images take the bytes `stored` in memory and on disk.
        """
        rates = Rates.measure(workload.statistics.forward)
        works = workload.stages(target, groups, targets)
        one = rates.seconds(workload.passes(workload.images))
        memory, disk = workload.storage(*stored)
        return cls(
            images=workload.images,
            groups=len(groups),
            pass_seconds=one,
            stages=stage_estimates(works, rates, one, {"trace": trace_seconds}),
            memory=memory,
            disk=disk,
        )

    @property
    def seconds(self) -> int | float:
        """Expected time of the run."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def passes(self) -> int | float:
        """The same time in forward passes of all fitting images."""
        return sum(stage.passes for stage in self.stages)

    def to_dict(self) -> dict[str, Any]:
        """Return the estimate as plain data."""
        return {**asdict(self), "seconds": self.seconds, "passes": self.passes}

    def rows(self) -> list[tuple[str, str, str]]:
        """Return a table of the stages with the total, as text; the first row is the head."""
        total = StageEstimate(stage="total", seconds=self.seconds, passes=self.passes)
        stages = [(s.stage, f"{s.seconds:.1f}", f"{s.passes:.1f}") for s in (*self.stages, total)]
        return [("stage", "seconds", "passes"), *stages]

    def summary(self) -> str:
        """Return everything except for the stages in two lines."""
        return (
            f"one pass of {self.images} images: {self.pass_seconds:.1f} s; {self.groups} groups\n"
            f"memory: {self.memory / 2**30:.2f} GiB; disk: {self.disk / 2**30:.2f} GiB"
        )

    def __str__(self) -> str:
        table = [f"{name:<12}{seconds:>9}{passes:>9}" for name, seconds, passes in self.rows()]
        return "\n".join([*table, self.summary()])


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds per operation, measured on this machine."""

    forward: int | float
    double: int | float

    @classmethod
    def measure(cls, task: Pass) -> "Rates":
        """Time one batch of the network and one product of matrices.

        The batch runs twice unless it is slow, because a first run initializes the kernels.
        """
        batch = PassWork(task).operations(0) * task.batch_sizes[0]
        seconds = _batch_seconds(task)
        if seconds < SLOW:
            seconds = min(seconds, _batch_seconds(task))
        product = min(_product_seconds(), _product_seconds())
        return cls(seconds / max(batch, 1.0), product / PRODUCT**3)

    def seconds(self, work: Work) -> int | float:
        """Return the expected time of `work`."""
        return work.forward * self.forward + work.double * self.double


def expected_stages(
    workload: Workload,
    target: Target | None,
    groups: Sequence[Group],
    targets: Mapping[str, GroupTarget],
    finished: Collection[str],
) -> dict[str, tuple[int | float, int | float]]:
    """Return seconds and operations of every stage; those in `finished` are not repeated."""
    works = workload.stages(target, groups, targets)
    works |= dict.fromkeys(finished, Work())
    rates = Rates.measure(workload.statistics.forward)
    return {stage: (rates.seconds(work), work.total) for stage, work in works.items()}


def stage_estimates(
    works: Mapping[str, Work],
    rates: Rates,
    pass_seconds: int | float,
    known: Mapping[str, int | float],
) -> tuple[StageEstimate, ...]:
    """Return the estimate of every stage; `known` contains stages that have been timed."""
    seconds = {**known, **{stage: rates.seconds(work) for stage, work in works.items()}}
    return tuple(
        StageEstimate(stage=stage, seconds=value, passes=value / pass_seconds)
        for stage, value in seconds.items()
    )


def _batch_seconds(task: Pass) -> int | float:
    """Return the seconds of the first batch."""
    begin = time.perf_counter()
    with task.execution() as execution:
        first = next(execution.by_batch())
        advance([first], 0, len(first.program.nodes))
    return time.perf_counter() - begin


def _product_seconds() -> int | float:
    """Return the seconds of a product of two matrices in double precision."""
    square = torch.ones(PRODUCT, PRODUCT, dtype=torch.float64)
    begin = time.perf_counter()
    torch.mm(square, square)
    return time.perf_counter() - begin
