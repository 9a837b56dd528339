"""Sensitivity: the change of the outputs when one group is pruned, measured without labels."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from entrim.calibration.collect import Pass, gram_of
from entrim.calibration.consumers import BoundConsumer, KeptIndices
from entrim.calibration.executor import Execution, advance
from entrim.calibration.tensor_store import TensorStore
from entrim.config import Sensitivity
from entrim.errors import BadSettingError
from entrim.graph.channel_graph import ChannelGraph, Group
from entrim.graph.restricted import mark_removed
from entrim.metrics import NEARLY_CONSTANT, Kind, kl_divergence, log_probabilities, output_kinds
from entrim.planning.workload import NARROW
from entrim.reconstruction.layer import mask_removed, masked_tensors, modified_tensors, refit_layer
from entrim.selection.base import ChannelRanking

Kept = Mapping[str, Sequence[int]]
_LEAST = 1e-12
"""Smallest divergence whose logarithm is interpolated."""


def measured_widths(ranking: ChannelRanking, fractions: Sequence[float]) -> list[int]:
    """Return the widths at which a group is measured, ascending: its minimum and `fractions`."""
    full = ranking.group.channels
    found = {max(ranking.min_width, round(fraction * full)) for fraction in fractions}
    return sorted((found | {ranking.min_width}) - {full})


def interpolate(measured: Mapping[int, float], full: int) -> dict[int, float]:
    """Return the divergence of a group at every width from its lowest measured one to the full.

    Divergences fall almost exponentially with the width: between measured widths their logarithm
    is linear. Above the highest one they fall to 0 at the full width with the power 3/2.
    """
    if not measured:
        return {full: 0.0}
    found: dict[int, float] = {full: 0.0}
    right, value = None, 0.0
    for left in sorted(measured, reverse=True):
        low, value = value, max(value, measured[left], _LEAST)
        for width in range(left, full if right is None else right):
            if right is None:
                found[width] = value * ((full - width) / (full - left)) ** 1.5
            else:
                share = (width - left) / (right - left)
                found[width] = value ** (1 - share) * low**share
        right = left
    return found


@dataclass(frozen=True, slots=True)
class OutputChange:
    """The distance between outputs and reference outputs: 0 if they are equal."""

    divergence: float
    """Mean Kullback-Leibler divergence of the class probabilities, and the error of values."""
    error: float
    """Squared error relative to the variance."""


@dataclass(slots=True)
class OutputGap:
    """The distance between one output and its reference, as sums over the images."""

    apart: float = 0.0
    size: float = 0.0
    """Squared norm of the reference."""
    power: float = 0.0
    """Squared distance of the reference from `origin`."""
    total: Tensor | float = 0.0
    """Sum over the images of the reference minus `origin`."""
    rows: int = 0
    elements: int = 0
    origin: Tensor | None = None
    """Mean of the first batch; subtracting it avoids cancellation."""

    def add(self, found: Tensor, reference: Tensor, images: int) -> None:
        """Add the outputs of one batch of `images` images."""
        a, b = (_real(t) for t in (found, reference))
        axis = _image_axis(b, images)
        if self.origin is None:
            self.origin = b.mean(axis)
        self.apart += float((a - b).square().sum())
        self.size += float(b.square().sum())
        shifted = b - self.origin.unsqueeze(axis)
        self.power += float(shifted.square().sum())
        self.total = self.total + shifted.sum(axis)
        self.rows += b.shape[axis]
        self.elements += b.numel()

    @property
    def squared_deviation(self) -> float:
        """Squared distance of the reference from its mean; 0 if it is below rounding error."""
        mean = torch.as_tensor(self.total).square().sum() / max(self.rows, 1)
        left = self.power - float(mean)
        return left if left > 1e-12 * self.power else 0.0

    @property
    def reference_power(self) -> float:
        """What errors are relative to: the squared deviation, unless the output hardly varies."""
        deviation = self.squared_deviation
        return max(deviation, NEARLY_CONSTANT * self.size) if deviation else 0.0

    @property
    def variance(self) -> float:
        """Variance of the reference over the images, averaged over all elements."""
        return self.squared_deviation / max(self.elements, 1)


def _real(output: Tensor) -> Tensor:
    """Return an output as real numbers in double precision, with at least one dimension."""
    real = torch.view_as_real(output) if output.is_complex() else output
    return torch.atleast_1d(real).double()


def _image_axis(output: Tensor, images: int) -> int:
    """Return the first axis with one entry per image, 0 if there is none."""
    fitting = [axis for axis, size in enumerate(output.shape) if size == images]
    return fitting[0] if fitting else 0


@dataclass(slots=True)
class SensitivityAnalyzer:
    """Measures the change of the outputs; reruns the network from the first affected layer on."""

    task: Pass
    graph: ChannelGraph
    readers: Sequence[BoundConsumer]
    grams: TensorStore
    ridge: float
    sensitivity: Sensitivity | None = None
    """User-defined measure that replaces the divergence."""
    outputs: str | Sequence[str] = "auto"
    """What the outputs are."""
    narrow_batches: int | None = None
    """Number of batches on which narrow groups are measured; None for all."""
    kinds: tuple[Kind, ...] = field(init=False)
    reference: list[list[Tensor]] = field(init=False)
    """Outputs of the original network, by batch."""

    def __post_init__(self) -> None:
        self.reference = self._outputs(dict(self.task.tensors))
        self.kinds = output_kinds(self.reference[0], self.task.batch_sizes[0], self.outputs)

    def sweep(
        self, trials: Mapping[str, Sequence[Sequence[int]]], held: Kept
    ) -> Iterator[tuple[str, list[OutputChange]]]:
        """Yield every group of `trials` with the change of the outputs for each of its kept sets.

        The other groups keep their channels in `held`. Consumers of the pruned group are refitted
        on the original activations. All trials share one pass through the network, which stores
        only activations that later layers still need.
        """
        start = self._tensors_at(held)
        groups = self._by_place(trials)
        with self.task.execution(start) as execution:
            start_place = 0
            for place in sorted(groups):
                advance([execution], start_place, place)
                start_place = place
                for group in groups[place]:
                    sets = trials[group.name]
                    yield (
                        group.name,
                        [self._change(execution, place, group, kept, held) for kept in sets],
                    )

    def change(self, tensors: Mapping[str, Tensor]) -> OutputChange:
        """Return the change of the outputs if `tensors` replace the original ones."""
        return self._compare(self._outputs(dict(tensors)))

    def uninformative_divergence(self) -> float:
        """Return the divergence of outputs that do not depend on the image."""
        if self.sensitivity is not None:
            means = [
                torch.cat(parts, axis).mean(axis, keepdim=True)
                for parts in zip(*self.reference, strict=True)
                for axis in [_image_axis(parts[0], self.task.batch_sizes[0])]
            ]
            blind = [
                [m.expand_as(t) for m, t in zip(means, batch, strict=True)]
                for batch in self.reference
            ]
            return self._compare(blind).divergence
        values = [
            gap.squared_deviation > 0
            for gap, kind in zip(self._reference_gaps(), self.kinds, strict=True)
            if kind == "values"
        ]
        total = float(any(values))
        for kind, *parts in zip(self.kinds, *self.reference, strict=True):
            if kind != "values":
                logs = torch.cat([log_probabilities(part, kind) for part in parts])
                mean = logs.exp().mean(0).log()
                total += float(kl_divergence(mean.expand_as(logs), logs, "logits").mean())
        return total

    def _compare(self, found: Sequence[Sequence[Tensor]]) -> OutputChange:
        """Return the change of the outputs on the first batches, as many as were found."""
        reference, sizes = self.reference[: len(found)], self.task.batch_sizes[: len(found)]
        return output_change(found, reference, sizes, self.sensitivity, self.kinds)

    def _reference_gaps(self) -> list[OutputGap]:
        gaps = [OutputGap() for _ in self.reference[0]]
        for batch, images in zip(self.reference, self.task.batch_sizes, strict=True):
            for gap, output in zip(gaps, batch, strict=True):
                gap.add(output, output, images)
        return gaps

    def _by_place(self, trials: Mapping[str, object]) -> dict[int, list[Group]]:
        """Return the groups by the position of the first node that they change.

        This is a consumer, or a normalization whose statistics are over their channels.
        """
        norms = self._norm_places()
        found: dict[int, list[Group]] = {}
        for name in trials:
            group = self.graph.group(name)
            places = [
                p for r in self.readers if name in r.spec.columns_per_channel for p in r.call_sites
            ]
            places += [norms[m.tensor] for m in group.members if m.tensor in norms]
            found.setdefault(min(places), []).append(group)
        return found

    def _norm_places(self) -> dict[str, int]:
        """Return the position of the first call of every normalization over channels."""
        program, found = self.task.programs[0], dict[str, int]()
        for node, name in program.names.items():
            if name in self.graph.norms and node.users:
                found[name] = min(program.place[user] for user in node.users)
        return found

    def _tensors_at(self, held: Kept) -> dict[str, Tensor]:
        stays = self.graph.kept_indices(held)
        tensors = masked_tensors(self.graph, stays, self.task.tensors)
        for reader in self.readers:
            self._refit(reader, stays, tensors)
        return tensors

    def _change(
        self, held: Execution, place: int, group: Group, kept: Sequence[int], others: Kept
    ) -> OutputChange:
        stays = self.graph.kept_indices({**others, group.name: kept})
        tensors = dict(held.tensors)
        for weight, kept_channels in self._restricted(group, stays).items():
            tensors[weight] = mark_removed(self.task.tensors[weight], kept_channels)
        for reader in self.readers:
            if group.name in reader.spec.columns_per_channel:
                self._refit(reader, stays, tensors)
        count = self.narrow_batches if len(kept) < NARROW * group.channels else None
        later = range(place, len(held.program.nodes))
        return self._compare(held.first(count).branch(tensors, changed_nodes=later).finish(place))

    def _restricted(self, group: Group, kept_indices: KeptIndices) -> dict[str, Sequence[int]]:
        """Return the kept channels of the normalizations over channels of `group`."""
        weights = {m.tensor for m in group.members if m.tensor in self.graph.norms}
        return {name: kept_indices[name][0] for name in weights if name in kept_indices}

    def _refit(
        self, reader: BoundConsumer, kept_indices: KeptIndices, tensors: dict[str, Tensor]
    ) -> None:
        """Refit `reader` from its original weights, in place in `tensors`."""
        original, weight = self.task.tensors, reader.spec.weight
        dims = kept_indices.get(weight, {})
        for name in modified_tensors(reader):
            tensors[name] = original[name]
        if reader.spec.dim in dims:
            tensors[weight] = mask_removed(original[weight], reader.spec.dim, dims)
            gram = gram_of(self.grams, reader.spec.layer)
            refit_layer(reader, gram, kept_indices, original, tensors, self.ridge)

    def _outputs(self, tensors: dict[str, Tensor]) -> list[list[Tensor]]:
        with self.task.execution(tensors) as execution:
            return [outputs for one in execution.by_batch() for outputs in one.finish(0)]


def output_change(
    found: Sequence[Sequence[Tensor]],
    reference: Sequence[Sequence[Tensor]],
    images: Sequence[int],
    sensitivity: Sensitivity | None = None,
    kinds: Sequence[Kind] | None = None,
) -> OutputChange:
    """Return the distance of `found` from `reference`, both by batch of `images[batch]` images."""
    gaps = [OutputGap() for _ in reference[0]]
    for batch, (some, others) in enumerate(zip(found, reference, strict=True)):
        for gap, a, b in zip(gaps, some, others, strict=True):
            gap.add(a, b, images[batch])
    error = _relative_error(gaps)
    if sensitivity is not None:
        return OutputChange(_mean_sensitivity(sensitivity, found, reference, images), error)
    kinds = output_kinds(reference[0], images[0]) if kinds is None else kinds
    divergence = _relative_error(
        [gap for gap, kind in zip(gaps, kinds, strict=True) if kind == "values"]
    )
    for number, kind in enumerate(kinds):
        if kind != "values":
            pairs = zip(found, reference, strict=True)
            parts = [kl_divergence(a[number], b[number], kind) for a, b in pairs]
            divergence += float(torch.cat(parts).mean())
    return OutputChange(divergence, error)


def _relative_error(gaps: Sequence[OutputGap]) -> float:
    apart = sum((gap.apart for gap in gaps), 0.0)
    spread = sum(gap.reference_power for gap in gaps)
    return apart / spread if spread > 0 else apart


def _mean_sensitivity(
    sensitivity: Sensitivity,
    found: Sequence[Sequence[Tensor]],
    reference: Sequence[Sequence[Tensor]],
    images: Sequence[int],
) -> float:
    """Return the mean of a user-defined sensitivity over all images."""
    total = 0.0
    for some, others, count in zip(found, reference, images, strict=True):
        values = torch.as_tensor(sensitivity(_outputs_of(some), _outputs_of(others)))
        if values.shape != (count,):
            raise BadSettingError(
                f"sensitivity must return one value per image, shape ({count},), got the shape "
                f"{tuple(values.shape)}"
            )
        total += float(values.double().sum())
    return total / sum(images)


def _outputs_of(batch: Sequence[Tensor]) -> Tensor | tuple[Tensor, ...]:
    return batch[0] if len(batch) == 1 else tuple(batch)
