"""The operations of every stage of a run, counted from the traced network before they run.

Progress and the estimate of a run use the same counts.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from entrim.calibration.collect import LayerStatistics, collection_passes
from entrim.calibration.consumers import BoundConsumer
from entrim.calibration.gram import MAX_COLUMNS, reduced_columns
from entrim.calibration.work import PassWork, Work
from entrim.graph.channel_graph import Group
from entrim.selection.base import GroupTarget
from entrim.selection.elimination import EliminationSelector
from entrim.selection.entropic import EntropicSelector

RIDGE_SOLVES = 4
"""Factorizations with which the ridge of a layer is selected, and its solution found."""
PENALTY_SOLVES, WIDTH_SOLVES, ELIMINATION_SOLVES = 20, 400, 4
"""Cost of an entropic selection at a penalty, at a width, and of an elimination, in ridge solves
on all columns."""
CALL = 2e6
"""Multiplications that take as long as the calls of one step of a selection."""


@dataclass(frozen=True)
class Workload:
    """The operations of the stages for one network and its images."""

    statistics: LayerStatistics

    @cached_property
    def forward(self) -> PassWork:
        """The operations of a forward pass."""
        return PassWork(self.statistics.forward)

    @property
    def images(self) -> int:
        """The number of fitting images."""
        return self.forward.images

    def passes(self, images: int | float, start: int = 0, stop: int | None = None) -> Work:
        """Return the work of a pass of `images` images through a part of the network."""
        return Work(forward=images * self.forward.operations(start, stop))

    def collect(self, consumers: Iterable[BoundConsumer]) -> list[Work]:
        """Return the work of each pass that collects the Gram matrices of `consumers`."""
        runs = collection_passes(self.statistics.forward, list(consumers))
        return [self._collect(run) for run in runs]

    def _collect(self, run: Sequence[BoundConsumer]) -> Work:
        last = max(place for consumer in run for place in consumer.call_sites)
        return sum(map(self.forward.gram, run), self.passes(self.images, stop=last))

    def select(self, group: Group, target: GroupTarget) -> Work:
        """Return the work of a selection or ranking in one group."""
        return sum((self._select(c, group, target) for c in self._consumers(group)), Work())

    def _select(self, consumer: BoundConsumer, group: Group, target: GroupTarget) -> Work:
        outputs, channels = consumer.outputs / consumer.geometry.groups, group.channels
        n = channels * _columns_per_channel(consumer, group.name)
        double = n * n * outputs
        if self.statistics.keeps_rows(consumer):
            rows = self.forward.rows(consumer)
            reduced = max(channels, min(n, reduced_columns(self.forward.task.memory_limit)))
            double = rows * n * (outputs + 2 * n / channels)
            n = reduced
        if isinstance(target.selector, EntropicSelector):
            solves = PENALTY_SOLVES if target.penalty is not None else WIDTH_SOLVES
            double += solves * (n**3 / 3 + n * n * outputs + CALL)
        elif isinstance(target.selector, EliminationSelector):
            reduced = max(channels, min(n, MAX_COLUMNS))
            double += n * n * reduced / channels * (reduced < n) + channels * CALL
            double += ELIMINATION_SOLVES * (reduced**3 / 3 + reduced**2 * outputs)
        return Work(double=double) * consumer.geometry.groups

    def sensitivity(self, group: Group, widths: Sequence[int], images: int) -> Work:
        """Return the work of measuring the sensitivity of a group at some widths."""
        consumers = self._consumers(group)
        start = min(place for consumer in consumers for place in consumer.call_sites)
        total = self.passes(len(widths) * images, start)
        for width in widths:
            share = width / group.channels
            total += sum((self._solve(c, c.columns * share) for c in consumers), Work())
        return total

    def refit(
        self, consumer: BoundConsumer, share: int | float, solves: int = RIDGE_SOLVES
    ) -> Work:
        """Return the work of refitting one layer that keeps a share of its columns."""
        n, rows = max(1, round(consumer.columns * share)), self.forward.rows(consumer)
        products = rows * (n + 2 * consumer.columns) * consumer.outputs
        total = self.forward.gram(consumer, n) + Work(forward=products)
        return total + self._solve(consumer, n) * solves

    def reconstruct(self, shares: Mapping[str, int | float]) -> dict[str, Work]:
        """Return the work of refitting every layer in order, including the pass up to it.

        `shares` contains the share of kept columns of each layer. The operations behind the last
        layer are not counted.
        """
        found, start = {}, 0
        consumers = sorted(self.statistics.consumers.values(), key=lambda c: c.call_sites[0])
        for consumer in consumers:
            stop, layer = consumer.call_sites[0], consumer.spec.layer
            found[layer] = self.passes(2 * self.images, start, stop)
            start = stop
            if layer in shares:
                found[layer] += self.refit(consumer, shares[layer])
        return found

    def shares(self, widths: Mapping[str, int]) -> dict[str, int | float]:
        """Return the share of kept columns of every layer that consumes groups of `widths`."""
        found = {}
        for layer, consumer in self.statistics.consumers.items():
            every = consumer.columns * consumer.geometry.groups
            lost = 0.0
            for name in consumer.spec.columns_per_channel:
                if name in widths:
                    group = self.statistics.graph.group(name)
                    removed = group.channels - widths[name]
                    lost += removed * _columns_per_channel(consumer, name)
                    found[layer] = 1 - min(1.0, lost / every)
        return found

    @cached_property
    def gram_bytes(self) -> int:
        """The size of all Gram matrices."""
        sizes = map(self.statistics.forward.statistics_bytes, self.statistics.consumers.values())
        return sum(sizes)

    def live_bytes(self) -> int:
        """Return the bytes of one image that are stored in the reconstruction, at most."""
        stops = {c.call_sites[0] for c in self.statistics.consumers.values()}
        return 2 * max(map(self.forward.values, stops), default=0)

    def _consumers(self, group: Group) -> list[BoundConsumer]:
        return self.statistics.consumers_of(group)

    def _solve(self, consumer: BoundConsumer, n: int | float) -> Work:
        """Return the work of one ridge regression on `n` columns."""
        outputs = consumer.outputs / consumer.geometry.groups
        double = n**3 / 3 + 2 * n * n * outputs
        rows = self.forward.rows(consumer)
        if self.statistics.keeps_rows(consumer) and rows < n:
            double = rows * rows * n + rows**3 / 3 + 2 * rows * n * outputs
        return Work(double=consumer.geometry.groups * double)


def _columns_per_channel(consumer: BoundConsumer, group: str) -> int:
    columns = consumer.spec.columns_per_channel[group]
    return math.prod(consumer.geometry.kernel) if columns is None else columns
