"""What a cut does to the outputs of the network, group by group, without labels."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from entrim.calibration.collect import Pass, gram_of
from entrim.calibration.consumers import Reader, Stays
from entrim.calibration.executor import Stream
from entrim.calibration.tensor_store import Shelf
from entrim.graph.channel_graph import ChannelGraph, Group
from entrim.graph.eager import Example, call, copy_without_hooks, own_randomness, samples
from entrim.reconstruction.layer import masked_tensors, refit_alone, touched
from entrim.surgery.prune import zero_gone
from entrim.surgery.verify import leaves

Kept = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Moved:
    """How far outputs are from those wanted: 0 for equal."""

    divergence: float
    """For the logits of a classifier the mean divergence (Kullback-Leibler) of its class
    probabilities, for anything else the error."""
    error: float
    """Squared error relative to the variance."""


@dataclass(slots=True)
class OutputGap:
    """How far one output is from what it should be, as sums over the images."""

    apart: float = 0.0
    power: float = 0.0
    """Squared distance of what is wanted from `origin`."""
    total: Tensor | float = 0.0
    """Sum over the images of what is wanted minus `origin`."""
    rows: int = 0
    elements: int = 0
    origin: Tensor | None = None
    """The mean of the first batch: sums about it do not cancel."""

    def add(self, found: Tensor, wanted: Tensor, images: int) -> None:
        """Add the outputs of one batch of so many `images`."""
        a, b = (_real(t) for t in (found, wanted))
        axis = _image_axis(b, images)
        if self.origin is None:
            self.origin = b.mean(axis)
        self.apart += float((a - b).square().sum())
        shifted = b - self.origin.unsqueeze(axis)
        self.power += float(shifted.square().sum())
        self.total = self.total + shifted.sum(axis)
        self.rows += b.shape[axis]
        self.elements += b.numel()

    @property
    def spread(self) -> float:
        """The squared distance of what is wanted from its mean; 0 where only rounding is left."""
        mean = torch.as_tensor(self.total).square().sum() / max(self.rows, 1)
        left = self.power - float(mean)
        return left if left > 1e-12 * self.power else 0.0

    @property
    def variance(self) -> float:
        """The variance of what is wanted over the images, the mean over all elements."""
        return self.spread / max(self.elements, 1)


def _real(output: Tensor) -> Tensor:
    """Return an output as real numbers in double precision, at least one for each image."""
    real = torch.view_as_real(output) if output.is_complex() else output
    return torch.atleast_1d(real).double()


def _image_axis(output: Tensor, images: int) -> int:
    """Return the axis that runs over the images: 0, unless only a later one is as long."""
    fitting = [axis for axis, size in enumerate(output.shape) if size == images]
    return fitting[0] if fitting else 0


@dataclass(slots=True)
class Sensor:
    """The network on some images; a cut runs again from the first layer that feels it on."""

    task: Pass
    graph: ChannelGraph
    readers: Sequence[Reader]
    grams: Shelf
    ridge: float
    wanted: list[list[Tensor]] = field(init=False)
    """The outputs of the original, batch by batch."""

    def __post_init__(self) -> None:
        self.wanted = self._outputs(dict(self.task.tensors))

    def look(
        self, trials: Mapping[str, Sequence[Sequence[int]]], held: Kept
    ) -> Iterator[tuple[str, list[Moved]]]:
        """Yield every group of `trials` with what each of its kept sets does to the outputs.

        The other groups are `held` at their channels meanwhile. What reads a cut group is refitted
        on the original activations. One walk through the network holds what the layers ahead still
        read, nothing else.
        """
        start = self._held(held)
        groups = self._by_place(trials)
        with torch.no_grad(), Shelf(self.task.memory_limit) as shelf:
            stream = Stream(self.task.programs, self.task.batches, start, shelf, "held")
            for place in range(len(stream.program.nodes)):
                for group in groups.get(place, ()):
                    yield (
                        group.name,
                        [self._moved(stream, place, group, k, held) for k in trials[group.name]],
                    )
                stream.run(place)
                stream.forget(place)

    def moved(self, tensors: Mapping[str, Tensor]) -> Moved:
        """Return how far the outputs are with these tensors in place of the original ones."""
        return moved(self._outputs(dict(tensors)), self.wanted, self._images)

    def silence(self) -> float:
        """Return the divergence of outputs that do not depend on the image any more."""
        if not are_logits(self.wanted[0]):
            return 1.0 if any(gap.spread > 0 for gap in self._own_spread()) else 0.0
        logits = [batch[0].double() for batch in self.wanted]
        mean = torch.cat(logits).softmax(1).mean(0).log()
        return moved([[mean.expand_as(t)] for t in logits], self.wanted, self._images).divergence

    @property
    def _images(self) -> list[int]:
        """The number of images in each batch."""
        return [samples(batch) for batch in self.task.batches]

    def _own_spread(self) -> list[OutputGap]:
        gaps = [OutputGap() for _ in self.wanted[0]]
        for batch, images in zip(self.wanted, self._images, strict=True):
            for gap, output in zip(gaps, batch, strict=True):
                gap.add(output, output, images)
        return gaps

    def _by_place(self, trials: Mapping[str, object]) -> dict[int, list[Group]]:
        """Return the groups by the place where they are first read."""
        found: dict[int, list[Group]] = {}
        for name in trials:
            places = [p for r in self.readers if name in r.site.feeds for p in r.places]
            found.setdefault(min(places), []).append(self.graph.group(name))
        return found

    def _held(self, held: Kept) -> dict[str, Tensor]:
        stays = self.graph.stays(held)
        tensors = masked_tensors(self.graph, stays, self.task.tensors)
        for reader in self.readers:
            self._refit(reader, stays, tensors)
        return tensors

    def _moved(
        self, held: Stream, place: int, group: Group, kept: Sequence[int], others: Kept
    ) -> Moved:
        stays = self.graph.stays({**others, group.name: kept})
        tensors = dict(held.tensors)
        for reader in self.readers:
            if group.name in reader.site.feeds:
                self._refit(reader, stays, tensors)
        last = len(held.program.nodes)
        new = Stream(
            held.programs,
            held.batches,
            tensors,
            held.shelf,
            "new",
            base=held,
            drifted=set(range(place, last)),
        )
        for later in range(place, last - 1):
            new.run(later)
            new.forget(later)
        outputs = [new.outputs(batch) for batch in range(len(new.batches))]
        new.forget(last - 1)
        return moved(outputs, self.wanted, self._images)

    def _refit(self, reader: Reader, stays: Stays, tensors: dict[str, Tensor]) -> None:
        """Refit `reader` from its original weights, in place in `tensors`."""
        original, weight = self.task.tensors, reader.site.weight
        dims = stays.get(weight, {})
        for name in touched(reader):
            tensors[name] = original[name]
        if reader.site.dim in dims:
            tensors[weight] = original[weight].clone()
            zero_gone(tensors[weight], reader.site.dim, dims)
            gram = gram_of(self.grams, reader.site.layer)
            refit_alone(reader, gram, stays, original, tensors, self.ridge)

    def _outputs(self, tensors: dict[str, Tensor]) -> list[list[Tensor]]:
        with torch.no_grad(), Shelf(self.task.memory_limit) as shelf:
            parts = []
            for program, batch in zip(self.task.programs, self.task.batches, strict=True):
                stream = Stream([program], [batch], tensors, shelf)
                for place in range(len(program.nodes) - 1):
                    stream.run(place)
                    stream.forget(place)
                parts.append(stream.outputs(0))
                stream.forget(len(program.nodes) - 1)
        return parts


def moved(
    found: Sequence[Sequence[Tensor]], wanted: Sequence[Sequence[Tensor]], images: Sequence[int]
) -> Moved:
    """Return how far `found` is from `wanted`, both batch by batch, of so many `images` each."""
    gaps = [OutputGap() for _ in wanted[0]]
    for batch, (some, others) in enumerate(zip(found, wanted, strict=True)):
        for gap, a, b in zip(gaps, some, others, strict=True):
            gap.add(a, b, images[batch])
    apart, spread = sum(gap.apart for gap in gaps), sum(gap.spread for gap in gaps)
    error = apart / spread if spread > 0 else apart
    if not are_logits(wanted[0]):
        return Moved(error, error)
    logs = [
        functional.log_softmax(torch.cat([batch[0] for batch in side]).double(), 1)
        for side in (found, wanted)
    ]
    return Moved(float((logs[1].exp() * (logs[1] - logs[0])).sum(1).mean()), error)


def error_of(small: nn.Module, original: nn.Module, batches: Iterable[Example]) -> float | None:
    """Return the error that `moved` tells, of two networks in eval mode; None without numbers.

    The outputs are held for one batch at a time. Cost: one pass of either network.
    """
    still = [copy_without_hooks(model).eval() for model in (small, original)]
    gaps: list[OutputGap] = []
    with torch.no_grad(), own_randomness():
        for batch in batches:
            found, wanted = (leaves(call(model, batch)) for model in still)
            gaps = gaps or [OutputGap() for _ in wanted]
            for gap, a, b in zip(gaps, found, wanted, strict=True):
                gap.add(a, b, samples(batch))
    apart, spread = sum(gap.apart for gap in gaps), sum(gap.spread for gap in gaps)
    return apart / spread if spread > 0 and math.isfinite(apart / spread) else None


def are_logits(outputs: Sequence[Tensor]) -> bool:
    """Whether the outputs are one matrix of several columns: the logits of a classifier."""
    if len(outputs) != 1 or outputs[0].is_complex():
        return False
    return outputs[0].dim() == 2 and outputs[0].shape[1] > 1
