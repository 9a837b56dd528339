"""The complete pipeline: `Pruner` collects statistics once and prunes to any number of targets."""

import hashlib
import json
import math
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

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
    NARROW,
    SensitivityAnalyzer,
    interpolate,
    measured_batches,
    measured_widths,
)
from entrim.calibration.collect import LayerStatistics, Pass, check_images
from entrim.calibration.consumers import BoundConsumer
from entrim.calibration.data import CalibrationData, Images, read_images
from entrim.calibration.tensor_store import Scratch, TensorStore, tensor_bytes
from entrim.calibration.work import DOUBLE, Work
from entrim.callbacks import Callback, Progress
from entrim.config import (
    SELECTION_HOLDOUT,
    SIZES,
    Budget,
    Calibration,
    EntropicPenalty,
    Patterns,
    Reconstruction,
    Target,
    list_patterns,
    to_plain,
)
from entrim.entropic.solution import Part
from entrim.errors import (
    BadSettingError,
    CalibrationWarning,
    NothingCutWarning,
    RolledBackWarning,
)
from entrim.graph.channel_graph import ChannelGraph, Group
from entrim.graph.eager import (
    ExampleInputs,
    call,
    copy_without_hooks,
    isolate_random_state,
    leaves,
    neutral_context,
    samples,
    unwrap,
)
from entrim.graph.residual_blocks import ResidualBlock, tensors_in
from entrim.metrics import (
    MIRROR_ERROR,
    AgreementBound,
    Comparison,
    Kind,
    compare,
    is_image,
    min_images,
    mirror_error,
    output_kinds,
)
from entrim.planning.estimate import Rates, RunEstimate, stage_estimates
from entrim.planning.workload import Workload
from entrim.reconstruction.layer import LayerFit, LayerUpdate
from entrim.reconstruction.mirror import add_mirrored
from entrim.reconstruction.sequential import reconstruct, removed_blocks, removed_from
from entrim.records import Estimate, Guarantee, Holdout, LayerRecord, Record
from entrim.results import (
    VERSIONS,
    SparsifyResult,
    budget_warnings,
    group_records,
    now,
    size_record,
    tradeoff_records,
    versions,
)
from entrim.selection.base import (
    ChannelRanking,
    ChannelSelection,
    GroupStatistics,
    GroupTarget,
    RankingSelector,
    Selector,
    list_channels,
    name_of,
)
from entrim.selection.elimination import EliminationSelector
from entrim.selection.entropic import EntropicSelector, select_channels
from entrim.selection.targets import TargetResolver, describe_selector, find_selector
from entrim.storage.checkpoint import CheckpointStore, fingerprint
from entrim.surgery.measure import measure
from entrim.surgery.plan import Plan
from entrim.surgery.prune import PrunedModel, part_of, prune
from entrim.surgery.trace import trace

EXAMPLES = 4
"""Number of images with which a network is traced if no example inputs are given."""
ERROR_IMAGES = 256
"""Number of images on which the error of the result is measured."""
SENSITIVITY_PASSES, MIN_SENSITIVITY_IMAGES = 6, 100
"""The automatic number of images for the sensitivity: forward passes in total, and its minimum."""
NARROW_IMAGES = 0.5
"""Share of these images on which narrow groups are measured."""
LARGE_GAP, SMALL_ERROR = 2.0, 0.01
"""A note explains an error on unseen images, above the second value, that is this many times the
error on fitting images."""
HALF_IMAGES = 50
"""Minimum number of hold-out images on which widths are selected for `max_error`, and of those on
which the result is measured."""
VERIFYING_PASSES, MEASURED_PASSES = 6, 24
"""Passes of the example inputs in a verification, in double precision, and in the measurement of
a latency."""
LATENCY_POINTS, ERROR_POINTS = 10, 8
"""Points that are usually evaluated for a latency, and for an error or agreement."""
USUAL_SHARE = 0.6
"""Share of the channels that is kept if the target does not determine it."""
NETWORK_COPIES, SOLVE_COPIES = 4, 4
"""Copies of the network, in part in double precision, and of the largest Gram matrix in a solve."""
TIMED_SHARE = 0.25
"""Share of the channels in the narrow network that is timed for the estimate of the latency."""
REPEATS = 15
"""Number of runs whose median is the latency of a point."""
TYPES = (ChannelSelection, Part, LayerUpdate, LayerFit, AgreementBound, OperationTimes)
"""Dataclasses in checkpoints."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The kept channels of every targeted group, and the targets that they satisfy."""

    channels: Mapping[str, ChannelSelection]
    targets: Mapping[str, GroupTarget]
    point: SelectedPoint | None = None
    """The selected point of the allocation path, under a budget."""


