"""Reconstruct the weights of the kept channels: every layer independently, or all in order.

In sequential order two executions advance through the network in lock-step, the original and the
reconstructed one. At every layer, the reconstructed execution provides the inputs, and the original
execution provides the outputs to reproduce. The regression target is the difference between these
outputs and those of the current weights: this avoids cancellation, and the ridge shrinks toward the
current weights. Where the output is added to a skip connection, the target also compensates for the
change of the skip connection, and for what the branches of removed blocks behind it added (residual
correction).
"""

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import torch
from jaxtyping import Float, Int
from torch import Tensor, fx

from entrim.calibration.collect import (
    ChannelStats,
    LayerStatistics,
    Pass,
    batchnorm_of,
    rows_for,
)
from entrim.calibration.consumers import BoundConsumer, KeptIndices
from entrim.calibration.executor import Execution, Program, advance, value_bytes
from entrim.calibration.patch_gram import patches
from entrim.config import Reconstruction
from entrim.distributed.world import World
from entrim.entropic.least_squares import Refit
from entrim.entropic.moments import Moments
from entrim.entropic.observations import Observations
from entrim.graph.channel_graph import ChannelGraph, ResidualBlock, tensors_in
from entrim.reconstruction.layer import (
    RIDGES,
    Cached,
    LayerFit,
    LayerUpdate,
    ResidualMoments,
    ResidualRows,
    apply_update,
    as_fit,
    fit_on,
    masked_tensors,
    modified_tensors,
    place_solution,
    refit_layer,
    select_ridge,
    solve_layer,
)
from entrim.reconstruction.output_path import (
    MISSING,
    OutputPath,
    added_to,
    residual_correction,
)
from entrim.reconstruction.relaxation import RelaxedRows
from entrim.reconstruction.views import judging_images
from entrim.selection.base import ChannelSelection
from entrim.surgery.plan import Plan, part_of


def reconstruct(
    statistics: LayerStatistics,
    selection: Mapping[str, ChannelSelection],
    config: Reconstruction | None,
    *,
    forward: Pass,
    collect: Callable[[Sequence[BoundConsumer]], None],
    on_layer: Callable[[LayerFit], None] = lambda _: None,
    cached: Cached = lambda _, compute: compute(),
    world: World = World(),  # noqa: B008
) -> dict[str, Tensor]:
    """Return all tensors in full size, with zeros in the columns of removed channels.

    If `config` is None, the kept weights are not changed. `forward` has the images of sequential
    refits. `collect` provides the Gram matrices of layers that are refitted on the original
    activations. `cached` may restore the update of a layer, and `on_layer` is called after each
    refitted layer. Each rank of `world` executes some of the batches of sequential refits.
    """
    graph = statistics.graph
    kept = removed_from(graph, selection)
    removed = [graph.block(name) for name in removed_blocks(graph, selection)]
    absent = tensors_in(removed)
    indices = graph.kept_indices(kept)
    tensors = masked_tensors(graph, indices, statistics.forward.tensors, removed)
    if config is None:
        return tensors
    consumers = {
        layer: consumer
        for layer, consumer in statistics.consumers.items()
        if consumer.spec.weight not in absent
    }
    if config.refits:
        chosen = [
            consumer
            for consumer in consumers.values()
            if consumer.spec.dim in indices.get(consumer.spec.weight, {})
            and (not config.is_sequential or len(consumer.call_sites) > 1)
        ]
        _refit_independently(
            statistics, chosen, indices, tensors, config.ridge, collect, on_layer, cached
        )
    else:
        _place_solutions(statistics, selection, kept, tensors)
    reestimate = config.batchnorm == "reestimate"
    if (kept or removed) and (config.is_sequential or reestimate):
        tensors = reconstruct_sequentially(
            forward,
            consumers if config.is_sequential else {},
            indices,
            tensors,
            ridge=config.ridge,
            correct_residual=config.residual_correction,
            relaxation=config.relaxation,
            reestimate=reestimate,
            removed=removed,
            capacity=statistics.activation_capacity,
            on_layer=on_layer,
            cached=cached,
            world=world,
        )
    return tensors


