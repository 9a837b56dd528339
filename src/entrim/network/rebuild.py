"""New weights for the channels that stay: each layer alone, or all in order.

In order means that two streams of the images walk through the network in lock-step, the original
and the rebuilt one. At every layer the rebuilt stream shows the inputs that the layer will really
see, the original stream the outputs that it should put out. What a layer is asked for is always the
difference to what its present weights give: nothing cancels, and the ridge pulls towards them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, fx
from torch.nn import functional

from entrim.graph import ChannelGraph, Group
from entrim.moments import Moments
from entrim.network.capture import Gram, Pass, batchnorm_of, in_double, statistics
from entrim.network.patches import PatchGram
from entrim.network.reading import Reader, Stays
from entrim.network.replay import Stream
from entrim.network.shelf import Shelf
from entrim.network.slices import part_of, put_part, zero_gone
from entrim.network.walk import arguments_of
from entrim.solver import Refit, Solution, refit

_NEAR_ZERO = 1e-2
"""Of a BatchNorm's typical scale: a drift is not sent back through a channel scaled by less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What the rebuild may do."""

    ridge: float
    """Relative to each column's own second moment; pulls towards the weights of before."""
    correct: bool = True
    """Put the drift of a skip path into the target of the layer that is added to it."""
    reestimate: bool = False
    """Give every BatchNorm the statistics of the images in the rebuilt network."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """How well a layer can still do its work."""

    layer: str
    rows: int
    columns: int
    error: float
    """Squared error of the outputs that stay, relative to their variance."""


def masked_tensors(
    graph: ChannelGraph, stays: Stays, tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the tensors with the columns of the channels that go set to zero."""
    changed = {}
    for site in graph.sites:
        dims = stays.get(site.weight, {})
        if site.dim in dims:
            changed[site.weight] = tensors[site.weight].clone()
            zero_gone(changed[site.weight], site.dim, dims)
    return {**tensors, **changed}