class Pruner:
    """Prune one network to any number of targets; statistics are collected once.

    A `Pruner` owns temporary files if statistics exceed the memory limit. Use it as a context
    manager, or call `close()`.

    Parameters
    ----------
    model : nn.Module
        The network; it is not modified.
    images : Tensor or iterable
        A few hundred images from the distribution of the deployed network, normalized as in its
        training: a tensor, a Dataset, a DataLoader or any iterable of batches. Batches are read
        once and kept in memory or on disk. Labels are ignored, and a dict is passed to the network
        as keyword arguments.
    selector : str or Selector, default "auto"
        Which channels to keep at a given width: "entropic", "greedy", "lasso", "magnitude",
        "random", "exhaustive", or a `Selector` such as `Scores`. "auto" is "greedy" (backward
        elimination) for a budget and "entropic" otherwise.
    reconstruction : Reconstruction or None, default Reconstruction()
        How the weights of the kept channels are refitted; None keeps the original weights.
    include, exclude : str or list of str, default "*" and ()
        Patterns of groups to prune, and of groups to exclude. A pattern matches the name of a
        group or of a layer that produces its channels, as listed by `trace`.
    calibration : Calibration, default Calibration()
        How the images are used.
    example_inputs : Tensor, tuple or dict, optional
        Inputs with which the network is traced and verified; by default the first four images that
        are not held out.
    callbacks : list of Callback, optional
        Callbacks that receive progress events.
    checkpoint_dir : str or path, optional
        Folder for finished units of work. If an interrupted call is repeated with the same network,
        images and options, it restores these units and computes the same result. The folder is
        removed when a `with` block or `sparsify` ends without an error.
    seed : int, default 0
        Seed of all random numbers.

    Examples
    --------
    >>> import torch, entrim
    >>> g = torch.Generator().manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    >>> with entrim.Pruner(net, torch.randn(300, 8, generator=g)) as pruner:
    ...     sizes = [pruner.prune(entrim.Budget(params=p)).record.after.params for p in (0.8, 0.4)]
    >>> sizes[0] > sizes[1]
    True
    """

    def __init__(
        self,
        model: nn.Module,
        images: Images,
        *,
        selector: str | Selector = "auto",
        reconstruction: Reconstruction | None = Reconstruction(),  # noqa: B008
        include: Patterns = "*",
        exclude: Patterns = (),
        calibration: Calibration = Calibration(),  # noqa: B008
        example_inputs: ExampleInputs | None = None,
        callbacks: Sequence[Callback] | None = None,
        checkpoint_dir: str | os.PathLike[str] | CheckpointStore | None = None,
        seed: int = 0,
    ) -> None:
        self.model = unwrap(model)
        self.reconstruction = _check_type("reconstruction", reconstruction, Reconstruction)
        self.calibration = _check_type("calibration", calibration, Calibration)
        self.include, self.exclude = list_patterns(include), list_patterns(exclude)
        self.selector = find_selector(selector)
        self.resolver = TargetResolver(
            self.selector, self.reconstruction, self.include, self.exclude
        )
        self.seed = _check_seed(seed)
        self.progress = Progress.of(callbacks)
        self.checkpoints = CheckpointStore.at(checkpoint_dir)
        self.checkpoints.types = {kind.__name__: kind for kind in TYPES}
        folder = calibration.scratch_dir
        self.scratch = Scratch(None if folder is None else Path(folder), calibration.scratch_limit)
        self.images = read_images(
            images,
            self.model,
            store=TensorStore(calibration.memory_limit, self.scratch),
            batch_size=calibration.batch_size,
            batch_to_inputs=calibration.batch_to_inputs,
        )
        self.fitting_images, self.holdout_images = self._split_images()
        first = self.fitting_images.batch(slice(0, EXAMPLES))
        self.example_inputs: ExampleInputs = first if example_inputs is None else example_inputs
        self.is_closed = False
        self.fits: list[LayerFit] = []
        """The layers that the last reconstruction refitted."""
        self._errors: dict[tuple[tuple[str, int], ...], float] = {}
        self._first_agreement: Budget | None = None
        """The first agreement target, the only one that the hold-out images guarantee."""

    def _split_images(self) -> tuple[CalibrationData, CalibrationData]:
        """Return the images that statistics and weights are fitted on, and the hold-out images."""
        count = self.images.count
        held = self.calibration.holdout_size(count)
        digest = hashlib.sha256(f"{self.seed} hold-out".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        out, rest = torch.randperm(count, generator=generator).tensor_split([held])
        fitting = self.images.subset(rest.sort().values) if held else self.images
        return fitting, self.images.subset(out)

    def __enter__(self) -> "Pruner":
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        if error is None:
            self.checkpoints.remove()

    def close(self) -> None:
        """Remove temporary files and collected statistics."""
        if "statistics" in self.__dict__:
            self.statistics.close()
        self.images.close()
        self.scratch.close()
        self.is_closed = True

    # The pipeline

    @neutral_context()
    def prune(self, target: Target | None = None) -> SparsifyResult:
        """Return a smaller network that computes nearly the same outputs.

        Parameters
        ----------
        target : Budget, Widths or EntropicPenalty, optional
            The requested size. If omitted, the widths are selected at the knee of the trade-off
            between cost and divergence; `record.tradeoff` contains the curve.

        Returns
        -------
        SparsifyResult
            The pruned network, its plan and the record of the run.

        Raises
        ------
        BadSettingError
            If `target` does not fit the other options, or a pattern matches no group.
        BudgetError
            If even the narrowest network exceeds the budget.
        """
        self._check_target(target)
        with isolate_random_state():  # a layer may draw random numbers in eval mode too
            torch.manual_seed(self._run_seed or 0)
            identity = {} if self.checkpoints.folder is None else self._identity
            with self.checkpoints.open(identity) as finished:
                if finished:
                    self.progress.step("resume", "interrupted run", finished, finished, "restored")
                selection = self.select(target)
                stability = self._bootstrap(target, selection)
                pruned = self.apply(selection)
                if not pruned.plan.kept and not pruned.plan.removed_blocks:
                    self._warn_nothing_pruned(target, selection)
                return self._result(target, selection, stability, pruned)

    @neutral_context()
    def plan(self, target: Target | None = None) -> RunEstimate:
        """Return the expected time, memory and disk space of `prune(target)`.

        Traces the network and times one batch; collects and writes nothing. Everything else
        follows from the number of operations of each stage. Accuracy: the time of a run is usually
        within a factor of three.

        Parameters
        ----------
        target : Budget, Widths or EntropicPenalty, optional
            The requested size, as for `prune`.

        Returns
        -------
        RunEstimate

        Raises
        ------
        BadSettingError
            If `target` does not fit the other options, or a pattern matches no group.

        Examples
        --------
        >>> import torch, entrim
        >>> nn = torch.nn
        >>> net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
        >>> with entrim.Pruner(net, torch.randn(300, 8)) as pruner:
        ...     estimate = pruner.plan(entrim.Budget(params=0.5))
        >>> [stage.stage for stage in estimate.stages][:3]
        ['trace', 'collect', 'select']
        """
        self._check_target(target)
        with isolate_random_state():
            targets = self.group_targets(target)
            rates = Rates.measure(self.statistics.forward)
            groups = self.prunable_groups(targets)
            works = self._stage_work(target, groups, targets)
            one = rates.seconds(self.workload.passes(self.fitting_images.count))
            trace = {"trace": self.progress.seconds.get("trace", 0.0)}
            memory, disk = self._expected_storage()
        return RunEstimate(
            images=self.fitting_images.count,
            groups=len(groups),
            pass_seconds=one,
            stages=stage_estimates(works, rates, one, trace),
            memory=memory,
            disk=disk,
        )

    @cached_property
    def graph(self) -> ChannelGraph:
        """The coupled and frozen channels of the network."""
        with isolate_random_state(), self.progress.stage("trace"):
            graph = trace(self.model, self.example_inputs)
            self.progress.step("trace", type(self.model).__name__, 1, 2)
            return graph

    @cached_property
    def statistics(self) -> LayerStatistics:
        """The consumers of all groups and their Gram matrices, collected on demand."""
        graph = self.graph
        with isolate_random_state(), self.progress.stage("trace"):
            found = self._statistics_on(self.fitting_images, self._run_seed)
            warning = check_images(found.forward)
            groups = f"{len(graph.groups)} group{'s' * (len(graph.groups) != 1)}"
            self.progress.step("trace", type(self.model).__name__, 2, 2, groups)
        if warning is not None:
            self.progress.warn(warning, CalibrationWarning)
        self._data_notes = list(self.progress.notes)
        return found

    @cached_property
    def reconstruction_pass(self) -> Pass:
        """The images of sequential refits: with mirror images if the network is invariant."""
        forward, config = self.statistics.forward, self.reconstruction
        if config is None or not config.is_sequential or config.mirror is False:
            return forward
        if not is_image(forward.batches[0]):
            if config.mirror is True:
                raise BadSettingError(
                    "mirror=True needs a network whose only input is a batch of images (images, "
                    "channels, height, width): leave mirror out"
                )
            return forward
        if config.mirror == "auto":
            error = mirror_error(self.model, forward.batches, self.output_kinds)
            if error is None or not error <= MIRROR_ERROR:
                return forward
            self._data_notes.append(
                "the layers are also refitted on mirror images, because mirroring changes the "
                f"outputs by only {error:.1%} (mirror=False disables this)"
            )
            self.progress.notes.append(self._data_notes[-1])
        return add_mirrored(forward)

    @cached_property
    def output_kinds(self) -> tuple[Kind, ...]:
        """What each output of the network is: logits, probabilities or values."""
        _ = self.graph  # raises if the network cannot be called
        batch = self.fitting_images.batches(self.calibration.batch_size)[0]
        with torch.no_grad(), isolate_random_state():
            outputs = leaves(call(copy_without_hooks(self.model).eval(), batch))
        return output_kinds(outputs, samples(batch), self.calibration.outputs)

    @neutral_context()
    @isolate_random_state()
    def select(self, target: Target | None = None) -> Selection:
        """Return the channels to keep for `target`: by penalty, at widths, or by allocation."""
        targets = self.group_targets(target)
        if target is None or isinstance(target, Budget):
            return self._allocate(target, targets)
        groups = self.prunable_groups(targets)
        keys = {group.name: f"selection in {group.name} for {target!r}" for group in groups}
        self.collect(group for group in groups if not self.checkpoints.has(keys[group.name]))
        found = {}
        report = self._steps("select", self._selection_work(groups, targets))
        with self.progress.stage("select"):
            for group in groups:
                work = partial(self._select_in, group, targets[group.name])
                found[group.name] = self.checkpoints.get_or_compute(keys[group.name], work)
                kept = f"{len(found[group.name].kept)} of {group.channels}"
                report(group.name, kept, keys[group.name], is_final=True)
        return Selection(found, targets)

    @neutral_context()
    @isolate_random_state()
    def apply(self, selection: Selection) -> PrunedModel:
        """Return the network on the selected channels: reconstructed, pruned and verified."""
        with self.progress.stage("reconstruct"):
            plan = self._reconstruct(selection.channels)
        with self.progress.stage("prune"):
            pruned = prune(self.model, plan, self.example_inputs, graph=self.graph)
            detail = f"verified to {pruned.proof.final:.0e}"
            self.progress.step("prune", type(self.model).__name__, 1, 1, detail)
        return pruned

    # Targets and statistics

    def _check_target(self, target: Target | None) -> None:
        """Raise a BadSettingError if `target` does not fit the images and options."""
        if self.is_closed:
            raise BadSettingError(
                "the Pruner is closed and has no images: prune inside its `with` block"
            )
        self.resolver.check(target)
        _ = self.output_kinds  # raises if they do not fit the network
        if isinstance(target, Budget):
            self._check_holdout(target)

    def group_targets(self, target: Target | None) -> dict[str, GroupTarget]:
        """Return the target of every included group; excluded groups keep all channels."""

        def has_single_consumer(group: Group) -> bool:
            return self.statistics.has_single_consumer(group)

        return self.resolver.group_targets(target, self.graph, has_single_consumer)

    def prunable_groups(self, targets: Mapping[str, GroupTarget]) -> list[Group]:
        """Return the groups of `targets` whose statistics can be collected; warn about others."""
        statistics = self.statistics
        hidden = statistics.unobservable_groups
        groups = [self.graph.group(name) for name in targets if name not in hidden]
        large = statistics.too_large(groups)
        solved = [group for group in groups if targets[group.name].needs_solution]
        large |= statistics.kept_as_rows(solved)  # a solution has one weight per column
        if large:
            self.progress.warn(
                "not pruned, because the second moments of their consumers exceed memory_limit="
                f"{self.calibration.memory_limit:,} bytes: {', '.join(sorted(large))}; raise "
                "memory_limit, or pool before flattening",
                CalibrationWarning,
            )
        return [g for g in groups if g.name not in large and statistics.consumers_of(g)]

    def collect(self, groups: Iterable[Group]) -> None:
        """Collect the statistics of `groups` that are missing, in as few passes as fit."""
        self._collect_consumers(self.statistics.consumers_of(*groups))

    def group_statistics(self, group: Group) -> GroupStatistics:
        """Return the collected statistics of one group, as selectors use them."""
        return _group_statistics(self.statistics, group)

    @cached_property
    def rankings(self) -> dict[str, ChannelRanking]:
        """The removal order of all included groups that can be pruned."""
        targets = self.group_targets(None)
        groups = self.prunable_groups(targets)
        known = [g for g in groups if all(map(self.checkpoints.has, _ranked_keys(g.name)))]
        self.collect(group for group in groups if group not in known)
        found = {}
        report = self._steps("select", self._selection_work(groups, targets))
        with self.progress.stage("select"):
            for group in groups:
                key = _ranked_keys(group.name)[0]
                work = partial(self._rank, group, targets[group.name].selector)
                order = self.checkpoints.get_or_compute(key, work)
                found[group.name] = ChannelRanking.of(group, order)
                report(group.name, "channels ranked", key)
            narrow = {name: ranking.kept(ranking.min_width) for name, ranking in found.items()}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RolledBackWarning)
                plan = prune(self.model, Plan(narrow), self.example_inputs, graph=self.graph).plan
        return {name: ranking for name, ranking in found.items() if name in plan.kept}

    @cached_property
    def costs(self) -> Costs:
        """The sizes of the network as a function of its widths."""
        forward = self.statistics.forward
        macs = measure(self.model, self.example_inputs, repeats=2).macs
        batch = samples(forward.batches[0])
        return Costs.of(self.model, self.graph, forward.programs[0], macs, batch)

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
            times = self.checkpoints.get_or_compute("seconds of all operations", measure_times)
        return with_latency(self.costs, self.graph, times[0], times[1], widths)

    @cached_property
    def analyzer(self) -> SensitivityAnalyzer:
        """Measures how much pruned groups change the outputs, on some of the images."""
        forward, names = self.statistics.forward, self.rankings
        images, share = self._sensitivity_images(len(names))
        batches = self._measured_batches(images)
        some = replace(
            forward, programs=forward.programs[:batches], batches=forward.batches[:batches]
        )
        concerned = self.statistics.consumers_of(*map(self.graph.group, names))
        ridge = None if self.reconstruction is None else self.reconstruction.ridge
        return SensitivityAnalyzer(
            some,
            self.graph,
            concerned,
            self.statistics.store,
            ridge,
            self.calibration.sensitivity,
            self.calibration.outputs,
            narrow_batches=math.ceil(share * batches),
        )

    @cached_property
    def curves(self) -> dict[str, SensitivityCurve]:
        """The sensitivity curve of every ranked group."""
        rankings, found = self.rankings, {}
        images, _ = self._sensitivity_images(len(rankings))
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

    @cached_property
    def removable_blocks(self) -> dict[str, RemovableBlock]:
        """The residual blocks whose inner groups are all ranked, and their sensitivity.

        It is measured after the reconstruction of the network without this block, because other
        layers compensate for much of it.
        """
        blocks, found = self._blocks_within(self.rankings), {}
        report = self._steps("sensitivity", self._removal_work(blocks))
        with self.progress.stage("sensitivity"):
            for block in blocks:
                key = f"divergence without {block.name}"
                work = partial(self._divergence_without, block)
                value = self.checkpoints.get_or_compute(key, work)
                found[block.name] = RemovableBlock(block.groups, value)
                report(block.name, f"divergence {value:.2g} without it", key)
        return found

    def _blocks_within(self, names: Collection[str]) -> list[ResidualBlock]:
        """Return the residual blocks whose inner groups are all in `names`."""
        return [b for b in self.graph.blocks if b.groups and set(b.groups) <= set(names)]

    def _divergence_without(self, block: ResidualBlock) -> float:
        """Return the divergence of the reconstructed network without `block`.

        The weights are fitted on other batches than the analyzer measures on, if there are any:
        in-sample, a removed block seems to cost almost nothing.
        """
        forward, measured = self.statistics.forward, len(self.analyzer.task.batches)
        others = slice(measured, None) if measured < len(forward.batches) else slice(None)
        fitting = replace(
            forward, programs=forward.programs[others], batches=forward.batches[others]
        )
        nothing = ChannelSelection(kept=(), reason="removed")
        tensors = reconstruct(
            self.statistics,
            dict.fromkeys(block.groups, nothing),
            self.reconstruction,
            forward=fitting,
            collect=self._collect_consumers,
        )
        return self.analyzer.change(tensors).divergence

    # Steps

    def _allocate(self, budget: Budget | None, targets: Mapping[str, GroupTarget]) -> Selection:
        """Return the selection at the allocated widths."""
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
        blocks = self.removable_blocks if budget is not None and budget.depth else {}
        problem = replace(problem, blocks=blocks)
        problem.check_feasible(limits)  # before the expensive part
        problem = replace(problem, curves=self.curves)
        if budget is not None and budget.agreement is not None and self._first_agreement is None:
            self._first_agreement = budget
        with self.progress.stage("allocate"):
            point = select_point(
                problem,
                budget,
                limits,
                self.analyzer.uninformative_divergence(),
                latency_of=self._latency_at,
                error_of=partial(self._error_at, targets),
                agreement_of=partial(self._agreement_at, targets, budget),
            )
            channels = self._selection_at(point.at, targets, point.reason)
            self._report_allocation(problem, point)
        settled = {n: replace(targets[n], width=len(c.kept)) for n, c in channels.items()}
        return Selection(channels, settled, point)

    def _report_allocation(self, problem: AllocationProblem, point: SelectedPoint) -> None:
        total = len(problem.curves) + 1
        for done, (name, curve) in enumerate(problem.curves.items(), 1):
            width = point.at.widths[name]
            kept = f"{width} of {problem.full_widths[name]}, divergence {curve.at(width):.2g}"
            self.progress.step("allocate", name, done, total, kept, is_final=True)
        self.progress.step("allocate", type(self.model).__name__, total, total, point.reason)

    def _divergences(self) -> Iterable[tuple[str, list[float]]]:
        """Yield the divergence of each ranked group at its measured widths, restored ones first."""
        rankings = self.rankings
        found = {name: self.checkpoints.get(_ranked_keys(name)[1]) for name in rankings}
        yield from ((name, values) for name, values in found.items() if values is not None)
        rest = {
            name: [rankings[name].kept(width) for width in self._measured_widths(name)]
            for name, values in found.items()
            if values is None
        }
        if rest:
            analyzer = self.analyzer
            self.collect(map(self.graph.group, rest))
            for name, changes in analyzer.sweep(rest, held={}):
                values = [change.divergence for change in changes]
                self.checkpoints.put(_ranked_keys(name)[1], values)
                yield name, values

    def _measured_widths(self, name: str) -> list[int]:
        return measured_widths(self.rankings[name], self.calibration.sensitivity_widths)

    def _sensitivity_images(self, groups: int) -> tuple[int, float]:
        """Return how many images measure the sensitivity, and which share of them narrow groups."""
        if self.calibration.sensitivity_images is not None:
            return self.calibration.sensitivity_images, 1.0
        fractions = (0.0, *self.calibration.sensitivity_widths)
        trials = sum(NARROW_IMAGES if fraction < NARROW else 1 for fraction in fractions)
        passes = max(1, groups) * trials / 2  # half of the network is behind a group
        images = round(SENSITIVITY_PASSES * self.images.count / passes)
        return max(MIN_SENSITIVITY_IMAGES, images), NARROW_IMAGES

    def _measured_batches(self, images: int) -> int:
        batches = len(self.statistics.forward.batches)
        return measured_batches(batches, self.fitting_images.count, images)

    def _rank(self, group: Group, selector: Selector) -> list[int]:
        if not isinstance(selector, RankingSelector):
            selector = EliminationSelector()
        found = list_channels(selector, selector.rank(self.group_statistics(group)))
        if sorted(found) != list(range(group.channels)):
            raise BadSettingError(
                f"{name_of(selector)} ranked {len(found)} channels of {group.name}: return each of "
                f"its {group.channels} channels once"
            )
        return found

    def _select_in(self, group: Group, target: GroupTarget) -> ChannelSelection:
        return select_channels(target, self.group_statistics(group))

    def _selection_at(
        self, point: AllocationPoint, targets: Mapping[str, GroupTarget], reason: str
    ) -> dict[str, ChannelSelection]:
        """Return the selection in every ranked group at the widths of `point`."""
        fresh = {
            name: f"selection in {name} at {point.widths[name]}"
            for name, ranking in self.rankings.items()
            if not isinstance(targets[name].selector, RankingSelector)
            and 0 < point.widths[name] < ranking.group.channels
        }
        missing = [name for name, key in fresh.items() if not self.checkpoints.has(key)]
        self.collect(map(self.graph.group, missing))
        found = {}
        for name, ranking in self.rankings.items():
            width, why = point.widths[name], f"{name_of(targets[name].selector)}, {reason}"
            if width == 0:
                why = f"its residual block is removed, {reason}"
            if name in fresh:
                target = replace(targets[name], width=width)
                work = partial(self._select_in, ranking.group, target)
                one = self.checkpoints.get_or_compute(fresh[name], work)
                found[name] = replace(one, reason=why)
            else:
                found[name] = ChannelSelection(kept=ranking.kept(width), reason=why)
        return found

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

        return self.checkpoints.get_or_compute(f"latency at {sorted(point.widths.items())}", run)

    def _error_at(self, targets: Mapping[str, GroupTarget], point: AllocationPoint) -> float:
        """Return the error of the outputs with the widths of `point`, after reconstruction.

        It is measured on the first half of the hold-out images, if there are any.
        """
        widths = tuple(sorted(point.widths.items()))

        def run() -> float:
            images = self._holdout_halves()[0]
            if images.count:
                error = self._compare_at(targets, point, images).error()
                return math.inf if error is None else error.value
            selection = self._selection_at(point, targets, "")
            return self.analyzer.change(self._tensors(selection)).error

        if widths not in self._errors:
            key = f"error at {list(widths)}"
            self._errors[widths] = self.checkpoints.get_or_compute(key, run)
        return self._errors[widths]

    def _agreement_at(
        self, targets: Mapping[str, GroupTarget], budget: Budget | None, point: AllocationPoint
    ) -> AgreementBound:
        """Return the agreement on all hold-out images with the widths of `point`."""
        assert budget is not None

        def run() -> AgreementBound:
            found = self._compare_at(targets, point, self.holdout_images)
            return found.agreement_bound(budget.confidence)

        key = f"agreement at {sorted(point.widths.items())} with {budget.confidence}"
        return self.checkpoints.get_or_compute(key, run)

    def _compare_at(
        self, targets: Mapping[str, GroupTarget], point: AllocationPoint, images: CalibrationData
    ) -> Comparison:
        """Return the comparison of the network with the widths of `point` on `images`."""
        selection = self._selection_at(point, targets, "")
        with self.progress.muted(), warnings.catch_warnings():
            for category in (CalibrationWarning, RolledBackWarning):
                warnings.simplefilter("ignore", category)
            plan = self._reconstruct(selection)
            small = prune(self.model, plan, self.example_inputs, graph=self.graph).model
        batches = images.batches(self.calibration.batch_size)
        return compare(small, self.model, batches, self.output_kinds)

    def _holdout_halves(self) -> tuple[CalibrationData, CalibrationData]:
        """Return the hold-out images on which widths are selected for `max_error`, and the rest."""
        rows = torch.arange(self.holdout_images.count).tensor_split(2)
        return self.holdout_images.subset(rows[0]), self.holdout_images.subset(rows[1])

    def _check_holdout(self, budget: Budget) -> None:
        """Raise a BadSettingError if there are too few hold-out images for `budget`."""
        if budget.max_error is not None and self.calibration.holdout != 0:
            self._require_holdout(2 * HALF_IMAGES, f"max_error={budget.max_error}")
        if budget.agreement is not None:
            if all(kind == "values" for kind in self.output_kinds):
                raise BadSettingError(
                    "an agreement needs predicted classes, but the outputs are values: pass "
                    'max_error=, or outputs="logits" if axis 1 contains classes'
                )
            needed = min_images(budget.agreement, budget.confidence)
            shown = f"agreement={budget.agreement} with confidence={budget.confidence}"
            self._require_holdout(needed, shown)

    def _require_holdout(self, needed: int, target: str) -> None:
        held, count = self.holdout_images.count, self.images.count
        if held < needed:
            raise BadSettingError(
                f"{target} needs at least {needed} hold-out images, but {held} of {count} images "
                f"are held out: hold out more with holdout={needed}, or pass at least "
                f"{math.ceil(needed / SELECTION_HOLDOUT)} images to sparsify"
            )

    def _tensors(
        self,
        selection: Mapping[str, ChannelSelection],
        on_layer: Callable[[LayerFit], None] = lambda _: None,
        cached: Callable[[str, Callable[[], LayerUpdate]], LayerUpdate] = lambda _, run: run(),
    ) -> dict[str, Tensor]:
        return reconstruct(
            self.statistics,
            selection,
            self.reconstruction,
            forward=self.reconstruction_pass,
            collect=self._collect_consumers,
            on_layer=on_layer,
            cached=cached,
        )

    def _reconstruct(self, selection: Mapping[str, ChannelSelection]) -> Plan:
        """Return the plan with new weights for all changed layers, and report every layer."""
        kept = removed_from(self.graph, selection)
        indices, total = self.graph.kept_indices(kept), len(self.statistics.consumers)
        self.fits = []
        works = self._reconstruction_work({name: len(units) for name, units in kept.items()})
        finished = dict(zip(works, accumulate(work.total for work in works.values()), strict=True))
        every = max(finished.values(), default=0.0)
        removed = removed_blocks(self.graph, selection)
        absent = tensors_in(map(self.graph.block, removed))
        prefix = f"reconstruction on {sorted(kept.items())}: "
        if removed:
            prefix = f"reconstruction on {sorted(kept.items())} without {sorted(removed)}: "

        def cached(layer: str, run: Callable[[], LayerUpdate]) -> LayerUpdate:
            return self.checkpoints.get_or_compute(prefix + layer, run)

        def on_layer(fit: LayerFit) -> None:
            self.fits.append(fit)
            detail = self._detail(prefix + fit.layer, f"error {fit.error:.1%} of the variance")
            self.progress.step(
                "reconstruct",
                fit.layer,
                len(self.fits),
                total,
                detail,
                is_final=True,
                work=(finished[fit.layer], every),
                restored=prefix + fit.layer in self.checkpoints.restored,
            )
            if fit.rows < fit.columns:
                self.progress.warn(
                    f"{fit.layer} is refitted on {fit.rows} rows for {fit.columns} columns: pass "
                    "more images, or keep fewer channels",
                    CalibrationWarning,
                )

        tensors = self._tensors(selection, on_layer, cached)
        if len(self.fits) < total:  # the other layers have the same inputs and targets as before
            done = f"{len(self.fits)} of {total} layers refitted"
            name = type(self.model).__name__
            self.progress.step("reconstruct", name, total, total, done, work=(every, every))
        original = self.statistics.forward.tensors
        changed = {
            name: new
            for name, new in tensors.items()
            if new is not original[name] and name not in absent
        }
        weights = {name: part_of(new, indices.get(name, {})) for name, new in changed.items()}
        return Plan(kept, weights, removed)

    def _bootstrap(self, target: Target | None, selection: Selection) -> dict[str, float]:
        """Return the mean overlap of every kept set with those of bootstrap samples."""
        overlaps: dict[str, list[float]] = {name: [] for name in selection.channels}
        for number in range(self.calibration.n_bootstrap):
            work = partial(self._select_on_sample, selection.targets, number)
            kept = self.checkpoints.get_or_compute(f"bootstrap {number} for {target!r}", work)
            for name, channels in kept.items():
                own, other = set(selection.channels[name].kept), set(channels)
                overlaps[name].append(len(own & other) / len(own | other))
        return {name: sum(values) / len(values) for name, values in overlaps.items() if values}

    def _select_on_sample(
        self, targets: Mapping[str, GroupTarget], number: int
    ) -> dict[str, tuple[int, ...]]:
        """Return the kept channels of every group on images drawn with replacement."""
        generator = self.statistics.forward.drawing(f"resample {number}")
        images = self.fitting_images.resample(generator)
        sample = self._statistics_on(images, generator.initial_seed())
        with sample.store, self.progress.muted(), warnings.catch_warnings():
            warnings.simplefilter("ignore", CalibrationWarning)
            groups = [g for g in self.prunable_groups(targets) if targets[g.name].width != 0]
            with self.progress.stage("collect"):
                sample.collect(sample.consumers_of(*groups))
            with self.progress.stage("select"):
                return {
                    group.name: select_channels(
                        targets[group.name], _group_statistics(sample, group)
                    ).kept
                    for group in groups
                }

    def _collect_consumers(self, consumers: Iterable[BoundConsumer]) -> None:
        missing = self.statistics.missing(consumers)
        sizes, images = self.statistics.forward.batch_sizes, self.fitting_images.count
        passes = [work.total for work in self.workload.collect(missing)]
        works = [each * size / images for each in passes for size in sizes]
        finished = list(accumulate(works))

        def on_batch(done: int, total: int) -> None:
            work = finished[done - 1], finished[-1]
            self.progress.step("collect", f"batch {done}", done, total, work=work)

        with self.progress.stage("collect"):
            self.statistics.collect(missing, on_batch)

    def _statistics_on(self, images: CalibrationData, seed: int | None) -> LayerStatistics:
        return LayerStatistics.of(
            self.model,
            self.graph,
            images.batches(self.calibration.batch_size),
            memory_limit=self.calibration.memory_limit,
            scratch=self.scratch,
            n_positions=self.calibration.n_positions,
            seed=seed,
        )

    # Work of the stages

    @cached_property
    def workload(self) -> Workload:
        """The operations of the stages."""
        return Workload(self.statistics)

    def _selection_work(
        self, groups: Sequence[Group], targets: Mapping[str, GroupTarget]
    ) -> dict[str, Work]:
        return {g.name: self.workload.select(g, targets[g.name]) for g in groups}

    def _reconstruction_work(self, widths: Mapping[str, int]) -> dict[str, Work]:
        """Return the work of each layer in the order of the reconstruction."""
        config = self.reconstruction
        shares = self.workload.shares(widths)
        if config is not None and config.is_sequential:
            return self.workload.reconstruct(shares)
        consumers = self.statistics.consumers
        refits = config is not None and config.refits
        return {
            layer: self.workload.refit(consumers[layer], share, 1) if refits else Work()
            for layer, share in shares.items()
        }

    def _removal_work(self, blocks: Sequence[ResidualBlock]) -> dict[str, Work]:
        """Return the work of a reconstruction without each of `blocks`."""
        full = {group.name: group.channels for group in self.graph.groups}
        every = sum(self._reconstruction_work(full).values(), Work())
        return {block.name: every for block in blocks}

    def _stage_work(
        self, target: Target | None, groups: Sequence[Group], targets: Mapping[str, GroupTarget]
    ) -> dict[str, Work]:
        """Return the expected work of every stage behind the trace."""
        load, none = self.workload, Work()
        example = load.passes(samples(self.example_inputs))
        verify = example * (VERIFYING_PASSES * DOUBLE)
        missing = self.statistics.missing(self.statistics.consumers_of(*groups))
        works = {"collect": sum(load.collect(missing), none)}
        works["select"] = sum(self._selection_work(groups, targets).values(), none)
        widths = _expected_widths(target, groups, targets)
        reconstruct = sum(self._reconstruction_work(widths).values(), none)
        held = load.passes(2 * self.holdout_images.count)
        if target is None or isinstance(target, Budget):
            works["select"] += verify
            images = min(self._sensitivity_images(len(groups))[0], self.fitting_images.count)
            works["sensitivity"] = load.passes(2 * images)
            for group in groups:
                fractions = (*self.calibration.sensitivity_widths, 0.0)
                measured = [round(fraction * group.channels) for fraction in fractions]
                works["sensitivity"] += load.sensitivity(group, measured, images)
            if target is not None and target.depth:
                blocks = self._blocks_within([group.name for group in groups])
                works["sensitivity"] += sum(self._removal_work(blocks).values(), none)
            latency = example * ((REPEATS + 4) * LATENCY_POINTS) + verify * LATENCY_POINTS
            works["allocate"] = (reconstruct + held) * _evaluated_points(target)
            if target is not None and target.latency is not None:
                works["allocate"] += latency
        bootstrap = (works["collect"] + works["select"]) * self.calibration.n_bootstrap
        works["select"] += bootstrap
        works["reconstruct"] = reconstruct
        works["prune"] = verify
        works["measure"] = sum(self._measurement_work().values(), none)
        return works

    def _measurement_work(self) -> dict[str, Work]:
        load, fitting = self.workload, min(ERROR_IMAGES, self.fitting_images.count)
        size = load.passes(samples(self.example_inputs)) * MEASURED_PASSES
        return {
            "original size": size,
            "pruned size": size,
            "fitting images": load.passes(2 * fitting),
            "hold-out images": load.passes(2 * self.holdout_images.count),
        }

    def _expected_storage(self) -> tuple[int, int]:
        """Return the expected bytes in memory and on disk."""
        limit, load = self.calibration.memory_limit, self.workload
        network = sum(tensor_bytes(t) for t in self.statistics.forward.tensors.values())
        live = load.live_bytes() * self.fitting_images.count
        stored = [self.images.store.held, load.gram_bytes, live]
        batch = max(self.statistics.forward.batch_sizes) * load.forward.largest_value
        consumers = self.statistics.consumers.values()
        widest = max(map(self.statistics.forward.statistics_bytes, consumers), default=0)
        memory = sum(min(limit, size) for size in stored)
        memory += NETWORK_COPIES * network + 2 * batch + SOLVE_COPIES * widest
        disk = self.scratch.used + sum(max(0, size - limit) for size in stored)
        return memory, disk

    # Random numbers and notes

    @property
    def _run_seed(self) -> int | None:
        """The seed of all random numbers; None if none are drawn."""
        if not self.draws:
            return None
        generator = torch.Generator().manual_seed(self.seed)
        return int(torch.randint(2**62, (), generator=generator))

    @property
    def draws(self) -> bool:
        """Whether anything is drawn at random."""
        sampled = self.calibration.n_positions is not None or self.calibration.n_bootstrap > 0
        return sampled or self.holdout_images.count > 0 or self.resolver.is_random

    def _warn_nothing_pruned(self, target: Target | None, selection: Selection) -> None:
        """Explain why nothing was pruned; for a penalty, name one that prunes something."""
        if not selection.channels:
            reason = (
                "nothing was pruned, because no group was selected: widen include=, exclude= or "
                "the widths, raise memory_limit, or allow several consumers (single_consumer=False)"
            )
        elif isinstance(target, EntropicPenalty):
            reason = self._stronger_penalty(target, selection)
        elif isinstance(target, Budget):
            reason = "nothing was pruned: the original network is within the budget"
        elif target is None:
            reason = "nothing was pruned: no reduction is worth its divergence; pass a Budget"
        else:
            reason = "nothing was pruned: every group keeps the requested width"
        self.progress.warn(reason, NothingCutWarning)

    def _stronger_penalty(self, target: EntropicPenalty, selection: Selection) -> str:
        groups = [self.graph.group(name) for name in selection.channels]
        self.collect(groups)
        for power in range(1, 13):
            for group in groups:
                known = selection.targets[group.name].penalty
                assert known is not None
                eps_w, eps_l2 = known.eps_w * 10.0**power, known.eps_l2 * 10.0**power
                trial = GroupTarget(
                    channels=group.channels,
                    selector=EntropicSelector(),
                    penalty=EntropicPenalty().solver_settings(eps_w, eps_l2),
                )
                if len(self._select_in(group, trial).kept) < group.channels:
                    return (
                        "nothing was pruned, because the penalty is too small for this network: "
                        f"try eps_w={eps_w:.0e}, eps_l2={eps_l2:.0e}, which prunes {group.name}"
                    )
        return "nothing was pruned at any tested penalty: pass Widths instead"

    def _steps(self, stage: str, works: Mapping[str, Work]) -> Callable[..., None]:
        """Return a function that reports a finished item of a stage by its name and work."""
        total = sum(work.total for work in works.values())
        finished: dict[str, int | float] = {}

        def report(name: str, detail: str, key: str, is_final: bool = False) -> None:
            finished[name] = works[name].total
            self.progress.step(
                stage,
                name,
                len(finished),
                len(works),
                self._detail(key, detail),
                is_final=is_final,
                work=(min(total, sum(finished.values())), total),
                restored=key in self.checkpoints.restored,
            )

        return report

    def _detail(self, key: str, detail: str) -> str:
        """Return the detail of a step, and whether it was restored."""
        return f"{detail}, restored" if key in self.checkpoints.restored else detail

    # The record

    def _result(
        self,
        target: Target | None,
        selection: Selection,
        stability: Mapping[str, float],
        pruned: PrunedModel,
    ) -> SparsifyResult:
        name, statistics = type(self.model).__name__, self.statistics
        proof = pruned.proof
        with self.progress.stage("measure"):
            report = self._steps("measure", self._measurement_work())
            before = size_record(self.model, self.example_inputs)
            report("original size", "", "")
            after = size_record(pruned.model, self.example_inputs)
            report("pruned size", "", "")
            batches = statistics.forward.batches
            some = batches[: self._measured_batches(ERROR_IMAGES)]
            apart = compare(pruned.model, self.model, some, self.output_kinds).error()
            error = None if apart is None else apart.value
            detail = "outputs compared" if error is None else f"outputs differ by {error:.2%}"
            report("fitting images", detail, "")
            holdout = self._compare_on_holdout(pruned.model, error, target, selection.point)
            report("hold-out images", detail, "")
        if holdout is not None and holdout.note is not None:
            self.progress.notes.append(holdout.note)
        if isinstance(target, Budget) and selection.point is not None:
            limits = target.limits({kind: getattr(before, kind) for kind in SIZES})
            for note, category in budget_warnings(target, limits, selection.point, after):
                self.progress.warn(note, category)
        record = Record(
            model=name,
            images=self.images.count,
            settings=self.settings(target),
            versions=versions(),
            groups=group_records(statistics, selection.targets, selection.channels, stability),
            layers=tuple(
                LayerRecord(layer=f.layer, rows=f.rows, columns=f.columns, error=f.error)
                for f in self.fits
            ),
            frozen=tuple((f.layer, f.channels, f.reason) for f in self.graph.frozen),
            tradeoff=tradeoff_records(selection.point),
            before=before,
            after=after,
            proof={"sliced": proof.sliced, "final": proof.final, "tolerance": proof.tolerance},
            seconds=dict(self.progress.seconds),
            notes=tuple(self.progress.notes),
            error=error,
            holdout=holdout,
            holdout_digests=tuple(self._measured_images(target).digests()),
            original=self._fingerprint,
            images_checksum=self.images.checksum(),
            seed=self.seed if self.draws else None,
            threads=torch.get_num_threads(),
            date=now(),
            removed_blocks=tuple(pruned.plan.removed_blocks),
        )
        self.progress.seconds, self.progress.notes = {}, list(self._data_notes)
        return SparsifyResult(
            model=pruned.model,
            plan=pruned.plan,
            record=record,
            original=self.model,
            fitting_images=self.fitting_images.in_memory(),
            holdout_images=self._measured_images(target).in_memory(),
        )

    def _compare_on_holdout(
        self,
        small: nn.Module,
        in_sample: float | None,
        target: Target | None,
        point: SelectedPoint | None,
    ) -> Holdout | None:
        """Return the comparison with the original on hold-out images; None if there are none.

        `in_sample` is the error on fitting images.
        """
        images, guarantee = self._measured_images(target), None
        selected = self.holdout_images.count - images.count
        if not images.count:
            return None
        if point is not None and point.bound is not None:
            assert isinstance(target, Budget)
            assert target.agreement is not None
            selected = images.count
            guarantee = Guarantee(
                agreement=target.agreement,
                confidence=target.confidence,
                low=point.bound.low,
                tested=point.tested,
                holds=target == self._first_agreement,
            )
        batches = images.batches(self.calibration.batch_size)
        found = compare(small, self.model, batches, self.output_kinds)
        return Holdout(
            images=images.count,
            outputs=self.output_kinds,
            recognized=self.calibration.outputs == "auto",
            agreement=found.agreement(),
            divergence=found.divergence(),
            error=found.error(),
            selection_images=selected,
            guarantee=guarantee,
            note=_overfitting_note(in_sample, found.error()),
        )

    def _measured_images(self, target: Target | None) -> CalibrationData:
        """Return the hold-out images on which no widths are selected for `max_error`."""
        halved = isinstance(target, Budget) and target.max_error is not None
        return self._holdout_halves()[1] if halved else self.holdout_images

    def settings(self, target: Target | None) -> dict[str, Any]:
        """Return the options of a run as plain data."""
        return {
            "budget": to_plain(target),
            "selector": describe_selector(self.selector),
            "reconstruction": to_plain(self.reconstruction),
            "include": self.include,
            "exclude": self.exclude,
            "calibration": to_plain(self.calibration),
        }

    @cached_property
    def _fingerprint(self) -> str:
        """The fingerprint of the original network."""
        return fingerprint(self.statistics.forward.tensors.values())

    @cached_property
    def _identity(self) -> dict[str, str]:
        """Digests of everything except the target on which the results depend."""
        forward = self.statistics.forward
        code = dict.fromkeys(program.module.code for program in forward.programs)
        network = (*code, *forward.tensors, str({t.device for t in forward.tensors.values()}))
        shown = [self.images.shapes(), dict(self.images.fixed), self.example_inputs]
        tensors = [leaf for leaf in pytree.tree_leaves(shown) if isinstance(leaf, Tensor)]
        shapes = repr(pytree.tree_map_only(Tensor, lambda tensor: tuple(tensor.shape), shown))
        options = [self.settings(None), to_plain(getattr(self.selector, "__dict__", {}))]
        return {
            "network": f"{_digest(*network)} {self._fingerprint}",
            "images": f"{_digest(shapes)} {self.images.checksum()} {fingerprint(tensors)}",
            "settings": json.dumps(options),
            "seed": str(self._run_seed),
            "versions": str({name: version(name) for name in VERSIONS}),
        }