def reconstruction_plan(
    statistics: LayerStatistics,
    selection: Mapping[str, ChannelSelection],
    tensors: Mapping[str, Tensor],
) -> Plan:
    """Return the plan of a network with the `tensors` that `reconstruct` returned."""
    graph, original = statistics.graph, statistics.forward.tensors
    kept, removed = removed_from(graph, selection), removed_blocks(graph, selection)
    indices, absent = graph.kept_indices(kept), tensors_in(map(graph.block, removed))
    weights = {
        name: part_of(new, indices.get(name, {}))
        for name, new in tensors.items()
        if new is not original[name] and name not in absent
    }
    return Plan(kept, weights, removed)


def removed_from(
    graph: ChannelGraph, selection: Mapping[str, ChannelSelection]
) -> dict[str, tuple[int, ...]]:
    """Return the kept channels of the groups that lose channels, except in removed blocks."""
    return {
        name: found.kept
        for name, found in selection.items()
        if 0 < len(found.kept) < graph.group(name).channels
    }


def removed_blocks(
    graph: ChannelGraph, selection: Mapping[str, ChannelSelection]
) -> tuple[str, ...]:
    """Return the residual blocks in which no channel is kept."""
    return graph.emptied_blocks({name: len(found.kept) for name, found in selection.items()})


def _refit_independently(
    statistics: LayerStatistics,
    consumers: Sequence[BoundConsumer],
    kept_indices: KeptIndices,
    tensors: dict[str, Tensor],
    ridge: float | None,
    collect: Callable[[Sequence[BoundConsumer]], None],
    on_layer: Callable[[LayerFit], None],
    cached: Cached,
) -> None:
    """Refit layers on the original activations, in place in `tensors`."""
    original = statistics.forward.tensors

    def refit(consumer: BoundConsumer) -> LayerUpdate:
        collect(consumers)
        gram = statistics.gram(consumer.spec.layer)
        refit_layer(consumer, gram, kept_indices, original, tensors, ridge)
        fit = fit_on(consumer, gram, kept_indices, original, tensors)
        return LayerUpdate(fit, {name: tensors[name] for name in modified_tensors(consumer)})

    for consumer in consumers:
        update = cached(consumer.spec.layer, partial(refit, consumer))
        update.apply(tensors)
        on_layer(update.fit)


def _place_solutions(
    statistics: LayerStatistics,
    selection: Mapping[str, ChannelSelection],
    kept: Mapping[str, Sequence[int]],
    tensors: dict[str, Tensor],
) -> None:
    """Write the entropic solution of every pruned group into its consumers."""
    for name in kept:
        group, parts = statistics.graph.group(name), list(selection[name].parts)
        for consumer in statistics.consumers_of(group) if parts else []:
            own = [parts.pop(0) for _ in range(consumer.geometry.groups)]
            place_solution(consumer, group, own, tensors)


