"""Prune a network from the second moments of its layers, without images."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from entrim.calibration.collect import LayerStatistics
from entrim.calibration.consumers import BoundConsumer
from entrim.calibration.tensor_store import Scratch
from entrim.callbacks import Progress
from entrim.config import (
    Budget,
    Calibration,
    EntropicPenalty,
    Reconstruction,
    Target,
    to_plain,
)
from entrim.distributed.world import World
from entrim.entropic.solution import Part
from entrim.errors import BadSettingError, MomentsError, NothingCutWarning
from entrim.federated.network_moments import NetworkMoments, check_network, describe_network
from entrim.graph.channel_graph import ChannelGraph, Group
from entrim.graph.eager import ExampleInputs, isolate_random_state, neutral_context, unwrap
from entrim.reconstruction.layer import fit_on
from entrim.reconstruction.sequential import reconstruct, reconstruction_plan, removed_from
from entrim.records import LayerRecord, Record
from entrim.results import (
    SparsifyResult,
    group_records,
    normalization_notes,
    nothing_pruned,
    now,
    size_record,
    versions,
)
from entrim.selection.base import ChannelSelection, GroupTarget, group_statistics
from entrim.selection.entropic import select_channels, stronger_penalty
from entrim.selection.targets import TargetResolver, describe_selector
from entrim.storage.checkpoint import VERSIONS, CheckpointStore, fingerprint
from entrim.surgery.plan import Plan
from entrim.surgery.prune import prune, values_of
from entrim.surgery.trace import trace

WITHOUT_IMAGES = (
    "pruned from moments, without images: the outputs of the network were not compared; "
    "refresh(images) measures them"
)
"""The note in the record of every run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentsPruner:
    """Prune one network from its moments: the steps of `Pruner` that need no images."""

    model: nn.Module
    moments: NetworkMoments
    graph: ChannelGraph
    statistics: LayerStatistics
    """The statistics of the layers, with the sums of `moments`."""
    example_inputs: ExampleInputs
    resolver: TargetResolver
    reconstruction: Reconstruction | None
    calibration: Calibration
    progress: Progress
    checkpoints: CheckpointStore
    seed: int

    @classmethod
    def of(
        cls,
        model: nn.Module,
        moments: NetworkMoments,
        *,
        reconstruction: Reconstruction | None,
        example_inputs: ExampleInputs | None,
        progress: Progress,
        seed: int,
        **options: Any,
    ) -> "MomentsPruner":
        """Trace the network, and check that the moments belong to it."""
        model = unwrap(model)
        found = moments.example_inputs(model) if example_inputs is None else example_inputs
        with progress.stage("trace"):
            graph = trace(model, found)
            statistics = LayerStatistics.of(
                model, graph, [found], memory_limit=sys.maxsize, scratch=Scratch(), seed=seed
            )
            network = describe_network(model, statistics)
            check_network(moments, type(model).__name__, network, "do not fit together")
            for layer, gram in moments.fitting.items():
                statistics.store.put(layer, gram.sums)
                statistics.store.put((layer, "count"), gram.count)
        if reconstruction is not None and reconstruction.refits:
            reconstruction = replace(reconstruction, order="independent")
        return cls(
            model=model,
            moments=moments,
            graph=graph,
            statistics=statistics,
            example_inputs=found,
            reconstruction=reconstruction,
            progress=progress,
            seed=seed,
            **options,
        )

    def prune(self, target: Target) -> SparsifyResult:
        """Select channels, refit the layers independently, and verify the smaller network."""
        targets = self.resolver.group_targets(
            target, self.graph, self.statistics.has_single_consumer
        )
        groups = self._groups(targets)
        self.checkpoints.types = {kind.__name__: kind for kind in (ChannelSelection, Part)}
        with self.checkpoints.open(self._identity):
            selection = self._select(target, groups, targets)
            plan, layers = self._reconstruct(selection)
            with self.progress.stage("prune"):
                pruned = prune(self.model, plan, self.example_inputs, graph=self.graph)
            if not pruned.plan.kept:
                self._warn_nothing_pruned(target, groups, selection, targets)
            with self.progress.stage("measure"):
                sizes = [size_record(m, self.example_inputs) for m in (self.model, pruned.model)]
            self.progress.notes.append(WITHOUT_IMAGES)
            self.progress.notes.extend(normalization_notes(self.graph, pruned.plan.kept))
            record = Record(
                model=type(self.model).__name__,
                images=self.moments.images,
                settings=self._settings(target),
                versions=versions(),
                groups=group_records(self.statistics, targets, selection, {}),
                layers=tuple(layers),
                frozen=tuple((f.layer, f.channels, f.reason) for f in self.graph.frozen),
                tradeoff=(),
                before=sizes[0],
                after=sizes[1],
                proof={
                    "sliced": pruned.proof.sliced,
                    "final": pruned.proof.final,
                    "tolerance": pruned.proof.tolerance,
                },
                seconds=dict(self.progress.seconds),
                notes=tuple(self.progress.notes),
                original=self.moments.network["weights"],
                images_checksum=self.moments.checksum(),
                seed=self.seed if self.resolver.is_random else None,
                threads=torch.get_num_threads(),
                date=now(),
                pruned=fingerprint(values_of(pruned.model).values()),
            )
        return SparsifyResult(
            model=pruned.model, plan=pruned.plan, record=record, original=self.model
        )

    def _groups(self, targets: Mapping[str, GroupTarget]) -> list[Group]:
        """Return the groups of `targets`; raise a MomentsError for one without enough moments."""
        groups, _ = self.statistics.collectable(targets, ())
        for group in groups:
            for consumer in self.statistics.consumers_of(group):
                self._check_rows(group, consumer)
        return groups

    def _check_rows(self, group: Group, consumer: BoundConsumer) -> None:
        layer, columns = consumer.spec.layer, consumer.columns
        found = self.moments.fitting.get(layer)
        lack = "the moments do not contain this layer"
        if found is not None:
            lack = f"the moments are sums over {found.count:,} rows only"
        if found is None or found.count < columns:
            raise MomentsError(
                f"{group.name} cannot be pruned without images: {layer} reads its channels with "
                f"{columns:,} columns, and {lack}; merge more parts, exclude {group.name!r}, or "
                "pass images"
            )

    def _select(
        self, target: Target, groups: list[Group], targets: Mapping[str, GroupTarget]
    ) -> dict[str, ChannelSelection]:
        found: dict[str, ChannelSelection] = {}
        with self.progress.stage("select"):
            for group in groups:
                key = f"selection in {group.name} for {target!r}"
                work = partial(self._select_in, group, targets[group.name])
                found[group.name] = self.checkpoints.get_or_compute(key, work)
                kept = f"{len(found[group.name].kept)} of {group.channels}"
                self.progress.step(
                    "select", group.name, len(found), len(groups), kept, is_final=True
                )
        return found

    def _select_in(self, group: Group, target: GroupTarget) -> ChannelSelection:
        return select_channels(target, group_statistics(self.statistics, group))

    def _reconstruct(
        self, selection: Mapping[str, ChannelSelection]
    ) -> tuple[Plan, list[LayerRecord]]:
        """Return the plan, and the errors of the layers that lose input channels."""
        with self.progress.stage("reconstruct"):
            tensors = reconstruct(
                self.statistics,
                selection,
                self.reconstruction,
                forward=self.statistics.forward,
                collect=lambda _: None,
            )
            original = self.statistics.forward.tensors
            indices = self.graph.kept_indices(removed_from(self.graph, selection))
            changed = [
                consumer
                for consumer in self.statistics.consumers.values()
                if consumer.spec.dim in indices.get(consumer.spec.weight, {})
            ]
            layers = []
            for consumer in changed:
                layer = consumer.spec.layer
                fit, holdout = (
                    fit_on(consumer, sums[layer], indices, original, tensors) if sums else None
                    for sums in (self.moments.fitting, self.moments.holdout)
                )
                assert fit is not None
                unseen = None if holdout is None else holdout.error
                layers.append(
                    LayerRecord(
                        layer=layer,
                        rows=fit.rows,
                        columns=fit.columns,
                        error=fit.error,
                        holdout_error=unseen,
                    )
                )
                detail = f"error {fit.error if unseen is None else unseen:.1%} of the variance"
                self.progress.step(
                    "reconstruct", layer, len(layers), len(changed), detail, is_final=True
                )
            return reconstruction_plan(self.statistics, selection, tensors), layers

    def _warn_nothing_pruned(
        self,
        target: Target,
        groups: list[Group],
        selection: Mapping[str, ChannelSelection],
        targets: Mapping[str, GroupTarget],
    ) -> None:
        reason = nothing_pruned(target, selection)
        if selection and isinstance(target, EntropicPenalty):
            reason = stronger_penalty(self.statistics, groups, targets)
        self.progress.warn(reason, NothingCutWarning)

    def _settings(self, target: Target | None) -> dict[str, Any]:
        return {
            "budget": to_plain(target),
            "selector": describe_selector(self.resolver.selector),
            "reconstruction": to_plain(self.reconstruction),
            "include": self.resolver.include,
            "exclude": self.resolver.exclude,
            "calibration": to_plain(self.calibration),
            "moments": [to_plain(one) for one in self.moments.image_sets],
        }

    @property
    def _identity(self) -> dict[str, str]:
        """Digests of everything except the target on which the result depends."""
        return {
            "network": json.dumps(dict(self.moments.network)),
            "images": self.moments.checksum(),
            "settings": json.dumps(self._settings(None)),
            "seed": str(self.seed),
            "versions": str({name: versions()[name] for name in VERSIONS}),
        }


