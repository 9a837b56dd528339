"""The operations of every stage of a run, counted from the traced network before they run.

Progress and the estimate of a run use the same counts.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from torch import Tensor, fx

from entrim.calibration.collect import LayerStatistics, Pass, collection_passes
from entrim.calibration.consumers import BoundConsumer
from entrim.calibration.executor import Program, value_bytes
from entrim.calibration.patch_gram import MAX_COLUMNS, reduced_columns
from entrim.calibration.tensor_store import tensor_bytes
from entrim.config import Budget, Calibration, Target
from entrim.graph.channel_graph import Group, ResidualBlock
from entrim.graph.tracer import arguments_of
from entrim.selection.base import GroupTarget
from entrim.selection.elimination import EliminationSelector
from entrim.selection.entropic import EntropicSelector

ELEMENT, WINDOW = 10, 100
"""Multiplications that take as long as one element of another operation, and as one element in
the window of a pooling, on a CPU."""
DOUBLE = 2
"""Multiplications in single precision that take as long as one in double precision."""
_VIEWS = ("view", "reshape", "flatten", "permute", "transpose", "getitem", "slice", "select")
"""Operations that usually copy nothing."""
RIDGE_SOLVES = 4
"""Factorizations with which the ridge of a layer is selected, and its solution found."""
PENALTY_SOLVES, WIDTH_SOLVES, ELIMINATION_SOLVES = 20, 400, 4
"""Cost of an entropic selection at a penalty, at a width, and of an elimination, in ridge solves
on all columns."""
CALL = 2e6
"""Multiplications that take as long as the calls of one step of a selection."""
ERROR_IMAGES = 256
"""Number of images on which the error of the result is measured."""
SENSITIVITY_PASSES, MIN_SENSITIVITY_IMAGES = 4, 50
"""The automatic number of images for the sensitivity: forward passes in total, and its minimum."""
NARROW, NARROW_IMAGES = 0.3, 0.5
"""Share of the channels below which a group is narrow, and share of the images for the sensitivity
of narrow groups: their divergence is large."""
REPEATS = 15
"""Number of runs whose median is the latency of a point."""
LATENCY_POINTS, ERROR_POINTS = 10, 8
"""Points that are usually evaluated for a latency, and for an error or agreement."""
VERIFYING_PASSES, MEASURED_PASSES = 6, 24
"""Passes of the example inputs in a verification, in double precision, and in the measurement of
a latency."""
USUAL_SHARE = 0.6
"""Share of the channels that is kept if the target does not determine it."""
NETWORK_COPIES, SOLVE_COPIES = 4, 4
"""Copies of the network, in part in double precision, and of the largest Gram matrix in a solve."""


@dataclass(frozen=True, slots=True)
class Work:
    """Multiplications of a stage, by what determines their speed."""

    forward: int | float = 0.0
    """In operations of the network; an element of another operation counts `ELEMENT`."""
    double: int | float = 0.0
    """In products and factorizations of matrices in double precision."""

    def __add__(self, other: "Work") -> "Work":
        return Work(self.forward + other.forward, self.double + other.double)

    def __mul__(self, count: int | float) -> "Work":
        return Work(self.forward * count, self.double * count)

    @property
    def total(self) -> int | float:
        """All operations in one unit, for shares of a stage."""
        return self.forward + DOUBLE * self.double


@dataclass(frozen=True)
class PassWork:
    """The operations of one forward pass, by position in the program."""

    task: Pass

    @property
    def program(self) -> Program:
        """The program of the first batch; others have the same operations per image."""
        return self.task.programs[0]

    @cached_property
    def images(self) -> int:
        """The number of images."""
        return sum(self.task.batch_sizes)

    @cached_property
    def _ends(self) -> list[int | float]:
        """Operations of one image before each position."""
        images = self.task.batch_sizes[0]
        each = [_node_operations(node) / images for node in self.program.nodes]
        return list(accumulate(each, initial=0.0))

    def operations(self, start: int, stop: int | None = None) -> int | float:
        """Return the operations of one image from position `start` up to `stop`."""
        return self._ends[len(self.program.nodes) if stop is None else stop] - self._ends[start]

    def values(self, stop: int) -> int:
        """Return the bytes of one image in values before `stop` that are used from there on."""
        return self.program.live_bytes(stop) // self.task.batch_sizes[0]

    @cached_property
    def largest_value(self) -> int:
        """The bytes of the largest value of one image."""
        named = self.program.names
        sizes = [value_bytes(node) for node in self.program.nodes if node not in named]
        return max(sizes, default=0) // self.task.batch_sizes[0]

    def rows(self, reader: BoundConsumer) -> int:
        """Return the number of rows of a layer."""
        return self.task.n_rows(reader, reader.columns)

    def gram(self, reader: BoundConsumer, columns: int | None = None) -> Work:
        """Return the cost of the Gram matrices of a layer with this number of columns."""
        n = reader.columns if columns is None else columns
        geometry, total = reader.geometry, 0.0
        if self.task.keeps_rows(reader, n):
            return Work(forward=ELEMENT * self.task.n_rows(reader, n) * n * geometry.groups)
        for used, every in self.task.positions_per_image(reader, n):
            products = n * n / 2
            if used == every and math.prod(geometry.kernel) > 1 and set(geometry.stride) == {1}:
                shifts = math.prod(2 * size - 1 for size in geometry.kernel)
                products = (n / math.prod(geometry.kernel)) ** 2 * (shifts + 1) / 2
            total += used * products * geometry.groups
        return Work(double=total * self.images)


@dataclass(frozen=True)
class Workload:
    """The operations of the stages for one network, its images, and the options of a run."""

    statistics: LayerStatistics
    calibration: Calibration
    refits: bool
    """Whether layers are refitted."""
    is_sequential: bool
    """Whether layers are refitted in order."""
    relaxation: int
    """Rounds of relaxed refits in sequential order."""
    example_images: int
    """Number of images in the example inputs."""
    holdout_images: int
    """Number of hold-out images."""
    views: int
    """Number of views of each image in a sequential reconstruction."""

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
        total = sum(map(self.forward.gram, run), self.passes(self.images, stop=last))
        return total * self.statistics.collection.views

    def selection(
        self, groups: Iterable[Group], targets: Mapping[str, GroupTarget]
    ) -> dict[str, Work]:
        """Return the work of a selection or ranking in each of `groups`."""
        return {group.name: self.select(group, targets[group.name]) for group in groups}

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

    def sensitivity_images(self, groups: int) -> tuple[int, float]:
        """Return how many images measure the sensitivity, and which share of them narrow groups."""
        if self.calibration.sensitivity_images is not None:
            return self.calibration.sensitivity_images, 1.0
        fractions = (0.0, *self.calibration.sensitivity_widths)
        trials = sum(NARROW_IMAGES if fraction < NARROW else 1 for fraction in fractions)
        passes = max(1, groups) * trials / 2  # half of the network is behind a group
        images = round(SENSITIVITY_PASSES * (self.images + self.holdout_images) / passes)
        stored = self.statistics.activation_capacity // max(1, self.live_bytes(streams=1))
        return max(1, min(max(MIN_SENSITIVITY_IMAGES, images), int(stored))), NARROW_IMAGES

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

    def removal(self, blocks: Iterable[ResidualBlock]) -> dict[str, Work]:
        """Return the work of a reconstruction without each of `blocks`."""
        full = {group.name: group.channels for group in self.statistics.graph.groups}
        every = sum(self.reconstruction_of(full).values(), Work())
        return {block.name: every for block in blocks}

    def reconstruction_of(self, widths: Mapping[str, int]) -> dict[str, Work]:
        """Return the work of each layer in the order of the reconstruction at `widths`."""
        shares, consumers = self.shares(widths), self.statistics.consumers
        if self.is_sequential:
            return self.reconstruct(shares)
        return {
            layer: self.refit(consumers[layer], share, 1) if self.refits else Work()
            for layer, share in shares.items()
        }

    def reconstruct(self, shares: Mapping[str, int | float]) -> dict[str, Work]:
        """Return the work of refitting every layer in order, including the pass up to it.

        `shares` contains the share of kept columns of each layer. The operations behind the last
        layer are not counted.
        """
        found, start = {}, 0
        consumers = sorted(self.statistics.consumers.values(), key=lambda c: c.call_sites[0])
        for consumer in consumers:
            stop, layer = consumer.call_sites[0], consumer.spec.layer
            found[layer] = self.passes(2 * self.images * self.views, start, stop)
            start = stop
            if layer in shares:
                found[layer] += self.refit(consumer, shares[layer])
                found[layer] += self._relaxation(consumer, shares[layer])
        return found

    def _relaxation(self, consumer: BoundConsumer, share: int | float) -> Work:
        """Return the work of the relaxed refits of one layer, as if it were in front of a ReLU."""
        n, rows = max(1, round(consumer.columns * share)), self.forward.rows(consumer)
        each = Work(forward=rows * consumer.outputs * (2 * n + ELEMENT))
        return each * self.relaxation + self._solve(consumer, n)

    def shares(self, widths: Mapping[str, int]) -> dict[str, int | float]:
        """Return the share of kept columns of every layer that consumes groups of `widths`."""
        found = {}
        channels = {group.name: group.channels for group in self.statistics.graph.groups}
        for layer, consumer in self.statistics.consumers.items():
            every = consumer.columns * consumer.geometry.groups
            lost = 0.0
            for name in consumer.spec.columns_per_channel:
                if name in widths:
                    removed = channels[name] - widths[name]
                    lost += removed * _columns_per_channel(consumer, name)
                    found[layer] = 1 - min(1.0, lost / every)
        return found

    def measurement(self) -> dict[str, Work]:
        """Return the work of measuring the result, by measurement."""
        size = self.passes(self.example_images) * MEASURED_PASSES
        return {
            "original size": size,
            "pruned size": size,
            "fitting images": self.passes(2 * min(ERROR_IMAGES, self.images)),
            "hold-out images": self.passes(2 * self.holdout_images),
        }

    def stages(
        self, target: Target | None, groups: Sequence[Group], targets: Mapping[str, GroupTarget]
    ) -> dict[str, Work]:
        """Return the expected work of every stage behind the trace."""
        verify = self.passes(self.example_images) * (VERIFYING_PASSES * DOUBLE)
        missing = self.statistics.missing(self.statistics.consumers_of(*groups))
        works = {"collect": sum(self.collect(missing), Work())}
        works["select"] = sum(self.selection(groups, targets).values(), Work())
        widths = _expected_widths(target, groups, targets)
        reconstruct = sum(self.reconstruction_of(widths).values(), Work())
        if target is None or isinstance(target, Budget):
            works["select"] += verify
            works["sensitivity"] = self._sensitivities(target, groups)
            held = self.passes(2 * self.holdout_images)
            works["allocate"] = (reconstruct + held) * _evaluated_points(target)
            if target is not None and target.latency is not None:
                runs = self.passes(self.example_images) * (REPEATS + 4)
                works["allocate"] += (runs + verify) * LATENCY_POINTS
        works["select"] += (works["collect"] + works["select"]) * self.calibration.n_bootstrap
        works["reconstruct"] = reconstruct
        works["prune"] = verify
        works["measure"] = sum(self.measurement().values(), Work())
        return works

    def _sensitivities(self, budget: Budget | None, groups: Sequence[Group]) -> Work:
        """Return the work of measuring the sensitivity to all groups and removable blocks."""
        images = min(self.sensitivity_images(len(groups))[0], self.images)
        total = self.passes(2 * images)
        for group in groups:
            fractions = (*self.calibration.sensitivity_widths, 0.0)
            measured = [round(fraction * group.channels) for fraction in fractions]
            total += self.sensitivity(group, measured, images)
        if budget is not None and budget.removes_blocks:
            blocks = self.statistics.graph.blocks_within([group.name for group in groups])
            total += sum(self.removal(blocks).values(), Work())
        return total

    def storage(self, images: int, on_disk: int) -> tuple[int, int]:
        """Return the expected bytes in memory and on disk.

        The images of a loader take `images` bytes, `on_disk` of them on disk already.
        """
        limit, task = self.calibration.stored_memory, self.forward.task
        network = sum(tensor_bytes(tensor) for tensor in task.tensors.values())
        live = self.live_bytes(streams=2) * self.images * self.views
        live = int(min(live, max(0, self.statistics.activation_capacity)))
        stored = images + self.statistics.gram_bytes + live
        batch = max(task.batch_sizes) * self.forward.largest_value
        consumers = self.statistics.consumers.values()
        widest = max(map(task.statistics_bytes, consumers), default=0)
        memory = min(limit, stored) + NETWORK_COPIES * network + 2 * batch + SOLVE_COPIES * widest
        return memory, max(on_disk, stored - limit)

    def live_bytes(self, streams: int) -> int:
        """Return the bytes of one image that are stored between layers, at most.

        There are two `streams` in a reconstruction, and one in the analysis of the sensitivity.
        """
        stops = {c.call_sites[0] for c in self.statistics.consumers.values()}
        return streams * max(map(self.forward.values, stops), default=0)

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


def _expected_widths(
    target: Target | None, groups: Sequence[Group], targets: Mapping[str, GroupTarget]
) -> dict[str, int]:
    """Return the width of every group: that of the target, or a usual one."""
    share = USUAL_SHARE
    if isinstance(target, Budget):
        fractions = [value for value in target.sizes.values() if isinstance(value, float)]
        share = math.sqrt(min(fractions)) if fractions else share
    widths = {}
    for group in groups:
        width = targets[group.name].width
        widths[group.name] = max(1, round(share * group.channels)) if width is None else width
    return widths


def _evaluated_points(target: Budget | None) -> int:
    """Return the number of networks that are usually reconstructed to select the widths."""
    return ERROR_POINTS if target is not None and target.needs_holdout else 0


def _columns_per_channel(consumer: BoundConsumer, group: str) -> int:
    columns = consumer.spec.columns_per_channel[group]
    return math.prod(consumer.geometry.kernel) if columns is None else columns


def _node_operations(node: fx.Node) -> int | float:
    """Return the number of operations of one node, for its whole batch."""
    out, kind = node.meta.get("val"), str(node.target)
    values = out if isinstance(out, Sequence) else [out]
    elements = sum(value.numel() for value in values if isinstance(value, Tensor))
    if node.op != "call_function" or any(f".{view}" in kind for view in _VIEWS):
        return 0.0
    call = arguments_of(node)
    weight, source = call.get("weight"), call.get("input")
    if isinstance(weight, fx.Node) and isinstance(source, fx.Node) and "norm" not in kind:
        shape, moved = weight.meta["val"].shape, elements
        if "transpose" in kind:
            moved = source.meta["val"].numel()
        return moved * math.prod(shape[1:]) + ELEMENT * elements
    if "pool" in kind:
        window = call.get("kernel_size", 1)
        area = math.prod(window) if isinstance(window, Sequence) else int(str(window)) ** 2
        return WINDOW * elements * area
    return ELEMENT * elements + _inner_products(node, elements)


def _inner_products(node: fx.Node, elements: int) -> int | float:
    """Return the multiplications of a matrix product or an attention without weights."""
    sources = [n.meta.get("val") for n in node.all_input_nodes]
    shapes = [value.shape for value in sources if isinstance(value, Tensor) and value.dim() > 1]
    if any(name in str(node.target) for name in ("matmul", ".mm", "bmm")) and shapes:
        return float(elements * shapes[0][-1])
    if "attention" in str(node.target) and len(shapes) > 1:
        return 2.0 * elements * shapes[1][-2]
    return 0.0