def reconstruct_sequentially(
    task: Pass,
    readers: Mapping[str, BoundConsumer],
    kept_indices: KeptIndices,
    start: Mapping[str, Tensor],
    *,
    ridge: float | None,
    correct_residual: bool = True,
    relaxation: int = 0,
    reestimate: bool = False,
    removed: Sequence[ResidualBlock] = (),
    capacity: int | float = math.inf,
    on_layer: Callable[[LayerFit], None] = lambda _: None,
    cached: Cached = lambda _, compute: compute(),
    world: World = World(),  # noqa: B008
) -> dict[str, Tensor]:
    """Return the tensors of the reconstructed network in full size, starting from `start`.

    Layers that are called more than once keep their weights of `start`, because the calls have
    different targets. The last layer of a block before `removed` blocks is also asked for what
    their branches added.

    The values that later layers need are stored for all batches. Where they exceed the capacity,
    fewer batches are used; the others follow when the values are small enough, so that no
    operation runs twice. Each rank of `world` executes its share of the batches, with all views of
    an image; with fewer batches than ranks, every rank executes all of them.
    """
    calls = {r.call_sites[0]: r for r in readers.values() if len(r.call_sites) == 1}
    with task.execution() as old:
        changed = [name for name in start if start[name] is not task.tensors[name]]
        new = old.branch(start, changed=changed)
        missing = removed_sums(old.program, removed) if correct_residual else {}
        norms = [p for p, node in enumerate(old.program.nodes) if batchnorm_of(old.program, node)]
        stops = sorted({*calls, *(norms if reestimate else ())})
        place, batches = 0, list[int]()
        rows = {at: relaxed_bytes(task, one) for at, one in calls.items() if relaxation}
        counts = batch_counts(task, stops, missing, capacity, rows)
        if min(counts, default=0) < world.size * task.views:
            world = World()
        own = {b for b in task.order if world.owns(b % (len(task.programs) // task.views))}
        for stop, count in zip(stops, counts, strict=True):
            advance([old, new], place, stop, [batch for batch in batches if batch in own])
            joining = sorted(set(task.order[:count]) - set(batches))
            mine = [batch for batch in joining if batch in own]
            store_missing_branches(old, missing, mine)
            advance([old, new], 0, stop, mine)
            place, batches = stop, sorted([*batches, *joining])
            if place in calls:
                residual = None
                if correct_residual:
                    residual = residual_correction(old, new, place, missing)
                if new.differs(place) or residual is not None:
                    reader, path = calls[place], OutputPath.of(old.program, place)
                    if not (correct_residual and path.is_known(old.program, place)):
                        path = OutputPath()
                    network = (task, batches, old, new, place, reader, kept_indices)
                    layer = LayerTask(*network, residual, path, missing, own, world)
                    update = cached(reader.spec.layer, partial(layer.run, ridge, relaxation))
                    update.apply(new.tensors)
                    new.changed.update(modified_tensors(reader))
                    on_layer(update.fit)
            if place in norms and reestimate:
                mine = [batch for batch in batches if batch in own]
                _reestimate(new, place, old.program.nodes[place], mine, world)
        return new.tensors


def batch_counts(
    task: Pass,
    stops: Sequence[int],
    ends: Mapping[int, int],
    capacity: int | float,
    rows: Mapping[int, int] | None = None,
) -> list[int]:
    """Return how many batches, in the order of `task`, are used at each of the positions `stops`.

    Their values that are still needed, of both networks, fit into `capacity` bytes at this position
    and all later ones, besides the bytes of `rows` at a position; the branches behind the positions
    in `ends` are stored, too.
    """
    largest = max(range(len(task.programs)), key=lambda batch: task.batch_sizes[batch])
    program, fitting = task.programs[largest], float(len(task.programs))
    branches = sum(value_bytes(program.nodes[start]) for start in ends)
    counts = list[int]()
    for stop in reversed(stops):
        output = value_bytes(program.nodes[stop])
        each = max(1, 2 * program.live_bytes(stop) + output + branches)
        left = capacity - (rows or {}).get(stop, 0)
        fitting = min(fitting, left / each - 1)  # the last values may fit into neither rest
        counts.append(max(task.views, int(fitting) // task.views * task.views))
    return counts[::-1]


def relaxed_bytes(task: Pass, reader: BoundConsumer) -> int:
    """Return the bytes of the rows that are stored to relax the targets of a layer, at most."""
    values = (reader.columns + 1) * reader.geometry.groups + 3 * reader.outputs
    return rows_for(reader.columns) * values * 4 if task.n_positions else 0


@dataclass(frozen=True, slots=True)
class LayerTask:
    """The refit of one layer on its inputs in the new execution to its original outputs."""

    task: Pass
    batches: Sequence[int]
    """The numbers of the batches that are used."""
    old: Execution
    new: Execution
    place: int
    reader: BoundConsumer
    kept_indices: KeptIndices
    correction: Callable[[int], Tensor] | None
    """What the outputs have to make up for behind the layer, by batch."""
    path: OutputPath
    missing: Collection[int]
    """Positions of the sums behind which branches are missing."""
    own: Collection[int]
    """The numbers of the batches that this rank executes."""
    world: World

    def run(self, ridge: float | None, rounds: int) -> LayerUpdate:
        """Refit the layer in the new execution, with `rounds` of relaxation; return the update."""
        reader, new = self.reader, self.new
        splits, variance, relaxed = self._collect(ridge, rounds)
        known = self._sum_over_ranks(splits)
        by_matrix = list(zip(*known, strict=True))
        totals = [reduce(operator.add, moments) for moments in by_matrix]
        ridges = self.world.from_root(
            lambda: [select_ridge(reader, moments, ridge) for moments in by_matrix]
        )

        def solve() -> list[Refit]:
            return [solve_layer(reader, *one) for one in zip(totals, ridges, strict=True)]

        if relaxed is None or any(map(math.isinf, ridges)):
            parts = self.world.from_root(solve)
        else:
            refits = relaxed.refit(reader, totals, ridges, rounds)
            parts = self.world.from_root(lambda: refits)
        if relaxed is not None:
            relaxed.close()
        apply_update(reader, parts, self.kept_indices, new.tensors)
        some = self.images if self.images < self.task.images else None
        rows = self.world.from_root(lambda: sum(one[0].count for one in known))
        fit = as_fit(reader, parts, rows, variance, some)
        return LayerUpdate(fit, {name: new.tensors[name] for name in modified_tensors(reader)})

    @property
    def images(self) -> int:
        """The number of images that are used."""
        return sum(self.task.batch_sizes[batch] for batch in self.batches)

    def _sum_over_ranks(
        self, splits: Sequence[ResidualMoments | ResidualRows]
    ) -> list[list[Moments | Observations]]:
        """Return the regression of every matrix of the layer, for each split that has rows.

        Only the first rank obtains them.
        """
        matrices = self.reader.geometry.groups
        own = [sums.moments() if sums.count else [None] * matrices for sums in splits]
        flat = self.world.sum_on_root([one for split in own for one in split])
        found = [flat[:matrices], flat[matrices:]]
        return [split for split in found if split and split[0] is not None]

    def _collect(
        self, ridge: float | None, rounds: int
    ) -> tuple[list[ResidualMoments | ResidualRows], float, RelaxedRows | None]:
        """Return the regressions of both splits, the variance of the targets and relaxed rows."""
        reader, new, weight_name = self.reader, self.new, self.reader.spec.weight
        inputs, outputs = reader.kept_channels(self.kept_indices)
        weight = part_of(new.tensors[weight_name], self.kept_indices.get(weight_name, {}))
        columns = reader.matrices(weight).shape[-1]
        by_rows = self.task.keeps_rows(reader, columns)
        single = ridge is None or ridge >= min(RIDGES)
        splits: list[ResidualMoments | ResidualRows] = [
            ResidualRows.of(reader)
            if by_rows
            else ResidualMoments.of(reader, weight, len(inputs), single=single)
            for _ in range(2)
        ]
        relaxed = self._relaxed_rows(outputs) if rounds and not by_rows else None
        stats = ChannelStats()
        generator = self.task.drawing(f"reconstruction of {reader.spec.layer}")
        for batch in self.batches:
            if batch not in self.own:  # the other ranks draw the same positions
                where = (reader, reader.inputs[0], batch, columns)
                is_drawn = relaxed is not None
                self.task.skip_positions(*where, generator, self.images, is_drawn=is_drawn)
                continue
            x = self._first(new.at(reader.inputs[0], batch), batch)
            every = [torch.arange(len(x))]
            split = _split_rows(self.task, batch, len(x)) if ridge is None else every
            sampled = self._sampled_positions(x, columns, generator, relaxed is not None)
            kept = x.index_select(-1 - len(reader.geometry.kernel), inputs.to(x.device))
            stay = outputs.to(x.device)
            if sampled is None:
                self._add_maps(batch, kept, stay, splits, split, stats)
            else:
                self._add_rows(batch, kept, stay, splits, split, stats, sampled, relaxed)
        return splits, float(stats.over_ranks(self.world).variance.sum()), relaxed

    def _sampled_positions(
        self, x: Tensor, columns: int, generator: torch.Generator, needs_rows: bool
    ) -> Int[Tensor, "N P"] | None:
        """Return the output positions of each image to use; None for all, without their rows."""
        sampled = self.task.sample_positions(self.reader, x, columns, generator, self.images)
        if sampled is not None or not needs_rows:
            return sampled
        every = self.reader.n_positions(x)
        drawn = -(-rows_for(columns) // self.images)
        count = min(drawn, every) if self.task.n_positions == "auto" else every
        order = torch.rand(len(x), every, generator=generator)
        return order.topk(count, 1).indices.to(x.device)

    def _add_maps(
        self,
        batch: int,
        kept: Tensor,
        stay: Int[Tensor, " M"],
        splits: Sequence[ResidualMoments | ResidualRows],
        split: Sequence[Tensor],
        stats: ChannelStats,
    ) -> None:
        """Add one batch at all positions."""
        axis = -1 - len(self.reader.geometry.kernel)
        self.old.run(self.place, batch)
        target = self._first(self.old.at(self.place, batch), batch)
        if self.correction is not None:
            target = target + self._first(self.correction(batch), batch)
        residual = target - self._first(self.new.compute(self.place, batch), batch)
        residual = residual.index_select(axis, stay)
        for sums, part in zip(splits, split, strict=False):
            sums.add(kept[part], residual[part])
        stats.add(target.index_select(axis, stay), axis)

    def _add_rows(
        self,
        batch: int,
        kept: Tensor,
        stay: Int[Tensor, " M"],
        splits: Sequence[ResidualMoments | ResidualRows],
        split: Sequence[Tensor],
        stats: ChannelStats,
        sampled: Int[Tensor, "N P"],
        relaxed: RelaxedRows | None,
    ) -> None:
        """Add one batch at the sampled positions."""
        reader = self.reader
        self.old.run(self.place, batch)
        original = rows_at(self._first(self.old.at(self.place, batch), batch), reader, sampled)
        target = original
        if self.correction is not None:
            target = target + rows_at(self._first(self.correction(batch), batch), reader, sampled)
        every = patches(kept, reader.geometry, sampled)
        residual = target.index_select(1, stay) - self._present(every, stay)
        rows, short = every.unflatten(1, (len(kept), -1)), residual.unflatten(0, (len(kept), -1))
        for sums, part in zip(splits, split, strict=False):
            sums.add_rows(rows[:, part].flatten(1, 2), short[part].flatten(0, 1))
        stats.add(target.index_select(1, stay))
        if relaxed is not None:
            reference = self._reference(original, batch, sampled)
            relaxed.add(every, residual, reference.index_select(1, stay))

    def _present(
        self, rows: Float[Tensor, "groups rows n"], stay: Int[Tensor, " M"]
    ) -> Float[Tensor, "rows M"]:
        """Return the outputs of the layer in the new network for some inputs."""
        name, bias = self.reader.spec.weight, self.reader.bias
        weight = part_of(self.new.tensors[name], self.kept_indices.get(name, {}))
        found = (rows @ self.reader.matrices(weight).to(rows).mT).movedim(0, 1).flatten(1)
        return found if bias is None else found + self.new.tensors[bias][stay]

    def _reference(
        self, original: Float[Tensor, "rows M"], batch: int, sampled: Int[Tensor, "N P"]
    ) -> Float[Tensor, "rows M"]:
        """Return the inputs of the activation in the original network at the sampled positions."""
        found = self.path.normalize(original, self.old.tensors)
        if self.path.total is None or self.path.other is None:
            return found
        program = self.old.program
        total = program.place[self.path.total]
        added = [self.old.ahead(program.place[self.path.other], batch)]
        if total in self.missing:
            added.append(self.old.store.get((MISSING, total, batch)))
        for value in added:
            found = found + rows_at(self._first(value, batch), self.reader, sampled)
        return found

    def _first(self, values: Tensor, batch: int) -> Tensor:
        """Return values with the images in the first dimension."""
        return self.reader.batch_first(values, self.task.batch_sizes[batch])

    def _relaxed_rows(self, outputs: Int[Tensor, " M"]) -> RelaxedRows | None:
        """Return an empty set of rows if an activation behind the layer clips its inputs."""
        if self.path.limits is None:
            return None
        scale = self.path.scale(self.old.tensors)
        chosen = torch.ones(len(outputs)) if scale is None else scale[outputs.to(scale.device)]
        return RelaxedRows(chosen, self.path.limits, self.old.store, self.world)


def removed_sums(program: Program, removed: Sequence[ResidualBlock]) -> dict[int, int]:
    """Return the position of the sum before removed blocks -> that of the last of their sums."""
    ends: dict[int, int] = {}
    for block in removed:
        pair = _sums_of(program, block)
        if pair is not None:
            ends[pair[0]] = pair[1]
    return {start: _end_of_chain(ends, start) for start in set(ends) - set(ends.values())}


def store_missing_branches(old: Execution, last: Mapping[int, int], batches: Sequence[int]) -> None:
    """Store what the branches of removed blocks add to the sum of the block before them.

    Stored is the difference between the two sums in `last`, before activations. Cost: one pass of
    the batches.
    """
    if not last:
        return
    ahead = replace(old, label="ahead")
    for batch in batches:
        sums: dict[int, Tensor] = {}
        for place in range(len(old.program.nodes) - 1):
            ahead.run(place, batch)
            if place in last or place in last.values():
                sums[place] = ahead.at(place, batch)
            ahead.free(place, batch)
        ahead.free(len(old.program.nodes) - 1, batch)
        for start, end in last.items():
            old.store.put((MISSING, start, batch), sums[end] - sums[start])


def _sums_of(program: Program, block: ResidualBlock) -> tuple[int, int] | None:
    """Return the positions of the sum before a removed block and of its own.

    None if the block does not follow another sum, with an activation behind both or none.
    """
    starts = [node for node, name in program.names.items() if name == block.zeroed[0]]
    branch = next(iter(starts[0].users))
    while (node := next(iter(branch.users))).target is not torch.ops.aten.add.Tensor:
        branch = node
        if node.op == "output":
            return None
    source = added_to(node, branch)
    if source is None:
        return None
    first = source
    if first.target is not torch.ops.aten.add.Tensor and first.args:
        below = first.args[0]
        users = {user.target for user in node.users}
        if not isinstance(below, fx.Node) or len(below.users) != 1 or users != {first.target}:
            return None
        first = below
    if first.target is not torch.ops.aten.add.Tensor:
        return None
    return program.place[first], program.place[node]


def _end_of_chain(ends: Mapping[int, int], place: int) -> int:
    while place in ends:
        place = ends[place]
    return place


def _split_rows(task: Pass, batch: int, count: int) -> list[Int[Tensor, " rows"]]:
    """Return the entries of a batch of layer inputs to fit on, and those that judge the ridge.

    The first axis has `count` entries; if there are several for each image, they follow each other.
    """
    images, rows = judging_images(task, batch), torch.arange(count)
    judges = images[rows * len(images) // count]
    return [rows[~judges], rows[judges]]


def rows_at(
    values: Tensor, reader: BoundConsumer, sampled: Int[Tensor, "N P"]
) -> Float[Tensor, "rows M"]:
    """Return the values of a layer's outputs at some positions of every image."""
    images, outputs = len(values), values.shape[-1]
    linear = not reader.geometry.kernel
    flat = values.reshape(images, -1, outputs).mT if linear else values.flatten(2)
    return flat.gather(2, sampled[:, None].expand(-1, flat.shape[1], -1)).mT.flatten(0, 1)


def _reestimate(
    new: Execution, place: int, node: fx.Node, batches: Sequence[int], world: World
) -> None:
    norm = batchnorm_of(new.program, node)
    if norm is None or not new.differs(place):
        return
    if norm.calls > 1:
        return  # it serves several calls, and has run on some of them already
    source = new.program.place[norm.input]
    stats = ChannelStats()
    for batch in batches:
        stats.add(new.at(source, batch))
    stats = stats.over_ranks(world)
    for name, value in ((norm.mean, stats.mean), (norm.var, stats.variance)):
        new.tensors[name] = value.to(new.tensors[name])
        new.changed.add(name)
