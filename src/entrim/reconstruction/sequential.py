"""Reconstruct the weights of the kept channels: every layer independently, or all in order.

In sequential order two executions advance through the network in lock-step, the original and the
reconstructed one. At every layer, the reconstructed execution provides the inputs, and the original
execution provides the outputs to reproduce. The regression target is the difference between these
outputs and those of the current weights: this avoids cancellation, and the ridge shrinks toward the
current weights. Where the output is added to a skip connection, the target also compensates for the
change of the skip connection, and for what the branches of removed blocks behind it added (residual
correction).
"""

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import torch
from jaxtyping import Float, Int
from torch import Tensor, fx
from torch.nn import functional

from entrim.calibration.collect import (
    BatchNormCall,
    ChannelStats,
    LayerStatistics,
    Pass,
    batchnorm_of,
    in_double,
)
from entrim.calibration.consumers import BoundConsumer, KeptIndices
from entrim.calibration.executor import Execution, Program, advance
from entrim.calibration.patch_gram import PatchGram, patches
from entrim.config import Reconstruction
from entrim.entropic.moments import Moments
from entrim.graph.channel_graph import ChannelGraph
from entrim.graph.residual_blocks import ResidualBlock, tensors_in
from entrim.graph.tracer import arguments_of
from entrim.reconstruction.layer import (
    Cached,
    LayerFit,
    LayerUpdate,
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
from entrim.reconstruction.residual_rows import ResidualRows
from entrim.selection.base import ChannelSelection
from entrim.surgery.prune import part_of

INNER_SPLIT = 5
"""Every fifth image judges the ridge of a layer that is fitted on the others."""
_MISSING = "missing"
"""Label of the stored differences that removed branches leave."""
_NEAR_ZERO = 1e-2
"""Relative to the median scale of a BatchNorm: channels with a smaller scale are not corrected."""


def reconstruct(
    statistics: LayerStatistics,
    selection: Mapping[str, ChannelSelection],
    config: Reconstruction | None,
    *,
    forward: Pass,
    collect: Callable[[Sequence[BoundConsumer]], None],
    on_layer: Callable[[LayerFit], None] = lambda _: None,
    cached: Cached = lambda _, compute: compute(),
) -> dict[str, Tensor]:
    """Return all tensors in full size, with zeros in the columns of removed channels.

    If `config` is None, the kept weights are not changed. `forward` has the images of sequential
    refits. `collect` provides the Gram matrices of layers that are refitted on the original
    activations. `cached` may restore the update of a layer, and `on_layer` is called after each
    refitted layer.
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
            reestimate=reestimate,
            removed=removed,
            on_layer=on_layer,
            cached=cached,
        )
    return tensors


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
    reestimate: bool = False,
    removed: Sequence[ResidualBlock] = (),
    on_layer: Callable[[LayerFit], None] = lambda _: None,
    cached: Cached = lambda _, compute: compute(),
) -> dict[str, Tensor]:
    """Return the tensors of the reconstructed network in full size, starting from `start`.

    Layers that are called more than once keep their weights of `start`, because the calls have
    different targets. The last layer of a block before `removed` blocks is also asked for what
    their branches added.
    """
    calls = {r.call_sites[0]: r for r in readers.values() if len(r.call_sites) == 1}
    with task.execution() as old:
        changed = [name for name in start if start[name] is not task.tensors[name]]
        new = old.branch(start, changed=changed)
        missing = missing_branches(old, removed) if removed and correct_residual else ()
        norms = [p for p, node in enumerate(old.program.nodes) if batchnorm_of(old.program, node)]
        stops = sorted({*calls, *(norms if reestimate else ())})
        place = 0
        for stop in [*stops, len(old.program.nodes)]:
            advance([old, new], place, stop)
            place = stop
            if place in calls:
                residual = None
                if correct_residual:
                    residual = residual_correction(old, new, place, missing)
                if new.differs(place) or residual is not None:
                    reader = calls[place]
                    work = partial(
                        _refit, task, old, new, place, reader, kept_indices, ridge, residual
                    )
                    update = cached(reader.spec.layer, work)
                    update.apply(new.tensors)
                    new.changed.update(modified_tensors(reader))
                    on_layer(update.fit)
            if place in norms and reestimate:
                _reestimate(new, place, old.program.nodes[place])
        return new.tensors


def _refit(
    task: Pass,
    old: Execution,
    new: Execution,
    place: int,
    reader: BoundConsumer,
    kept_indices: KeptIndices,
    ridge: float | None,
    correction: Callable[[int], Tensor] | None,
) -> LayerUpdate:
    """Refit the layer in the new execution, and return the update."""
    inputs, outputs = reader.kept_channels(kept_indices)
    axis = -1 - len(reader.geometry.kernel)
    weight = part_of(new.tensors[reader.spec.weight], kept_indices.get(reader.spec.weight, {}))
    columns = reader.matrices(weight).shape[-1]
    by_rows = task.keeps_rows(reader, columns)
    splits = [
        ResidualRows.of(reader) if by_rows else ResidualMoments.of(reader, weight, len(inputs))
        for _ in range(2)
    ]
    target_stats = ChannelStats()
    generator = task.drawing(f"reconstruction of {reader.spec.layer}")
    for batch in range(old.n_batches):
        images = old.batch_size(batch)
        x = reader.batch_first(new.at(reader.inputs[0], batch), images)
        drift = None if correction is None else reader.batch_first(correction(batch), images)
        stay = outputs.to(x.device)
        split = _split_rows(task, batch, len(x)) if ridge is None else [torch.arange(len(x))]
        sampled = task.sample_positions(reader, x, columns, generator)
        if sampled is None:
            target = reader.batch_first(old.compute(place, batch), images)
            target = target if drift is None else target + drift
            residual = target - reader.batch_first(new.compute(place, batch), images)
            residual = residual.index_select(axis, stay)
            kept = x.index_select(axis, inputs.to(x.device))
            for sums, part in zip(splits, split, strict=False):
                sums.add(kept[part], residual[part])
            target_stats.add(target.index_select(axis, stay), axis)
        else:
            target = layer_rows(reader, old, batch, sampled)
            if drift is not None:
                target = target + rows_at(drift, reader, sampled)
            residual = target - layer_rows(reader, new, batch, sampled)
            rows = patches(x.index_select(axis, inputs.to(x.device)), reader.geometry, sampled)
            residual = residual.index_select(1, stay).unflatten(0, (len(x), -1))
            rows = rows.unflatten(1, (len(x), -1))
            for sums, part in zip(splits, split, strict=False):
                sums.add_rows(rows[:, part].flatten(1, 2), residual[part].flatten(0, 1))
            target_stats.add(target.index_select(1, stay))
    known = [sums.moments() for sums in splits if sums.count]
    parts = [
        solve_layer(reader, reduce(operator.add, moments), select_ridge(reader, moments, ridge))
        for moments in zip(*known, strict=True)
    ]
    apply_update(reader, parts, kept_indices, new.tensors)
    count = sum(sums.count for sums in splits)
    fit = as_fit(reader, parts, count, float(target_stats.variance.sum()))
    return LayerUpdate(fit, {name: new.tensors[name] for name in modified_tensors(reader)})


def missing_branches(old: Execution, removed: Sequence[ResidualBlock]) -> set[int]:
    """Store what the branches of removed blocks add to the sum of the block before them.

    Stored is the difference between the sum of the last of consecutive removed blocks and the sum
    before them, before activations. Returns the positions of the latter. Cost: one pass.
    """
    ends: dict[int, int] = {}
    for block in removed:
        pair = _sums_of(old.program, block)
        if pair is not None:
            ends[pair[0]] = pair[1]
    last = {start: _end_of_chain(ends, start) for start in set(ends) - set(ends.values())}
    ahead = replace(old, label="ahead")
    for batch in range(old.n_batches if last else 0):
        sums: dict[int, Tensor] = {}
        for place in range(len(old.program.nodes) - 1):
            ahead.run(place, batch)
            if place in last or place in last.values():
                sums[place] = ahead.at(place, batch)
            ahead.free(place, batch)
        ahead.free(len(old.program.nodes) - 1, batch)
        for start, end in last.items():
            old.store.put((_MISSING, start, batch), sums[end] - sums[start])
    return set(last)


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
    source = _added_to(node, branch)
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


def residual_correction(
    old: Execution,
    new: Execution,
    place: int,
    missing: Collection[int] = (),
) -> Callable[[int], Tensor] | None:
    """Return the correction of the output at `place` as a function of the batch, None for none.

    If the output, with or without a following BatchNorm, is added to a value that has changed, the
    sum is restored by subtracting this change, scaled by the inverse of the normalization. What is
    missing behind the sum, which `missing_branches` stored, is added in the same way.
    """
    program = old.program
    node, scale = program.nodes[place], None
    while len(node.users) == 1:
        user = next(iter(node.users))
        kind = str(user.target)
        norm = batchnorm_of(program, user)
        if norm is not None and scale is None and norm.scaled == (norm.weight is not None):
            scale = _inverse_scale(norm, old.tensors)
        elif not any(name in kind for name in ("getitem", "clone", "alias", "detach")):
            break
        node = user
    if len(node.users) != 1:
        return None
    user = next(iter(node.users))
    other = _added_to(user, node)
    if other is None or not _same_shape(other, program.nodes[place]):
        return None
    at = program.place[other]
    has_changed = at < place and at in new.changed_nodes
    total = program.place[user]
    if not has_changed and total not in missing:
        return None

    def drift(batch: int) -> Tensor:
        parts = [old.at(at, batch) - new.at(at, batch)] if has_changed else []
        if total in missing:
            parts.append(old.store.get((_MISSING, total, batch)))
        gap = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        return gap if scale is None else gap * scale.view(-1, *[1] * (gap.dim() - 2))

    return drift


def _added_to(user: fx.Node, node: fx.Node) -> fx.Node | None:
    """Return the other operand if `user` is a plain sum of `node` and another tensor, else None."""
    if user.target is not torch.ops.aten.add.Tensor or arguments_of(user).get("alpha", 1) != 1:
        return None
    others = [arg for arg in user.args[:2] if isinstance(arg, fx.Node) and arg is not node]
    return others[0] if len(others) == 1 else None


def _same_shape(one: fx.Node, other: fx.Node) -> bool:
    shapes = [getattr(node.meta.get("val"), "shape", None) for node in (one, other)]
    return shapes[0] is not None and shapes[0] == shapes[1]


def _inverse_scale(norm: BatchNormCall, tensors: Mapping[str, Tensor]) -> Float[Tensor, " D"]:
    """Return sigma / gamma of a BatchNorm, 0 where gamma / sigma is close to 0."""
    scale = (tensors[norm.var] + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * tensors[norm.weight]
    large = scale.abs() > _NEAR_ZERO * scale.abs().median()
    return torch.where(large, 1 / scale, 0)


def _split_rows(task: Pass, batch: int, count: int) -> list[Int[Tensor, " rows"]]:
    """Return the entries of a batch of layer inputs to fit on, and those that judge the ridge.

    All entries of one image, and of its mirror image, are on the same side. The first axis has
    `count` entries; if there are several for each image, they follow each other.
    """
    numbers, rows = torch.tensor(task.image_numbers(batch)), torch.arange(count)
    images = numbers[rows * len(numbers) // count]
    period = min(INNER_SPLIT, task.images // task.views)
    judges = (images % period == period - 1) & (period > 1)
    return [rows[~judges], rows[judges]]


@dataclass(slots=True)
class ResidualMoments:
    """Second moments of the inputs and residual outputs of a layer, summed over the batches."""

    reader: BoundConsumer
    weight: Tensor
    """The weight on the kept channels."""
    gram: PatchGram
    cross: Tensor
    offset: Tensor
    power: Tensor

    @classmethod
    def of(cls, reader: BoundConsumer, weight: Tensor, channels: int) -> "ResidualMoments":
        """Return empty sums for a layer that keeps `channels` input channels."""
        matrices = reader.matrices(weight)
        outputs = matrices.shape[:2]
        device = in_double(weight).device
        return cls(
            reader,
            weight,
            PatchGram(reader.geometry, channels, device),
            torch.zeros(matrices.shape, dtype=torch.float64, device=device),
            torch.zeros(outputs, dtype=torch.float64, device=device),
            torch.zeros(outputs, dtype=torch.float64, device=device),
        )

    @property
    def count(self) -> int:
        """The number of rows."""
        return self.gram.count

    def add(self, x: Tensor, residual: Tensor) -> None:
        """Add one batch of inputs and of residuals at the outputs."""
        if len(x) == 0:
            return
        self.gram.add(in_double(x))
        cross = self.reader.matrices(
            _cross(_single(x), _single(residual), self.weight, self.reader)
        )
        self.cross += in_double(cross)
        rank = len(self.reader.geometry.kernel)
        short = in_double(residual.movedim(-1 - rank, 0).flatten(1))
        self.offset += short.sum(1).view_as(self.offset)
        self.power += short.square().sum(1).view_as(self.power)

    def add_rows(
        self, rows: Float[Tensor, "groups rows n"], residual: Float[Tensor, "rows M"]
    ) -> None:
        """Add patches of the inputs, and the residual at the same positions."""
        double = in_double(rows)
        self.gram.add_rows(double)
        short = in_double(residual).T.unflatten(0, (len(rows), -1))
        self.cross += short @ double
        self.offset += short.sum(2)
        self.power += short.square().sum(2)

    def moments(self) -> list[Moments]:
        """Return the moments of the residual, one for each matrix of the layer."""
        return [
            Moments(
                count=self.gram.count,
                gram_sum=gram,
                cross_sum=torch.cat([offset[None], cross.T]),
                target_sum_sq=float(power.sum()),
            )
            for gram, cross, offset, power in zip(
                self.gram.gram_sum, self.cross, self.offset, self.power, strict=True
            )
        ]


def layer_rows(
    reader: BoundConsumer, execution: Execution, batch: int, sampled: Int[Tensor, "N P"]
) -> Float[Tensor, "rows M"]:
    """Return the outputs of a layer at some positions, with the weights of an execution."""
    images = execution.batch_size(batch)
    x = reader.batch_first(execution.at(reader.inputs[0], batch), images)
    rows = patches(x, reader.geometry, sampled)
    weight = reader.matrices(execution.tensors[reader.spec.weight]).to(rows)
    found = (rows @ weight.mT).movedim(0, 1).flatten(1)
    return found if reader.bias is None else found + execution.tensors[reader.bias]


def rows_at(
    values: Tensor, reader: BoundConsumer, sampled: Int[Tensor, "N P"]
) -> Float[Tensor, "rows M"]:
    """Return the values of a layer's outputs at some positions of every image."""
    flat = values.flatten(2) if reader.geometry.kernel else values.flatten(1, -2).mT
    return flat.gather(2, sampled[:, None].expand(-1, flat.shape[1], -1)).mT.flatten(0, 1)


def _cross(x: Tensor, residual: Tensor, weight: Tensor, reader: BoundConsumer) -> Tensor:
    """Return the sum over rows of residual times patch, in the shape of the weight.

    This is the gradient of a convolution with respect to its weight if `residual` is the gradient
    at its outputs, so no patches are extracted.
    """
    geometry = reader.geometry
    if not geometry.kernel:
        return residual.flatten(0, -2).T @ x.flatten(0, -2)
    rank = len(geometry.kernel)
    before = [first for first, _ in geometry.padding]
    if any(first != last for first, last in geometry.padding):
        sides = [side for pair in reversed(geometry.padding) for side in pair]
        x, before = functional.pad(x, sides), [0] * rank
    return torch.ops.aten.convolution_backward(
        residual.contiguous(),
        x.contiguous(),
        weight.to(x.dtype).contiguous(),
        None,
        geometry.stride,
        before,
        geometry.dilation,
        geometry.transposed,
        geometry.output_padding or [0] * rank,
        geometry.groups,
        [False, True, False],
    )[1]


def _reestimate(new: Execution, place: int, node: fx.Node) -> None:
    norm = batchnorm_of(new.program, node)
    if norm is None or not new.differs(place):
        return
    if norm.calls > 1:
        return  # it serves several calls, and has run on some of them already
    source = new.program.place[norm.input]
    stats = ChannelStats()
    for batch in range(new.n_batches):
        stats.add(new.at(source, batch))
    for name, value in ((norm.mean, stats.mean), (norm.var, stats.variance)):
        new.tensors[name] = value.to(new.tensors[name])
        new.changed.add(name)


def _single(tensor: Tensor) -> Tensor:
    """Return the tensor in at least single precision."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