def sparsify(
    model: nn.Module,
    images: Images,
    budget: Target | None = None,
    *,
    selector: str | Selector = "auto",
    reconstruction: Reconstruction | None = Reconstruction(),  # noqa: B008
    include: Patterns = "*",
    exclude: Patterns = (),
    calibration: Calibration = Calibration(),  # noqa: B008
    example_inputs: ExampleInputs | None = None,
    callbacks: Sequence[Callback] | None = None,
    checkpoint_dir: str | os.PathLike[str] | CheckpointStore | None = None,
    seed: int = 0,
) -> SparsifyResult:
    """Return a smaller network that computes nearly the same outputs as `model`.

    The same as `Pruner(model, images, ...).prune(budget)`; `Pruner` documents the other parameters.

    Parameters
    ----------
    model : nn.Module
        The network; it is not modified.
    images : Tensor or iterable
        A few hundred images without labels, normalized as in the network's training.
    budget : Budget, Widths or EntropicPenalty, optional
        The requested size: limits, widths, or the penalty of the paper. If omitted, the widths are
        selected at the knee of the trade-off between cost and divergence.

    Returns
    -------
    SparsifyResult
        The pruned network, its plan and the record of the run.

    Examples
    --------
    >>> import torch, entrim
    >>> g = torch.Generator().manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    >>> x = torch.randn(300, 8, generator=g)
    >>> entrim.sparsify(net, x, entrim.Widths({"0": 4})).model[0].out_features
    4
    """
    own = not isinstance(checkpoint_dir, CheckpointStore)
    calibration = calibration_for(budget, calibration)
    pruner = Pruner(
        model,
        images,
        selector=selector,
        reconstruction=reconstruction,
        include=include,
        exclude=exclude,
        calibration=calibration,
        example_inputs=example_inputs,
        callbacks=callbacks,
        checkpoint_dir=checkpoint_dir,
        seed=seed,
    )
    try:
        result = pruner.prune(budget)
    finally:
        pruner.close()
    if own:
        pruner.checkpoints.remove()
    return result


