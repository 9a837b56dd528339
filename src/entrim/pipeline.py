"""The complete pipeline: `Pruner` collects statistics once and prunes to any number of targets."""

import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from itertools import accumulate, chain
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from entrim.allocation.allocate import Allocator, SelectedPoint, Selection, check_holdout
from entrim.allocation.latency import OperationTimes
from entrim.calibration.collect import LayerStatistics, Pass, check_images
from entrim.calibration.consumers import BoundConsumer
from entrim.calibration.data import CalibrationData, Images, read_images
from entrim.calibration.tensor_store import Scratch, TensorStore
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
    check_seed,
    check_type,
    explain_options,
    to_plain,
)
from entrim.display.bars import make_display
from entrim.distributed.world import World
from entrim.entropic.solution import Part
from entrim.errors import (
    BadImagesError,
    BadSettingError,
    CalibrationWarning,
    NothingCutWarning,
)
from entrim.federated.network_moments import NetworkMoments
from entrim.federated.prune import prune_from_moments
from entrim.graph.channel_graph import ChannelGraph, Group
from entrim.graph.eager import (
    ExampleInputs,
    call,
    copy_without_hooks,
    isolate_random_state,
    leaves,
    move_inputs,
    neutral_context,
    samples,
    unwrap,
)
from entrim.metrics import (
    AgreementBound,
    Kind,
    compare,
    holdout_record,
    mirroring_helps,
    output_kinds,
)
from entrim.planning.estimate import RunEstimate, expected_stages
from entrim.planning.workload import ERROR_IMAGES, Work, Workload
from entrim.reconstruction.layer import Cached, LayerFit, LayerUpdate
from entrim.reconstruction.sequential import (
    reconstruct,
    reconstruction_plan,
    removed_blocks,
    removed_from,
)
from entrim.reconstruction.views import ENOUGH_IMAGES, add_views, mixtures_for
from entrim.records import Guarantee, Holdout, LayerRecord, Record, Size
from entrim.results import (
    SparsifyResult,
    budget_warnings,
    group_records,
    normalization_notes,
    nothing_pruned,
    now,
    size_record,
    tradeoff_records,
    versions,
)
from entrim.selection.base import (
    ChannelSelection,
    GroupStatistics,
    GroupTarget,
    Selector,
    group_statistics,
)
from entrim.selection.entropic import select_channels, stronger_penalty
from entrim.selection.targets import TargetResolver, describe_selector
from entrim.storage.checkpoint import CheckpointStore, fingerprint, identity_of
from entrim.surgery.plan import Plan
from entrim.surgery.prune import PrunedModel, prune, values_of
from entrim.surgery.trace import trace

