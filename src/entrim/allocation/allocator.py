"""Allocate widths under a budget: rank channels, measure sensitivities, select a point of the path.

Limits of size and cost follow from the path alone. For limits of latency, error or agreement, the
networks at points of the path are reconstructed and measured.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from typing import TypeVar

from torch import Tensor, nn

from entrim.allocation.allocate import (
    AllocationPoint,
    AllocationProblem,
    RemovableBlock,
    SelectedPoint,
    SensitivityCurve,
    select_point,
)
from entrim.allocation.costs import Costs
from entrim.allocation.latency import OperationTimes, with_latency
from entrim.allocation.sensitivity import (
    OutputChange,
    SensitivityAnalyzer,
    interpolate,
    measured_widths,
)
from entrim.calibration.collect import LayerStatistics
from entrim.calibration.consumers import BoundConsumer
from entrim.calibration.data import CalibrationData
from entrim.callbacks import Progress
from entrim.config import SELECTION_HOLDOUT, Budget, Calibration
from entrim.distributed.world import World
from entrim.errors import BadSettingError, CalibrationWarning, RolledBackWarning
from entrim.graph.channel_graph import ChannelGraph, Group, ResidualBlock
from entrim.graph.eager import ExampleInputs
from entrim.metrics import AgreementBound, Comparison, Kind, compare, min_images
from entrim.planning.workload import ERROR_POINTS, LATENCY_POINTS, REPEATS, Work, Workload
from entrim.reconstruction.layer import DEFAULT_RIDGE
from entrim.selection.base import (
    ChannelRanking,
    ChannelSelection,
    GroupTarget,
    RankingSelector,
    Selector,
    group_statistics,
    name_of,
    rank_channels,
)
from entrim.selection.elimination import EliminationSelector
from entrim.selection.entropic import select_channels
from entrim.storage.checkpoint import CheckpointStore
from entrim.surgery.measure import measure
from entrim.surgery.plan import Plan
from entrim.surgery.prune import compatible_groups, prune

T = TypeVar("T")
TIMED_SHARE = 0.25
"""Share of the channels in the narrow network that is timed for the estimate of the latency."""
HALF_IMAGES = 50
"""Minimum number of hold-out images on which widths are selected for `max_error`, and of those on
which the result is measured."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The kept channels of every targeted group, and the targets that they satisfy."""

    channels: Mapping[str, ChannelSelection]
    targets: Mapping[str, GroupTarget]
    point: SelectedPoint | None = None
    """The selected point of the allocation path, under a budget."""