def check_needs_no_images(
    target: Target | None, reconstruction: Reconstruction | None, calibration: Calibration
) -> None:
    """Raise a BadSettingError for a target or an option that needs images."""
    what = None
    if target is None or isinstance(target, Budget):
        what = "a budget, for which the sensitivity of the outputs is measured,"
    elif reconstruction is not None and reconstruction.order == "sequential":
        what = 'order="sequential", in which every layer is refitted on its new inputs,'
    elif reconstruction is not None and reconstruction.batchnorm == "reestimate":
        what = 'batchnorm="reestimate"'
    elif calibration.n_bootstrap:
        what = "n_bootstrap"
    if what is not None:
        raise BadSettingError(
            f"{what} needs images, and moments contain none: pass Widths or an EntropicPenalty "
            "with independent refits, or images"
        )


@neutral_context()
@isolate_random_state()
def prune_from_moments(
    model: nn.Module, moments: NetworkMoments, target: Target | None, **options: Any
) -> SparsifyResult:
    """Return the pruned network; `options` are those of `MomentsPruner.of`."""
    check_needs_no_images(target, options["reconstruction"], options["calibration"])
    if World.current().size > 1:
        raise BadSettingError("moments need one process: prune with them on one rank")
    assert target is not None
    options["resolver"].check(target)
    progress = options["progress"]
    with progress.run("sparsify"):
        pruner = MomentsPruner.of(model, moments, **options)
        return pruner.prune(target)