def calibration_for(budget: Target | None, calibration: Calibration) -> Calibration:
    """Return `calibration` with the hold-out share that `sparsify` uses for `budget`."""
    if isinstance(budget, Budget) and budget.needs_holdout and calibration.holdout is None:
        return replace(calibration, holdout=SELECTION_HOLDOUT)
    return calibration


def _overfitting_note(in_sample: float | None, unseen: Estimate | None) -> str | None:
    """Return the explanation of a much larger error on unseen images."""
    if in_sample is None or unseen is None:
        return None
    if unseen.low < SMALL_ERROR or LARGE_GAP * in_sample >= unseen.low:
        return None
    return (
        f"the error is {in_sample:.1%} on the images that the weights were fitted on, but "
        f"{unseen.value:.1%} on unseen images, because the weights are fitted too closely: "
        "pass more images, a larger ridge, or a milder target"
    )


def _group_statistics(statistics: LayerStatistics, group: Group) -> GroupStatistics:
    return GroupStatistics(
        group=group,
        moments=tuple(statistics.moments(group)),
        weights=tuple(statistics.weights(group)),
        generator=statistics.forward.drawing(f"choice of {group.name}"),
    )


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


def _ranked_keys(name: str) -> tuple[str, str]:
    """Return the checkpoint keys of a group's removal order and of its divergences."""
    return f"ranking of {name}", f"divergence of {name}"


def _check_type(name: str, value: Any, expected_type: type) -> Any:
    if isinstance(value, expected_type) or (value is None and expected_type is Reconstruction):
        return value
    raise BadSettingError(
        f"{name} must be an entrim.{expected_type.__name__}, got {type(value).__name__}"
    )


def _check_seed(seed: object) -> int:
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise BadSettingError(f"seed must be a non-negative integer, got {seed!r}")
    return seed


def _digest(*texts: str) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()