EXAMPLES = 4
"""Number of images with which a network is traced if no example inputs are given."""
TYPES = (ChannelSelection, Part, LayerUpdate, LayerFit, AgreementBound, OperationTimes)
"""Dataclasses in checkpoints."""


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
        training: a tensor, a list of images, a Dataset, a DataLoader or any iterable of batches.
        Batches are read once and kept in memory or on disk. Labels are ignored, and a dict is
        passed to the network as keyword arguments.
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
        Callbacks that receive progress events. By default, progress is shown if a person is
        watching: in a terminal and in a notebook; `()` disables it.
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

    @explain_options
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
        self.reconstruction = check_type("reconstruction", reconstruction, Reconstruction)
        self.calibration = check_type("calibration", calibration, Calibration)
        self.resolver = TargetResolver.of(selector, self.reconstruction, include, exclude)
        self.seed = check_seed(seed)
        self.world = World.current()
        self.progress = Progress.of(callbacks if self.world.is_root else (), make_display)
        self.checkpoints = CheckpointStore.at(checkpoint_dir)
        self.checkpoints.world = self.world
        self.checkpoints.types = {kind.__name__: kind for kind in TYPES}
        folder = calibration.scratch_dir
        self.scratch = Scratch(
            None if folder is None else Path(folder),
            limit=calibration.scratch_limit,
            memory_limit=calibration.stored_memory,
        )
        self.images = read_images(
            images,
            self.model,
            store=TensorStore(calibration.memory_limit // 2, self.scratch),
            batch_size=calibration.batch_size,
            batch_to_inputs=calibration.batch_to_inputs,
            world=self.world,
            sharded=calibration.sharded,
        )
        if self.images.count == 1:
            raise BadImagesError("there is only one image: pass a few hundred")
        held = calibration.holdout_size(self.images.count)
        self.fitting_images, self.holdout_images = self.images.split(held, seed)
        first = self.fitting_images.batch(slice(0, EXAMPLES))
        self.example_inputs: ExampleInputs = (
            first if example_inputs is None else move_inputs(example_inputs, self.images.device)
        )
        self.is_closed = False
        self.fits: list[LayerFit] = []
        """The layers that the last reconstruction refitted."""
        self._data_notes: list[str] = []

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
        self.images.close()
        if "statistics" in self.__dict__:
            self.statistics.close()
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
        with self.progress.run("sparsify"):
            return self._prune(target)

    def _prune(self, target: Target | None) -> SparsifyResult:
        self._check_target(target)
        with isolate_random_state():  # a layer may draw random numbers in eval mode too
            torch.manual_seed(self._run_seed or 0)
            alone = self.world.size == 1
            identity = {} if self.checkpoints.folder is None and alone else self._identity
            self.world.check_equal({**identity, "target": str(to_plain(target))})
            with self.checkpoints.open(identity) as finished:
                begin = time.perf_counter()
                self._expect(target)
                if finished:
                    self.progress.step("resume", "interrupted run", finished, finished, "restored")
                selection = self.select(target)
                stability = self._bootstrap(target, selection)
                pruned = self.apply(selection)
                if not pruned.plan.kept and not pruned.plan.removed_blocks:
                    self._warn_nothing_pruned(target, selection)
                self.progress.notes += self.world.traffic.notes(time.perf_counter() - begin)
                return self._result(target, selection, stability, pruned)

    def _expect(self, target: Target | None) -> None:
        """Let the progress of the run show its share and its remaining time."""
        if not self.progress.callbacks:
            return
        _ = self.statistics  # its warnings are shown
        known: set[str] = set()
        if "allocator" in self.__dict__ and (target is None or isinstance(target, Budget)):
            known = self.allocator.finished_stages
        with isolate_random_state(), self.progress.muted(), warnings.catch_warnings():
            warnings.simplefilter("ignore", CalibrationWarning)
            targets = self.group_targets(target)
            groups = self.prunable_groups(targets)
            expected = expected_stages(self.workload, target, groups, targets, known)
        self.progress.expect(expected)

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
            return RunEstimate.of(
                self.workload,
                target,
                self.prunable_groups(targets),
                targets,
                trace_seconds=self.progress.seconds.get("trace", 0.0),
                stored=(self.images.stored_bytes, self.scratch.used),
            )

    @cached_property
    def graph(self) -> ChannelGraph:
        """The coupled and frozen channels of the network."""
        with isolate_random_state(), self.progress.stage("trace"):
            graph = trace(self.model, self.example_inputs)
            self.progress.step("trace", type(self.model).__name__, 1, 3, work=(1, 2))
            return graph

    @cached_property
    def statistics(self) -> LayerStatistics:
        """The consumers of all groups and their Gram matrices, collected on demand."""
        graph = self.graph
        with isolate_random_state(), self.progress.stage("trace"):
            found = self._statistics_on(self.fitting_images, self._run_seed)
            name = type(self.model).__name__
            self.progress.step("trace", name, 2, 3, "program of a batch", work=(1, 2))
            warning = check_images(found.forward)
            groups = f"{len(graph.groups)} group{'s' * (len(graph.groups) != 1)}"
            self.progress.step("trace", name, 3, 3, groups, work=(2, 2))
        if warning is not None:
            self.progress.warn(warning, CalibrationWarning)
        self._data_notes = list(self.progress.notes)
        return found

    @cached_property
    def reconstruction_pass(self) -> Pass:
        """The images of sequential refits: with mirror images if the network is invariant.

        Mixtures of the images are added if there are few.
        """
        forward, config = self.statistics.forward, self.reconstruction
        if config is None or not config.is_sequential:
            return forward
        mirrored = self._is_mirrored
        mixtures = mixtures_for(config, forward, mirrored=mirrored)
        return add_views(forward, mirrored=mirrored, mixtures=mixtures)

    @cached_property
    def _is_mirrored(self) -> bool:
        """Whether layers are refitted on mirror images, too."""
        config = self.reconstruction
        if config is None or not config.is_sequential:
            return False
        batches = self.fitting_images.batches(self.calibration.batch_size)
        helps, note = mirroring_helps(self.model, batches, self.output_kinds, config.mirror)
        if note is not None:
            self._data_notes.append(note)
            self.progress.notes.append(note)
        return helps

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
            return self.allocator.allocate(target, targets)
        groups = self.prunable_groups(targets)
        keys = {group.name: f"selection in {group.name} for {target!r}" for group in groups}
        known = {group.name: self.checkpoints.get(keys[group.name]) for group in groups}
        own = [
            group
            for number, group in enumerate(groups)
            if known[group.name] is None and self.world.owns(number)
        ]
        self._collect_consumers(self.statistics.consumers_of(*own))
        report = self._steps("select", self.workload.selection(groups, targets))
        with self.progress.stage("select"):
            restored = [(name, one) for name, one in known.items() if one is not None]
            selected = ((g.name, self._select_in(g, targets[g.name])) for g in own)
            for name, one in chain(restored, self.world.exchange(selected)):
                if known[name] is None:
                    self.checkpoints.put(keys[name], one)
                known[name] = one
                kept = f"{len(one.kept)} of {self.graph.group(name).channels}"
                report(name, kept, keys[name], is_final=True)
        return Selection(known, targets)

    @neutral_context()
    @isolate_random_state()
    def apply(self, selection: Selection) -> PrunedModel:
        """Return the network on the selected channels: reconstructed, pruned and verified."""
        with self.progress.stage("reconstruct"):
            plan = self._reconstruct(selection.channels)
        with self.progress.stage("prune"):
            name = type(self.model).__name__
            sliced = partial(self.progress.step, "prune", name, 1, 2, "sliced", work=(1, 2))
            pruned = prune(
                self.model, plan, self.example_inputs, graph=self.graph, on_sliced=sliced
            )
            detail = f"verified to {pruned.proof.final:.0e}"
            self.progress.step("prune", name, 2, 2, detail, work=(2, 2))
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
            counts = self.images.count, self.holdout_images.count
            check_holdout(target, self.calibration, *counts, self.output_kinds)

    def group_targets(self, target: Target | None) -> dict[str, GroupTarget]:
        """Return the target of every included group; excluded groups keep all channels."""

        def has_single_consumer(group: Group) -> bool:
            return self.statistics.has_single_consumer(group)

        return self.resolver.group_targets(target, self.graph, has_single_consumer)

    def prunable_groups(self, targets: Mapping[str, GroupTarget]) -> list[Group]:
        """Return the groups of `targets` whose statistics can be collected; warn about others."""
        solved = {name for name, target in targets.items() if target.needs_solution}
        found, large = self.statistics.collectable(targets, solved)
        if large:
            self.progress.warn(
                "not pruned, because the second moments of their consumers exceed memory_limit="
                f"{self.calibration.memory_limit:,} bytes: {', '.join(sorted(large))}; raise "
                "memory_limit, or pool before flattening",
                CalibrationWarning,
            )
        return found

    def collect(self, groups: Iterable[Group]) -> None:
        """Collect the statistics of `groups` that are missing, in as few passes as fit.

        This rank executes all batches, so that other ranks need not call it too.
        """
        self._collect_consumers(self.statistics.consumers_of(*groups), World())

    def group_statistics(self, group: Group) -> GroupStatistics:
        """Return the collected statistics of one group, as selectors use them."""
        return group_statistics(self.statistics, group)

    @cached_property
    def workload(self) -> Workload:
        """The operations of the stages."""
        config = self.reconstruction
        return Workload(
            self.statistics,
            self.calibration,
            refits=config is not None and config.refits,
            is_sequential=config is not None and config.is_sequential,
            relaxation=0 if config is None else config.relaxation,
            example_images=samples(self.example_inputs),
            holdout_images=self.holdout_images.count,
            views=self.reconstruction_pass.views,
        )

    @cached_property
    def allocator(self) -> Allocator:
        """Ranks channels, measures sensitivities and allocates widths under budgets."""
        return Allocator(
            model=self.model,
            example_inputs=self.example_inputs,
            statistics=self.statistics,
            groups=self.prunable_groups(self.group_targets(None)),
            selector=self.resolver.selector_for(None),
            calibration=self.calibration,
            ridge=None if self.reconstruction is None else self.reconstruction.ridge,
            kinds=self.output_kinds,
            holdout=self.holdout_images,
            workload=self.workload,
            progress=self.progress,
            checkpoints=self.checkpoints,
            collect=self._collect_consumers,
            reconstruct=self._tensors,
            plan=self._reconstruct,
            world=self.world,
        )

    # Steps

    def _select_in(self, group: Group, target: GroupTarget) -> ChannelSelection:
        return select_channels(target, self.group_statistics(group))

    def _tensors(
        self,
        selection: Mapping[str, ChannelSelection],
        forward: Pass | None = None,
        on_layer: Callable[[LayerFit], None] = lambda _: None,
        cached: Cached = lambda _, run: run(),
        world: World = World(),  # noqa: B008
    ) -> dict[str, Tensor]:
        """Return all tensors after the reconstruction on the images of `forward`."""
        return reconstruct(
            self.statistics,
            selection,
            self.reconstruction,
            forward=self.reconstruction_pass if forward is None else forward,
            collect=partial(self._collect_consumers, world=world),
            on_layer=on_layer,
            cached=cached,
            world=world,
        )

    def _reconstruct(self, selection: Mapping[str, ChannelSelection]) -> Plan:
        """Return the plan with new weights for all changed layers, and report every layer."""
        kept = removed_from(self.graph, selection)
        total = len(self.statistics.consumers)
        self.fits = []
        works = self.workload.reconstruction_of({name: len(units) for name, units in kept.items()})
        finished = dict(zip(works, accumulate(work.total for work in works.values()), strict=True))
        every = max(finished.values(), default=0.0)
        removed = removed_blocks(self.graph, selection)
        prefix = f"reconstruction on {sorted(kept.items())}: "
        if removed:
            prefix = f"reconstruction on {sorted(kept.items())} without {sorted(removed)}: "

        def cached(layer: str, run: Callable[[], LayerUpdate]) -> LayerUpdate:
            return self.checkpoints.get_or_compute(prefix + layer, run)

        def on_layer(fit: LayerFit) -> None:
            self.fits.append(fit)
            self.progress.step(
                "reconstruct",
                fit.layer,
                len(self.fits),
                total,
                f"error {fit.error:.1%} of the variance",
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

        tensors = self._tensors(selection, None, on_layer, cached, self.world)
        self._note_fewer_images()
        if len(self.fits) < total:  # the other layers have the same inputs and targets as before
            done = f"{len(self.fits)} of {total} layers refitted"
            name = type(self.model).__name__
            self.progress.step("reconstruct", name, total, total, done, work=(every, every))
        return reconstruction_plan(self.statistics, selection, tensors)

    def _note_fewer_images(self) -> None:
        """Add a note about the layers that were refitted on a part of the images."""
        some = {fit.layer: fit.images for fit in self.fits if fit.images is not None}
        if some:
            least, (first, *_, last) = min(some.values()), [*some, *some]
            self.progress.notes.append(
                f"the refits of the layers {first} to {last} use {least:,} or more of "
                f"{self.reconstruction_pass.images:,} images, mirror images included, because the "
                "activations of all exceed memory_limit and scratch_limit"
            )

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
                        targets[group.name], group_statistics(sample, group)
                    ).kept
                    for group in groups
                }

    def _collect_consumers(
        self, consumers: Iterable[BoundConsumer], world: World | None = None
    ) -> None:
        """Collect missing statistics, together with the ranks of `world`, by default all."""
        together = self.world if world is None else world
        wanted, collection = list(consumers), self.statistics.collection
        with self.progress.stage("collect"):
            needed = self.statistics.ranks_that_need(wanted, together)
            readers = [self.statistics.consumers[layer] for layer in needed]
            passes = [work.total for work in self.workload.collect(readers)]
            sizes, images = collection.batch_sizes, collection.images
            finished = list(accumulate(each * size / images for each in passes for size in sizes))

            def on_batch(done: int, total: int) -> None:
                work = finished[-(-done * len(finished) // total) - 1], finished[-1]
                self.progress.step("collect", f"batch {done}", done, total, work=work)

            self.statistics.collect_for(needed, on_batch, together)

    def _statistics_on(self, images: CalibrationData, seed: int | None) -> LayerStatistics:
        """Return empty statistics on `images`, and on their mirror images if there are few."""
        found = LayerStatistics.of(
            self.model,
            self.graph,
            images.batches(self.calibration.batch_size),
            memory_limit=self.calibration.memory_limit,
            scratch=self.scratch,
            n_positions=self.calibration.n_positions,
            seed=seed,
            capacity=self.calibration.stored_memory
            + self.calibration.scratch_limit
            - self.images.stored_bytes,
        )
        if 2 * images.count > ENOUGH_IMAGES or not self._is_mirrored:
            return found
        return replace(found, collection=add_views(found.forward, mirrored=True))

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
        reason = nothing_pruned(target, selection.channels)
        if selection.channels and isinstance(target, EntropicPenalty):
            groups = [self.graph.group(name) for name in selection.channels]
            self.collect(groups)
            reason = stronger_penalty(self.statistics, groups, selection.targets)
        self.progress.warn(reason, NothingCutWarning)

    def _steps(self, stage: str, works: Mapping[str, Work]) -> Callable[..., None]:
        totals = {name: work.total for name, work in works.items()}
        return self.progress.steps(stage, totals, self.checkpoints.restored)

    # The record

    def _result(
        self,
        target: Target | None,
        selection: Selection,
        stability: Mapping[str, float],
        pruned: PrunedModel,
    ) -> SparsifyResult:
        """Measure the pruned network, and describe the run."""
        proof, unseen = pruned.proof, self._measured_images(target)
        before, after, error, holdout = self._measure(target, selection, pruned.model)
        if holdout is not None and holdout.note is not None:
            self.progress.notes.append(holdout.note)
        self.progress.notes.extend(normalization_notes(self.graph, pruned.plan.kept))
        if isinstance(target, Budget) and selection.point is not None:
            limits = target.limits({kind: getattr(before, kind) for kind in SIZES})
            for note, category in budget_warnings(target, limits, selection.point, after):
                self.progress.warn(note, category)
        record = Record(
            model=type(self.model).__name__,
            images=self.images.count,
            settings=self.settings(target),
            versions=versions(),
            groups=group_records(self.statistics, selection.targets, selection.channels, stability),
            layers=tuple(LayerRecord(**asdict(fit)) for fit in self.fits),
            frozen=tuple((f.layer, f.channels, f.reason) for f in self.graph.frozen),
            tradeoff=tradeoff_records(selection.point, selection.channels),
            before=before,
            after=after,
            proof={"sliced": proof.sliced, "final": proof.final, "tolerance": proof.tolerance},
            seconds=dict(self.progress.seconds),
            notes=tuple(self.progress.notes),
            error=error,
            holdout=holdout,
            holdout_digests=tuple(unseen.digests()),
            original=self._fingerprint,
            images_checksum=self.images.checksum(),
            seed=self.seed if self.draws else None,
            threads=torch.get_num_threads(),
            date=now(),
            removed_blocks=tuple(pruned.plan.removed_blocks),
            pruned=fingerprint(values_of(pruned.model).values()),
        )
        self.progress.seconds, self.progress.notes = {}, list(self._data_notes)
        self.progress.report_result(record.settings, record.metrics)
        return SparsifyResult(
            model=pruned.model,
            plan=pruned.plan,
            record=self.world.from_root(lambda: record),
            original=self.model,
            fitting_images=self.fitting_images.in_memory(),
            holdout_images=unseen.in_memory(),
        )

    def _measure(
        self, target: Target | None, selection: Selection, small: nn.Module
    ) -> tuple[Size, Size, float | None, Holdout | None]:
        """Return both sizes, the error on fitting images, and the comparison on hold-out images."""
        with self.progress.stage("measure"):
            report = self._steps("measure", self.workload.measurement())
            before = self.world.from_root(partial(size_record, self.model, self.example_inputs))
            report("original size", "")
            after = self.world.from_root(partial(size_record, small, self.example_inputs))
            report("pruned size", "")
            some = self.statistics.forward.first(ERROR_IMAGES).batches
            apart = compare(small, self.model, some, self.output_kinds).error()
            error = None if apart is None else apart.value
            detail = "outputs compared" if error is None else f"outputs differ by {error:.2%}"
            report("fitting images", detail)
            holdout = self._compare_on_holdout(small, error, target, selection.point)
            report("hold-out images", detail)
        return before, after, error, holdout

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
                holds=target == self.allocator.first_agreement,
            )
        batches = images.batches(self.calibration.batch_size)
        return holdout_record(
            compare(small, self.model, batches, self.output_kinds),
            in_sample,
            recognized=self.calibration.outputs == "auto",
            selection_images=selected,
            guarantee=guarantee,
        )

    def _measured_images(self, target: Target | None) -> CalibrationData:
        """Return the hold-out images on which no widths are selected for `max_error`."""
        halved = isinstance(target, Budget) and target.max_error is not None
        return self.holdout_images.halves()[1] if halved else self.holdout_images

    def settings(self, target: Target | None) -> dict[str, Any]:
        """Return the options of a run as plain data."""
        return {
            "budget": to_plain(target),
            "selector": describe_selector(self.resolver.selector),
            "reconstruction": to_plain(self.reconstruction),
            "include": self.resolver.include,
            "exclude": self.resolver.exclude,
            "calibration": to_plain(self.calibration),
        }

    @cached_property
    def _fingerprint(self) -> str:
        """The fingerprint of the original network."""
        return fingerprint(self.statistics.forward.tensors.values())

    @cached_property
    def _identity(self) -> dict[str, str]:
        """Digests of everything except the target on which the results depend."""
        options = [self.settings(None), to_plain(getattr(self.resolver.selector, "__dict__", {}))]
        return identity_of(
            self.statistics.forward, self.images, self.example_inputs, options, self._run_seed
        )


@explain_options
def sparsify(
    model: nn.Module,
    images: Images | NetworkMoments,
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
    images : Tensor, iterable or NetworkMoments
        A few hundred images without labels, normalized as in the network's training. Or their
        second moments, from `collect` and `merge`: the target is then `Widths` or an
        `EntropicPenalty`, layers are refitted independently, and fields of `calibration` for images
        have no effect.
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
    if isinstance(images, NetworkMoments):
        checkpoints = CheckpointStore.at(checkpoint_dir)
        result = prune_from_moments(
            model,
            images,
            budget,
            resolver=TargetResolver.of(selector, reconstruction, include, exclude),
            reconstruction=reconstruction,
            calibration=calibration,
            example_inputs=example_inputs,
            progress=Progress.of(callbacks, make_display),
            checkpoints=checkpoints,
            seed=check_seed(seed),
        )
        if own:
            checkpoints.remove()
        return result
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