def refit_alone(
    reader: Reader,
    gram: Gram,
    stays: Stays,
    original: Mapping[str, Tensor],
    tensors: dict[str, Tensor],
    ridge: float,
) -> Fitted:
    """Refit one layer on the original activations, in place in `tensors`."""
    inputs, outputs = reader.staying(stays)
    groups = reader.geometry.groups
    weight = reader.matrices(original[reader.site.weight]).double().cpu()
    block = reader.columns // (reader.channels // groups)
    rows = outputs.view(groups, -1) - torch.arange(groups)[:, None] * weight.shape[1]
    channels = inputs.view(groups, -1) - torch.arange(groups)[:, None] * (reader.channels // groups)
    offsets = torch.arange(block)
    parts, variance = [], 0.0
    for number in range(groups):
        columns = (channels[number][:, None] * block + offsets).flatten()
        sums = gram.sums[number].cpu()
        stay = torch.cat([torch.zeros(1, dtype=torch.int64), 1 + columns])
        gone = torch.ones(len(sums), dtype=torch.bool)
        gone[stay] = False
        lost = weight[number][rows[number]][:, gone[1:]].T
        gone = gone.nonzero()[:, 0]
        cross = sums[stay][:, gone] @ lost
        missing = float((lost * (sums[gone][:, gone] @ lost)).sum())
        moments = Moments(
            count=gram.count,
            gram_sum=sums[stay][:, stay],
            cross_sum=cross,
            target_sum_sq=max(0.0, missing),
        )
        parts.append(_solved(reader, moments, ridge))
        variance += _variance(sums, weight[number][rows[number]], gram.count)
    _apply(reader, parts, stays, tensors)
    return _fitted(reader, parts, gram.count, variance)


def place_solution(
    reader: Reader,
    group: Group,
    parts: Sequence[Solution],
    tensors: dict[str, Tensor],
) -> None:
    """Give the layer the weights that solving for `group` found, in place in `tensors`."""
    name = reader.site.weight
    matrices = reader.matrices(tensors[name]).clone()
    offsets = []
    tables = reader.of_group(group)
    for number, (table, part) in enumerate(zip(tables, parts, strict=True)):
        matrices[number][:, table[table >= 0]] = 0
        columns = table[part.kept].flatten()
        there = columns >= 0
        matrices[number][:, columns[there]] = part.weight[:, there].to(matrices)
        offsets.append(part.bias)
    tensors[name] = reader.weight(matrices).view(reader.shape)
    if reader.site.bias_home is None:
        return
    home = _touched(reader)[1]
    offset = torch.cat(offsets).to(tensors[home])
    if reader.site.bias_home != "bias":
        tensors[home] = tensors[home] - offset
    elif reader.reads_only(group):
        tensors[home] = offset
    else:
        tensors[home] = tensors[home] + offset


def rebuild(
    task: Pass,
    readers: Mapping[str, Reader],
    stays: Stays,
    start: Mapping[str, Tensor],
    repair: Repair,
    on_layer: Callable[[Fitted], None] = lambda _: None,
) -> dict[str, Tensor]:
    """Return the tensors of the rebuilt network, full-size, from those at the `start`.

    Layers whose weight serves more than one call stay as they are at the start: what one call asks
    for another would not.
    """
    calls = {r.places[0]: r for r in readers.values() if len(r.places) == 1}
    with torch.no_grad(), Shelf(task.memory_limit) as shelf:
        old = Stream(task.programs, task.batches, dict(task.tensors), shelf, "old")
        changed = {name for name in start if start[name] is not task.tensors[name]}
        new = Stream(
            task.programs, task.batches, dict(start), shelf, "new", base=old, changed=changed
        )
        for place, node in enumerate(old.program.nodes):
            old.run(place)
            if place in calls:
                fitted = _refit_here(old, new, place, calls[place], stays, repair)
                if fitted is not None:
                    on_layer(fitted)
            if repair.reestimate:
                _reestimate(new, place, node)
            new.run(place)
            old.forget(place)
            new.forget(place)
        return new.tensors


def _refit_here(
    old: Stream, new: Stream, place: int, reader: Reader, stays: Stays, repair: Repair
) -> Fitted | None:
    """Refit the layer at `place` where it sees or owes anything else than in the original."""
    drift = _drift_behind(old, new, place) if repair.correct else None
    if not new.differs(place) and drift is None:
        return None
    inputs, outputs = reader.staying(stays)
    axis = -1 - len(reader.geometry.kernel)
    weight = part_of(new.tensors[reader.site.weight], stays.get(reader.site.weight, {}))
    gram = PatchGram(reader.geometry, len(inputs), weight.device)
    cross: Tensor | float = 0.0
    offset: Tensor | float = 0.0
    power: Tensor | float = 0.0
    wanted = []
    for batch in range(len(old.batches)):
        target = old.at(place, batch)
        if drift is not None:
            target = target + drift(batch)
        lack = (target - new.compute(place, batch)).index_select(axis, outputs.to(weight.device))
        x = new.at(reader.inputs[0], batch).index_select(axis, inputs.to(weight.device))
        gram.add(in_double(x))
        x, lack = _single(x), _single(lack)
        cross = cross + reader.matrices(_cross(x, lack, weight, reader)).double()
        others = [a for a in range(lack.dim()) if a != lack.dim() + axis]
        offset = offset + lack.double().sum(others)
        power = power + lack.double().square().sum(others)
        wanted.append(target.index_select(axis, outputs.to(weight.device)))
    assert isinstance(cross, Tensor)
    assert isinstance(offset, Tensor)
    assert isinstance(power, Tensor)
    sums, offsets, powers = gram.gram_sum, *(t.view(len(cross), -1) for t in (offset, power))
    parts = []
    for number in range(len(cross)):
        moments = Moments(
            count=gram.count,
            gram_sum=sums[number],
            cross_sum=torch.cat([offsets[number][None], cross[number].T]).to(sums.device),
            target_sum_sq=float(powers[number].sum()),
        )
        parts.append(_solved(reader, moments, repair.ridge))
    _apply(reader, parts, stays, new.tensors)
    new.changed.update(_touched(reader))
    _, variance = statistics([part.movedim(axis, 1) for part in wanted])
    return _fitted(reader, parts, gram.count, float(variance.sum()))


def _solved(reader: Reader, moments: Moments, ridge: float) -> Refit:
    if reader.site.bias_home is None:
        moments = moments.through_origin()
    return refit(moments.to("cpu"), range(moments.channels), ridge=ridge)


def _apply(
    reader: Reader, parts: Sequence[Refit], stays: Stays, tensors: dict[str, Tensor]
) -> None:
    """Add the solved differences to the layer's weights, their intercept where it has its home."""
    name = reader.site.weight
    dims = stays.get(name, {})
    full = tensors[name].clone()
    step = reader.weight(torch.stack([part.weight for part in parts]))
    small = part_of(full, dims)
    put_part(full, dims, small + step.view(small.shape).to(small))
    tensors[name] = full
    home = reader.site.bias_home
    if home is None:
        return
    _, outputs = reader.staying(stays)
    name = _touched(reader)[1]
    sign = 1 if home == "bias" else -1
    full = tensors[name].clone()
    full[outputs.to(full.device)] += sign * torch.cat([part.bias for part in parts]).to(full)
    tensors[name] = full


def _touched(reader: Reader) -> list[str]:
    """Return the tensors that a refit of `reader` changes."""
    home = reader.site.bias_home
    if home is None:
        return [reader.site.weight]
    if home == "bias":
        return [reader.site.weight, f"{reader.site.layer}.bias"]
    return [reader.site.weight, f"{home.removeprefix('batchnorm:')}.running_mean"]


def _cross(x: Tensor, lack: Tensor, weight: Tensor, reader: Reader) -> Tensor:
    """Return the sum over rows of lack times patch, in the shape of the weight.

    It is the gradient that a convolution's weight gets for the gradient `lack` at its outputs, so
    that no patch has to be made.
    """
    geometry = reader.geometry
    if not geometry.kernel:
        return lack.flatten(0, -2).T @ x.flatten(0, -2)
    rank = len(geometry.kernel)
    if x.dim() == rank + 1:
        x, lack = x[None], lack[None]
    before = [first for first, _ in geometry.padding]
    if any(first != last for first, last in geometry.padding):
        sides = [side for pair in reversed(geometry.padding) for side in pair]
        x, before = functional.pad(x, sides), [0] * rank
    return torch.ops.aten.convolution_backward(
        lack.contiguous(),
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


def _drift_behind(old: Stream, new: Stream, place: int) -> Callable[[int], Tensor] | None:
    """Return the drift that the output at `place` should make up for, by batch; None for none.

    Where the output, normalised or not, is added to a value that has drifted already, the sum is
    right if the output takes the drift back, sent through the inverse of the normalisation.
    """
    program = old.program
    node, scale = program.nodes[place], None
    while len(node.users) == 1:
        user = next(iter(node.users))
        kind = str(user.target)
        norm = batchnorm_of(program, user)
        if norm is not None and scale is None:
            scale = _inverse_scale(user, norm, old.tensors)
        elif not any(name in kind for name in ("getitem", "clone", "alias", "detach")):
            break
        node = user
    if len(node.users) != 1:
        return None
    user = next(iter(node.users))
    other = _added_to(user, node)
    if other is None or program.place.get(other, -1) not in new.drifted:
        return None
    at = program.place[other]
    if at >= place or not _same_shape(other, program.nodes[place]):
        return None

    def drift(batch: int) -> Tensor:
        gap = old.at(at, batch) - new.at(at, batch)
        return gap if scale is None else gap * scale.view(-1, *[1] * (gap.dim() - 2))

    return drift


def _added_to(user: fx.Node, node: fx.Node) -> fx.Node | None:
    """Return what `node` is added to by `user`, None where that is no plain sum of two tensors."""
    if "aten.add" not in str(user.target) or arguments_of(user).get("alpha", 1) != 1:
        return None
    others = [arg for arg in user.args[:2] if isinstance(arg, fx.Node) and arg is not node]
    return others[0] if len(others) == 1 else None


def _same_shape(one: fx.Node, other: fx.Node) -> bool:
    shapes = [getattr(node.meta.get("val"), "shape", None) for node in (one, other)]
    return shapes[0] is not None and shapes[0] == shapes[1]


def _inverse_scale(node: fx.Node, norm: str, tensors: Mapping[str, Tensor]) -> Float[Tensor, " D"]:
    """Return sigma / gamma of a BatchNorm, 0 where gamma / sigma is near 0."""
    eps = arguments_of(node)["eps"]
    scale = (tensors[f"{norm}.running_var"] + eps).rsqrt()
    if f"{norm}.weight" in tensors:
        scale = scale * tensors[f"{norm}.weight"]
    large = scale.abs() > _NEAR_ZERO * scale.abs().median()
    return torch.where(large, 1 / scale, 0)


def _reestimate(new: Stream, place: int, node: fx.Node) -> None:
    norm = batchnorm_of(new.program, node)
    if norm is None or not new.differs(place):
        return
    source = new.program.place[arguments_of(node)["input"]]
    mean, variance = statistics([new.at(source, batch) for batch in range(len(new.batches))])
    for key, value in (("mean", mean), ("var", variance)):
        name = f"{norm}.running_{key}"
        new.tensors[name] = value.to(new.tensors[name])
        new.changed.add(name)


def _variance(sums: Float[Tensor, "n1 n1"], weight: Float[Tensor, "M n"], count: int) -> float:
    """Return the variance of the outputs that `weight` makes, summed over them."""
    mean = sums[0, 1:] / count
    second = float((weight * (weight @ sums[1:, 1:])).sum()) / count
    return max(0.0, second - float((weight @ mean).square().sum()))


def _fitted(reader: Reader, parts: Sequence[Refit], rows: int, variance: float) -> Fitted:
    lack = sum(part.mse * len(part.bias) for part in parts)
    columns = parts[0].weight.shape[1]
    return Fitted(reader.site.layer, rows, columns, lack / variance if variance else 0.0)


def _single(tensor: Tensor) -> Tensor:
    """Return the tensor in at least single precision."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
