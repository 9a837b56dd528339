"""New weights for the channels that stay: each layer alone, or all in order.

In order means that two streams of the images walk through the network in lock-step, the original
and the rebuilt one. At every layer the rebuilt stream shows the inputs that the layer will really
see, the original stream the outputs that it should put out. What a layer is asked for is always the
difference to what its present weights give: nothing cancels, and the ridge pulls towards them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, fx
from torch.nn import functional

from entrim.calibration.collect import Pass, Tally, batchnorm_of, in_double
from entrim.calibration.consumers import Reader, Stays
from entrim.calibration.executor import Stream
from entrim.calibration.patch_gram import PatchGram
from entrim.calibration.tensor_store import Shelf
from entrim.entropic.moments import Moments
from entrim.reconstruction.layer import fitted, packed, put_back, put_in, solved, touched
from entrim.reconstruction.residual import drift_behind
from entrim.storage.checkpoint import Once, Unit
from entrim.surgery.prune import part_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What the rebuild may do."""

    ridge: float
    """Relative to each column's own second moment; pulls towards the weights of before."""
    correct: bool = True
    """Put the drift of a skip path into the target of the layer that is added to it."""
    reestimate: bool = False
    """Give every BatchNorm the statistics of the images in the rebuilt network."""


def rebuild(
    task: Pass,
    readers: Mapping[str, Reader],
    stays: Stays,
    start: Mapping[str, Tensor],
    repair: Repair,
    on_layer: Callable[[Unit], None] = lambda _: None,
    once: Once = lambda _, work: work(),
) -> dict[str, Tensor]:
    """Return the tensors of the rebuilt network, full-size, from those at the `start`.

    Layers whose weight serves more than one call stay as they are at the start: what one call asks
    for another would not. Each layer is solved for
    `once`, as a unit that holds what a `Fitted` does, and the new tensors.
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
                unit = _refit_here(old, new, place, calls[place], stays, repair, once)
                if unit is not None:
                    on_layer(unit)
            if repair.reestimate:
                _reestimate(new, place, node)
            new.run(place)
            old.forget(place)
            new.forget(place)
        return new.tensors


def _refit_here(
    old: Stream,
    new: Stream,
    place: int,
    reader: Reader,
    stays: Stays,
    repair: Repair,
    once: Once,
) -> Unit | None:
    """Refit the layer at `place` where it sees or owes anything else than in the original."""
    drift = drift_behind(old, new, place) if repair.correct else None
    if not new.differs(place) and drift is None:
        return None
    work = partial(_refitted, old, new, place, reader, stays, repair.ridge, drift)
    unit = once(reader.site.layer, work)
    put_back(unit, new.tensors)
    new.changed.update(touched(reader))
    return unit


def _refitted(
    old: Stream,
    new: Stream,
    place: int,
    reader: Reader,
    stays: Stays,
    ridge: float,
    drift: Callable[[int], Tensor] | None,
) -> Unit:
    """Return the layer with new weights, in place in the tensors of the rebuilt stream too."""
    inputs, outputs = reader.staying(stays)
    axis = -1 - len(reader.geometry.kernel)
    weight = part_of(new.tensors[reader.site.weight], stays.get(reader.site.weight, {}))
    need, wanted = _Need.of(reader, weight, len(inputs)), Tally()
    for batch in range(len(old.batches)):
        target = old.at(place, batch)
        if drift is not None:
            target = target + drift(batch)
        lack = target - new.compute(place, batch)
        x = reader.batched(new.at(reader.inputs[0], batch))
        stay = outputs.to(x.device)
        need.add(
            x.index_select(axis, inputs.to(x.device)),
            reader.batched(lack).index_select(axis, stay),
        )
        wanted.add(reader.batched(target).index_select(axis, stay), axis)
    parts = [solved(reader, moments, ridge) for moments in need.moments()]
    put_in(reader, parts, stays, new.tensors)
    fit = fitted(reader, parts, need.gram.count, float(wanted.variance.sum()))
    return packed(fit, reader, new.tensors)


@dataclass(slots=True)
class _Need:
    """What a layer reads and what its outputs lack, as sums over the batches."""

    reader: Reader
    weight: Tensor
    """Its weight on the channels that stay."""
    gram: PatchGram
    cross: Tensor
    offset: Tensor
    power: Tensor

    @classmethod
    def of(cls, reader: Reader, weight: Tensor, channels: int) -> "_Need":
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

    def add(self, x: Tensor, lack: Tensor) -> None:
        """Add one batch of inputs, and of what is missing at the outputs."""
        self.gram.add(in_double(x))
        cross = self.reader.matrices(_cross(_single(x), _single(lack), self.weight, self.reader))
        self.cross += in_double(cross)
        rank = len(self.reader.geometry.kernel)
        short = in_double(lack.movedim(-1 - rank, 0).flatten(1))
        self.offset += short.sum(1).view_as(self.offset)
        self.power += short.square().sum(1).view_as(self.power)

    def moments(self) -> list[Moments]:
        """Return the moments of the lack, one for each matrix of the layer."""
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


def _cross(x: Tensor, lack: Tensor, weight: Tensor, reader: Reader) -> Tensor:
    """Return the sum over rows of lack times patch, in the shape of the weight.

    It is the gradient that a convolution's weight gets for the gradient `lack` at its outputs, so
    that no patch has to be made.
    """
    geometry = reader.geometry
    if not geometry.kernel:
        return lack.flatten(0, -2).T @ x.flatten(0, -2)
    rank = len(geometry.kernel)
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


def _reestimate(new: Stream, place: int, node: fx.Node) -> None:
    norm = batchnorm_of(new.program, node)
    if norm is None or not new.differs(place):
        return
    if norm.calls > 1:
        return  # it serves several calls, and has run on some of them already
    source = new.program.place[norm.input]
    tally = Tally()
    for batch in range(len(new.batches)):
        tally.add(new.at(source, batch))
    for name, value in ((norm.mean, tally.mean), (norm.var, tally.variance)):
        new.tensors[name] = value.to(new.tensors[name])
        new.changed.add(name)


def _single(tensor: Tensor) -> Tensor:
    """Return the tensor in at least single precision."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