@dataclass(kw_only=True, eq=False)
class Allocator:
    """Allocates the widths of one network under any number of budgets.

    Rankings, costs and sensitivities do not depend on the budget: each is computed once, when it is
    first needed. Finished units of work are kept in `checkpoints`.
    """

    model: nn.Module
    example_inputs: ExampleInputs
    statistics: LayerStatistics
    groups: Sequence[Group]
    """The groups that can be pruned."""
    selector: Selector
    calibration: Calibration
    ridge: float | None
    """The ridge of the refits that measure a sensitivity.

    `DEFAULT_RIDGE` if it is None, also for layers with few rows: unlike with guarded refits,
    divergences then rise as groups become narrower.
    """
    kinds: tuple[Kind, ...]
    """What the outputs of the network are."""
    holdout: CalibrationData
    workload: Workload
    progress: Progress
    checkpoints: CheckpointStore
    collect: Callable[[Iterable[BoundConsumer]], None]
    """Collects the Gram matrices of layers that are missing."""
    reconstruct: Callable[..., dict[str, Tensor]]
    """Returns all tensors of the network on selected channels, refitted on the images `forward`."""
    plan: Callable[[Mapping[str, ChannelSelection]], Plan]
    """Returns the plan of the network on selected channels, with checkpoints and progress."""
    world: World = field(default_factory=World)
    """The ranks of the run: each ranks and measures some of the groups."""
    first_agreement: Budget | None = None
    """The first agreement target, the only one that the hold-out images guarantee."""
    errors: dict[tuple[tuple[str, int], ...], float] = field(default_factory=dict, init=False)
    """The measured errors, by widths."""
    evaluated: dict[str, int] = field(default_factory=dict, init=False)
    """The number of networks whose latency, error or agreement was measured."""

    @property
    def graph(self) -> ChannelGraph:
        """The coupled and frozen channels of the network."""
        return self.statistics.graph

    @property
    def finished_stages(self) -> set[str]:
        """The stages that a further budget does not repeat."""
        known = {"rankings": "select", "curves": "sensitivity"}
        return {stage for name, stage in known.items() if name in self.__dict__}

    def allocate(self, budget: Budget | None, targets: Mapping[str, GroupTarget]) -> Selection:
        """Return the channels to keep within `budget`, or at the knee of the trade-off."""
        rankings = self.rankings
        problem = AllocationProblem(
            costs=self.costs if budget is None or budget.latency is None else self.timed_costs,
            curves={
                name: SensitivityCurve((ranking.group.channels,), (0.0,))
                for name, ranking in rankings.items()
            },
            full_widths={group.name: group.channels for group in self.graph.groups},
            min_widths={name: ranking.min_width for name, ranking in rankings.items()},
            round_to=1 if budget is None else budget.round_to,
            extra_costs={} if budget is None else {k: c for k, (c, _) in budget.costs.items()},
        )
        limits = {} if budget is None else budget.limits(problem.sizes)
        blocks = self.removable_blocks if budget is not None and budget.removes_blocks else {}
        problem = replace(problem, blocks=blocks)
        problem.check_feasible(limits)  # before the expensive part
        problem = replace(problem, curves=self.curves)
        if budget is not None and budget.agreement is not None and self.first_agreement is None:
            self.first_agreement = budget
        self.evaluated.clear()
        with self.progress.stage("allocate"):
            point = select_point(
                problem,
                budget,
                limits,
                self.world.from_root(self.analyzer.uninformative_divergence),
                latency_of=self._latency_at,
                error_of=partial(self._error_at, targets),
                agreement_of=partial(self._agreement_at, targets, budget),
            )
            channels = self._selection_at(point.at, targets, point.reason)
            self._report(problem, point)
        settled = {n: replace(targets[n], width=len(c.kept)) for n, c in channels.items()}
        return Selection(channels, settled, point)

    def _report(self, problem: AllocationProblem, point: SelectedPoint) -> None:
        total = len(problem.curves) + 1
        for done, (name, curve) in enumerate(problem.curves.items(), 1):
            width = point.at.widths[name]
            kept = f"{width} of {problem.full_widths[name]}, divergence {curve.at(width):.2g}"
            self.progress.step("allocate", name, done, total, kept, is_final=True)
        self.progress.step("allocate", type(self.model).__name__, total, total, point.reason)

    # Rankings and costs

    @cached_property
    def rankings(self) -> dict[str, ChannelRanking]:
        """The removal order of all groups that can be pruned."""
        groups, stored = self.groups, self.checkpoints
        orders = {group.name: stored.get(_ranked_keys(group.name)[0]) for group in groups}
        measured = {group.name: stored.has(_ranked_keys(group.name)[1]) for group in groups}
        restored = {name: order for name, order in orders.items() if order is not None}
        own = self._own(group.name for group in groups)
        self._collect(g for g in own if g.name not in restored or not measured[g.name])
        targets = {g.name: GroupTarget(channels=g.channels, selector=self.selector) for g in groups}
        report = self._steps("select", self.workload.selection(groups, targets))
        with self.progress.stage("select"):
            ranked = ((g.name, self._rank(g)) for g in own if g.name not in restored)
            for name, order in chain(restored.items(), self.world.exchange(ranked)):
                key = _ranked_keys(name)[0]
                if name not in restored:
                    stored.put(key, order)
                orders[name] = order
                report(name, "channels ranked", key)
            found = {group.name: ChannelRanking.of(group, orders[group.name]) for group in groups}
            narrow = {name: ranking.kept(ranking.min_width) for name, ranking in found.items()}
            names = compatible_groups(self.model, narrow, self.example_inputs, self.graph)
        return {name: ranking for name, ranking in found.items() if name in names}

    def _rank(self, group: Group) -> list[int]:
        selector = self.selector
        if not isinstance(selector, RankingSelector):
            selector = EliminationSelector()
        return rank_channels(selector, group_statistics(self.statistics, group))

    @cached_property
    def costs(self) -> Costs:
        """The sizes of the network as a function of its widths."""
        forward = self.statistics.forward
        macs = measure(self.model, self.example_inputs, repeats=2).macs
        images = forward.batch_sizes[0]
        return Costs.of(self.model, self.graph, forward.programs[0], macs, images)

    @cached_property
    def timed_costs(self) -> Costs:
        """The sizes of the network and its estimated latency as a function of its widths."""
        widths = {
            group.name: max(self.rankings[group.name].min_width, int(TIMED_SHARE * group.channels))
            if group.name in self.rankings
            else group.channels
            for group in self.graph.groups
        }
        kept = {name: ranking.kept(widths[name]) for name, ranking in self.rankings.items()}

        def measure_times() -> list[OperationTimes]:
            small = prune(self.model, Plan(kept), self.example_inputs, graph=self.graph).model
            return [OperationTimes.of(m, self.example_inputs) for m in (self.model, small)]

        with self.progress.stage("allocate"):
            work = partial(self.world.from_root, measure_times)
            times = self.checkpoints.get_or_compute("seconds of all operations", work)
        return with_latency(self.costs, self.graph, times[0], times[1], widths)

    # Sensitivities

    @cached_property
    def analyzer(self) -> SensitivityAnalyzer:
        """Measures how much pruned groups change the outputs, on some of the images."""
        rankings = self.rankings
        images, share = self.workload.sensitivity_images(len(rankings))
        measured = self.statistics.forward.first(images)
        return SensitivityAnalyzer(
            measured,
            self.graph,
            self.statistics.consumers_of(*(ranking.group for ranking in rankings.values())),
            self.statistics.store,
            DEFAULT_RIDGE if self.ridge is None else self.ridge,
            self.calibration.sensitivity,
            self.calibration.outputs,
            narrow_batches=math.ceil(share * len(measured.programs)),
        )

    @cached_property
    def curves(self) -> dict[str, SensitivityCurve]:
        """The sensitivity curve of every ranked group."""
        rankings, found = self.rankings, {}
        images, _ = self.workload.sensitivity_images(len(rankings))
        works = {
            name: self.workload.sensitivity(ranking.group, self._measured_widths(name), images)
            for name, ranking in rankings.items()
        }
        report = self._steps("sensitivity", works)
        with self.progress.stage("sensitivity"):
            for name, values in self._divergences():
                measured = dict(zip(self._measured_widths(name), values, strict=True))
                found[name] = SensitivityCurve.of(
                    interpolate(measured, rankings[name].group.channels)
                )
                detail = f"divergence up to {max(values, default=0.0):.2g}"
                report(name, detail, _ranked_keys(name)[1])
        return {name: found[name] for name in rankings}

    def _divergences(self) -> Iterator[tuple[str, list[float]]]:
        """Yield the divergence of each ranked group at its measured widths, restored ones first."""
        rankings = self.rankings
        found = {name: self.checkpoints.get(_ranked_keys(name)[1]) for name in rankings}
        yield from ((name, values) for name, values in found.items() if values is not None)
        own = self._own(name for name, values in found.items() if values is None)
        rest = {
            group.name: [
                rankings[group.name].kept(width) for width in self._measured_widths(group.name)
            ]
            for group in own
        }
        changes: Iterator[tuple[str, list[OutputChange]]] = iter(())
        if own:
            self._collect(own)
            changes = self.analyzer.sweep(rest, held={})
        for name, measured in self.world.exchange(changes):
            values = [change.divergence for change in measured]
            self.checkpoints.put(_ranked_keys(name)[1], values)
            yield name, values

    def _measured_widths(self, name: str) -> list[int]:
        return measured_widths(self.rankings[name], self.calibration.sensitivity_widths)

    @cached_property
    def removable_blocks(self) -> dict[str, RemovableBlock]:
        """The residual blocks whose inner groups are all ranked, and their sensitivity.

        It is measured after the reconstruction of the network without this block, because other
        layers compensate for much of it.
        """
        blocks = self.graph.blocks_within(self.rankings)
        report = self._steps("sensitivity", self.workload.removal(blocks))
        with self.progress.stage("sensitivity"):
            keys = {block.name: f"divergence without {block.name}" for block in blocks}
            known = {name: self.checkpoints.get(key) for name, key in keys.items()}
            values = {name: value for name, value in known.items() if value is not None}
            measured = (
                (block.name, self._divergence_without(block))
                for number, block in enumerate(blocks)
                if block.name not in values and self.world.owns(number)
            )
            for name, value in chain(tuple(values.items()), self.world.exchange(measured)):
                if name not in values:
                    self.checkpoints.put(keys[name], value)
                values[name] = value
                report(name, f"divergence {value:.2g} without it", keys[name])
        return {block.name: RemovableBlock(block.groups, values[block.name]) for block in blocks}

    def _divergence_without(self, block: ResidualBlock) -> float:
        """Return the divergence of the reconstructed network without `block`.

        The weights are fitted on other batches than the analyzer measures on, if there are any:
        in-sample, a removed block seems to cost almost nothing.
        """
        forward, measured = self.statistics.forward, len(self.analyzer.task.programs)
        others = slice(measured, None) if measured < len(forward.programs) else slice(None)
        nothing = ChannelSelection(kept=(), reason="removed")
        tensors = self.reconstruct(
            dict.fromkeys(block.groups, nothing), forward=forward.part(others)
        )
        return self.analyzer.change(tensors).divergence

    # Networks at points of the path

    def _selection_at(
        self, point: AllocationPoint, targets: Mapping[str, GroupTarget], reason: str
    ) -> dict[str, ChannelSelection]:
        """Return the selection in every ranked group at the widths of `point`."""
        fresh = {
            name: f"selection in {name} at {point.widths[name]}"
            for name, ranking in self.rankings.items()
            if not isinstance(self.selector, RankingSelector)
            and 0 < point.widths[name] < ranking.group.channels
        }
        known = {name: self.checkpoints.get(key) for name, key in fresh.items()}
        own = self._own(name for name, one in known.items() if one is None)
        self._collect(own)
        selected = (
            (g.name, self._select(g, replace(targets[g.name], width=point.widths[g.name])))
            for g in own
        )
        for name, one in self.world.exchange(selected):
            self.checkpoints.put(fresh[name], one)
            known[name] = one
        found = {}
        for name, ranking in self.rankings.items():
            width, why = point.widths[name], f"{name_of(self.selector)}, {reason}"
            if width == 0:
                why = f"its residual block is removed, {reason}"
            if name in fresh:
                found[name] = replace(known[name], reason=why)
            else:
                found[name] = ChannelSelection(kept=ranking.kept(width), reason=why)
        return found

    def _select(self, group: Group, target: GroupTarget) -> ChannelSelection:
        return select_channels(target, group_statistics(self.statistics, group))

    def _latency_at(self, point: AllocationPoint) -> float:
        """Return the measured latency of a network with the widths of `point`."""

        def run() -> float:
            widths = {name: point.widths[name] for name in self.rankings}
            kept = {
                name: self.rankings[name].kept(width) for name, width in widths.items() if width
            }
            plan = Plan(kept, removed_blocks=self.graph.emptied_blocks(widths))
            small = prune(self.model, plan, self.example_inputs, graph=self.graph).model
            return measure(small, self.example_inputs, repeats=REPEATS).latency.median

        key = f"latency at {sorted(point.widths.items())}"
        work = partial(self.world.from_root, run)
        return self._evaluate("latency", LATENCY_POINTS, key, work)

    def _error_at(self, targets: Mapping[str, GroupTarget], point: AllocationPoint) -> float:
        """Return the error of the outputs with the widths of `point`, after reconstruction.

        It is measured on the first half of the hold-out images, if there are any.
        """
        widths = tuple(sorted(point.widths.items()))

        def run() -> float:
            images = self.holdout.halves()[0]
            if images.count:
                error = self._compare_at(targets, point, images).error()
                return math.inf if error is None else error.value
            selection = self._selection_at(point, targets, "")
            return self.analyzer.change(self.reconstruct(selection)).error

        if widths not in self.errors:
            key = f"error at {list(widths)}"
            self.errors[widths] = self._evaluate("error", ERROR_POINTS, key, run)
        return self.errors[widths]

    def _agreement_at(
        self, targets: Mapping[str, GroupTarget], budget: Budget | None, point: AllocationPoint
    ) -> AgreementBound:
        """Return the agreement on all hold-out images with the widths of `point`."""
        assert budget is not None

        def run() -> AgreementBound:
            found = self._compare_at(targets, point, self.holdout)
            return found.agreement_bound(budget.confidence)

        key = f"agreement at {sorted(point.widths.items())} with {budget.confidence}"
        return self._evaluate("agreement", ERROR_POINTS, key, run)

    def _compare_at(
        self, targets: Mapping[str, GroupTarget], point: AllocationPoint, images: CalibrationData
    ) -> Comparison:
        """Return the comparison of the network with the widths of `point` on `images`."""
        selection = self._selection_at(point, targets, "")
        with self.progress.muted(), warnings.catch_warnings():
            for category in (CalibrationWarning, RolledBackWarning):
                warnings.simplefilter("ignore", category)
            plan = self.plan(selection)
            small = prune(self.model, plan, self.example_inputs, graph=self.graph).model
        return compare(small, self.model, images.batches(self.calibration.batch_size), self.kinds)

    def _evaluate(self, quantity: str, usual: int, key: str, run: Callable[[], T]) -> T:
        """Return the result of `run` for one network, and report how many were evaluated.

        The remaining time assumes the `usual` number of networks, and at least one more.
        """
        found = self.checkpoints.get_or_compute(key, run)
        self.evaluated[quantity] = done = self.evaluated.get(quantity, 0) + 1
        restored, total = key in self.checkpoints.restored, max(done + 1, usual)
        name = f"network {done}"
        self.progress.step(
            "allocate", name, done, total, quantity, work=(done, total), restored=restored
        )
        return found

    # Ranks and progress

    def _own(self, names: Iterable[str]) -> list[Group]:
        """Return the groups of `names` that this rank is responsible for.

        This is the same rank in every stage, so that it alone needs their statistics.
        """
        wanted = set(names)
        return [
            group
            for number, group in enumerate(self.groups)
            if group.name in wanted and self.world.owns(number)
        ]

    def _collect(self, groups: Iterable[Group]) -> None:
        self.collect(self.statistics.consumers_of(*groups))

    def _steps(self, stage: str, works: Mapping[str, Work]) -> Callable[..., None]:
        totals = {name: work.total for name, work in works.items()}
        return self.progress.steps(stage, totals, self.checkpoints.restored)


def check_holdout(
    budget: Budget, calibration: Calibration, images: int, held: int, kinds: Sequence[Kind]
) -> None:
    """Raise a BadSettingError if too few of the images are held out for `budget`."""

    def require(needed: int, target: str) -> None:
        if held < needed:
            raise BadSettingError(
                f"{target} needs at least {needed} hold-out images, but {held} of {images} images "
                f"are held out: hold out more with holdout={needed}, or pass at least "
                f"{math.ceil(needed / SELECTION_HOLDOUT)} images to sparsify"
            )

    if budget.max_error is not None and calibration.holdout != 0:
        require(2 * HALF_IMAGES, f"max_error={budget.max_error}")
    if budget.agreement is not None:
        if all(kind == "values" for kind in kinds):
            raise BadSettingError(
                "an agreement needs predicted classes, but the outputs are values: pass "
                'max_error=, or outputs="logits" if axis 1 contains classes'
            )
        needed = min_images(budget.agreement, budget.confidence)
        require(needed, f"agreement={budget.agreement} with confidence={budget.confidence}")


def _ranked_keys(name: str) -> tuple[str, str]:
    """Return the checkpoint keys of a group's removal order and of its divergences."""
    return f"ranking of {name}", f"divergence of {name}"
