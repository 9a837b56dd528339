"""Refit one layer: its regression problem, the ridge, its new weights and intercept."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from entrim.calibration.consumers import BoundConsumer, KeptIndices
from entrim.calibration.patch_gram import Gram, LayerRows, PatchGram, RowCollector, in_double
from entrim.entropic.least_squares import NormalEquations, Refit, factor_ridged, refit
from entrim.entropic.moments import Moments
from entrim.entropic.observations import Observations, refit_rows
from entrim.entropic.solution import Part
from entrim.errors import SingularMomentsError
from entrim.graph.channel_graph import ChannelGraph, Group, ResidualBlock
from entrim.graph.restricted import mark_removed
from entrim.surgery.plan import part_of, write_part, zero_removed

RIDGES = (1e-4, 1e-3, 1e-2, 1e-1)
"""Candidates for the ridge of a layer, relative to the second moment of each column."""
LARGE_RIDGES = (1.0, 10.0)
"""Candidates if no other one is better than the original weights. In measurements the inner split
preferred ridges larger than the best ones for unseen images, perhaps because earlier layers are
fitted to the images of the inner split, too."""
DEFAULT_RIDGE = 1e-2
"""The ridge of fits without an inner split."""
MIN_ROWS = 2
"""Rows per column below which a layer without an inner split keeps its weights."""


@dataclass(frozen=True, slots=True)
class LayerFit:
    """How well a refitted layer reproduces its original outputs."""

    layer: str
    rows: int
    columns: int
    error: float
    """Squared error of the kept outputs, relative to their variance; with relaxed targets, an upper
    bound of it."""
    images: int | None = None
    """The number of images, mirror images included, if it is not that of all."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerUpdate:
    """The new tensors of one refitted layer, full size."""

    fit: LayerFit
    tensors: Mapping[str, Tensor]

    def apply(self, tensors: dict[str, Tensor]) -> None:
        """Replace the entries of `tensors`, in their memory layout."""
        for name, tensor in self.tensors.items():
            tensors[name] = torch.empty_like(tensors[name]).copy_(tensor)


Cached = Callable[[str, Callable[[], LayerUpdate]], LayerUpdate]
"""Returns the update of the layer with this name: restored, or computed by the function."""


def masked_tensors(
    graph: ChannelGraph,
    kept_indices: KeptIndices,
    tensors: Mapping[str, Tensor],
    removed_blocks: Sequence[ResidualBlock] = (),
) -> dict[str, Tensor]:
    """Return the tensors with zeros in the columns of removed channels and in removed branches.

    Removed channels are marked in normalizations over channels.
    """
    changed = {
        weight: mark_removed(tensors[weight], kept_indices[weight][0])
        for weight in graph.norms
        if weight in kept_indices
    }
    for site in graph.consumers:
        dims = kept_indices.get(site.weight, {})
        if site.dim in dims:
            changed[site.weight] = mask_removed(tensors[site.weight], site.dim, dims)
    for block in removed_blocks:
        changed |= {name: torch.zeros_like(tensors[name]) for name in block.zeroed}
    return {**tensors, **changed}


def mask_removed(weight: Tensor, dim: int, dims: Mapping[int, Sequence[int]]) -> Tensor:
    """Return a copy of `weight` with zeros at the removed positions along `dim`."""
    masked = weight.clone()
    zero_removed(masked, dim, dims)
    return masked


def refit_layer(
    reader: BoundConsumer,
    gram: Gram | LayerRows,
    kept_indices: KeptIndices,
    original: Mapping[str, Tensor],
    tensors: dict[str, Tensor],
    ridge: float | None,
) -> None:
    """Refit one layer on the original activations, in place in `tensors`.

    Cost: a Cholesky factorization of the size of its kept columns, or of its rows if they are kept.
    """
    weight = reader.matrices(original[reader.spec.weight]).double().cpu()
    parts = []
    for number, (rows, columns) in enumerate(kept_matrices(reader, kept_indices)):
        problem = gram.problem(number, columns, weight[number][rows])
        parts.append(solve_layer(reader, problem, select_ridge(reader, [problem], ridge)))
    apply_update(reader, parts, kept_indices, tensors)


def fit_on(
    reader: BoundConsumer,
    gram: Gram | LayerRows,
    kept_indices: KeptIndices,
    original: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
) -> LayerFit:
    """Return the error of the weights in `tensors` on the original activations."""
    name, *intercept = modified_tensors(reader)
    old, new = (reader.matrices(known[name]).double().cpu() for known in (original, tensors))
    shift = torch.zeros(old.shape[:2], dtype=torch.float64)
    if intercept:
        sign = 1 if reader.spec.intercept_target == "bias" else -1
        shift += sign * (tensors[intercept[0]] - original[intercept[0]]).double().cpu().view_as(
            shift
        )
    error, variance, columns = 0.0, 0.0, 0
    for number, (rows, kept) in enumerate(kept_matrices(reader, kept_indices)):
        change = torch.cat([shift[number][:, None], new[number] - old[number]], 1)[rows]
        error += gram.mean_square(number, change)
        variance += gram.variance(number, old[number][rows])
        columns = len(kept)
    relative = max(0.0, error) / variance if variance else 0.0
    return LayerFit(reader.spec.layer, gram.count, columns, relative)


def kept_matrices(
    reader: BoundConsumer, kept_indices: KeptIndices
) -> Iterator[tuple[Int[Tensor, " M"], Int[Tensor, " k"]]]:
    """Yield the kept rows and columns of every matrix of a layer."""
    inputs, outputs = (
        part.view(reader.geometry.groups, -1) for part in reader.kept_channels(kept_indices)
    )
    groups = reader.geometry.groups
    block = reader.columns // (reader.channels // groups)
    for number in range(groups):
        channels = inputs[number] - number * (reader.channels // groups)
        columns = (channels[:, None] * block + torch.arange(block)).flatten()
        yield outputs[number] - number * (reader.outputs // groups), columns


def place_solution(
    reader: BoundConsumer,
    group: Group,
    parts: Sequence[Part],
    tensors: dict[str, Tensor],
) -> None:
    """Write the weights of the solution for `group` into the layer, in place in `tensors`."""
    name = reader.spec.weight
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
    if reader.spec.intercept_target is None:
        return
    home = modified_tensors(reader)[1]
    offset = torch.cat(offsets).to(tensors[home])
    if reader.spec.intercept_target != "bias":
        tensors[home] = tensors[home] - offset
    elif reader.reads_only(group):
        tensors[home] = offset
    else:
        tensors[home] = tensors[home] + offset


def solve_layer(reader: BoundConsumer, moments: Moments | Observations, ridge: float) -> Refit:
    """Return the least-squares fit, without intercept if the layer cannot represent one.

    An infinite ridge gives zeros.
    """
    if math.isinf(ridge):
        zeros = torch.zeros(moments.outputs, 1 + moments.columns, dtype=torch.float64)
        mse = moments.target_sum_sq / moments.count / moments.outputs
        return Refit(weight=zeros[:, 1:], bias=zeros[:, 0], mse=mse)
    if reader.spec.intercept_target is None:
        moments = moments.through_origin()
    if isinstance(moments, Observations):
        return refit_rows(moments, ridge=ridge)
    return refit(moments.to("cpu"), range(moments.channels), ridge=ridge)


def select_ridge(
    reader: BoundConsumer, splits: Sequence[Moments | Observations], ridge: float | None
) -> float:
    """Return `ridge`, or the one that is best on the second of two `splits` if it is None.

    An infinite ridge keeps the present weights: if no fit is better on the second split, or if
    there is none and the layer has few rows. The error has one minimum over the candidates in
    practice: they are tried from the middle, downhill. Cost: one Cholesky factorization each.
    """
    if ridge is not None:
        return ridge
    if len(splits) < 2:
        enough = splits[0].count >= MIN_ROWS * splits[0].columns
        return DEFAULT_RIDGE if enough else math.inf
    fitting, inner = splits
    judge = _trial_errors(reader, fitting, inner)

    @cache
    def error(candidate: int) -> float:
        if not 0 <= candidate < len(RIDGES):
            return math.inf
        return judge(RIDGES[candidate])

    best = len(RIDGES) // 2
    step = 1 if error(best + 1) < error(best) else -1
    while error(best + step) < error(best):
        best += step
    if error(best) < inner.target_sum_sq:
        return RIDGES[best]
    return next((one for one in LARGE_RIDGES if judge(one) < inner.target_sum_sq), math.inf)


def _trial_errors(
    reader: BoundConsumer, fitting: Moments | Observations, inner: Moments | Observations
) -> Callable[[float], float]:
    """Return the squared error on `inner` of the fit on `fitting` as a function of the ridge.

    Single precision suffices to compare the ridges, and takes half the time. A ridge below its
    rounding, which leaves the matrix indefinite, has an infinite error.
    """
    if isinstance(fitting, Observations) or isinstance(inner, Observations):
        return lambda ridge: squared_error(inner, solve_layer(reader, fitting, ridge))
    known = fitting if reader.spec.intercept_target else fitting.through_origin()
    known, judged = known.to("cpu"), inner.to("cpu")
    equations = NormalEquations.of(known, torch.arange(known.channels))
    gram, cross, scale = equations.gram.float(), equations.cross.float(), equations.scale.float()
    inner_gram, inner_cross = judged.gram_sum.float(), judged.cross_sum.float()

    def error(ridge: float) -> float:
        try:
            factor = factor_ridged(gram, ridge)
        except SingularMomentsError:
            return math.inf
        solution = torch.cholesky_solve(cross, factor) / scale[:, None]
        fitted = (2 * inner_cross - inner_gram @ solution) * solution
        return judged.target_sum_sq - float(fitted.sum(dtype=torch.float64))

    return error


def squared_error(data: Moments | Observations, fit: Refit) -> float:
    """Return the sum of the squared errors of `fit`."""
    if isinstance(data, Observations):
        return data.squared_error(fit)
    solution = torch.cat([fit.bias[None], fit.weight.T]).to(data.gram_sum)
    fitted = (2 * data.cross_sum - data.gram_sum @ solution) * solution
    return data.target_sum_sq - float(fitted.sum())


def apply_update(
    reader: BoundConsumer,
    parts: Sequence[Refit],
    kept_indices: KeptIndices,
    tensors: dict[str, Tensor],
) -> None:
    """Add the solved differences to the weights of the layer and to its intercept tensor."""
    name = reader.spec.weight
    dims = kept_indices.get(name, {})
    full = tensors[name].clone()
    step = reader.weight(torch.stack([part.weight for part in parts]))
    small = part_of(full, dims)
    write_part(full, dims, small + step.view(small.shape).to(small))
    tensors[name] = full
    home = reader.spec.intercept_target
    if home is None:
        return
    _, outputs = reader.kept_channels(kept_indices)
    name = modified_tensors(reader)[1]
    sign = 1 if home == "bias" else -1
    full = tensors[name].clone()
    full[outputs.to(full.device)] += sign * torch.cat([part.bias for part in parts]).to(full)
    tensors[name] = full


def modified_tensors(reader: BoundConsumer) -> list[str]:
    """Return the names of the tensors that a refit of `reader` modifies."""
    home = reader.spec.intercept_target
    if home is None:
        return [reader.spec.weight]
    if home == "bias":
        return [reader.spec.weight, f"{reader.spec.layer}.bias"]
    return [reader.spec.weight, home.removeprefix("batchnorm:")]


def as_fit(
    reader: BoundConsumer,
    parts: Sequence[Refit],
    rows: int,
    variance: float,
    images: int | None = None,
) -> LayerFit:
    """Return the fit of the solved `parts`, relative to the total variance of the outputs."""
    lack = sum(part.mse * len(part.bias) for part in parts)
    columns = parts[0].weight.shape[1]
    error = lack / variance if variance else 0.0
    return LayerFit(reader.spec.layer, rows, columns, error, images)


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
    single: bool
    """Whether products of one batch are in single precision, and only their sums in double.

    The Gram matrix then has relative errors below 1e-6, which a ridge of at least 1e-4 absorbs."""

    @classmethod
    def of(
        cls, reader: BoundConsumer, weight: Tensor, channels: int, *, single: bool
    ) -> "ResidualMoments":
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
            single,
        )

    @property
    def count(self) -> int:
        """The number of rows."""
        return self.gram.count

    def add(self, x: Tensor, residual: Tensor) -> None:
        """Add one batch of inputs and of residuals at the outputs."""
        if len(x) == 0:
            return
        self.gram.add(_single(x) if self.single else in_double(x))
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
        convert = _single if self.single else in_double
        wide, short = convert(rows), convert(residual).T.unflatten(0, (len(rows), -1))
        self.gram.add_rows(wide)
        self.cross += in_double(short @ wide)
        self.offset += in_double(short.sum(2))
        self.power += in_double(short.square().sum(2))

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


@dataclass(slots=True)
class ResidualRows:
    """All rows of the inputs and residual outputs of a layer, used like `ResidualMoments`."""

    reader: BoundConsumer
    inputs: RowCollector
    residuals: list[Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, reader: BoundConsumer) -> "ResidualRows":
        """Return an empty set of rows."""
        return cls(reader, RowCollector(reader.geometry))

    @property
    def count(self) -> int:
        """The number of rows."""
        return self.inputs.count

    def add(self, x: Tensor, residual: Tensor) -> None:
        """Add one batch of inputs and of residuals at the outputs."""
        if len(x) == 0:
            return
        self.inputs.add(in_double(x))
        rank = len(self.reader.geometry.kernel)
        self.residuals.append(in_double(residual.movedim(-1 - rank, -1).flatten(0, -2)))

    def add_rows(
        self, rows: Float[Tensor, "groups rows n"], residual: Float[Tensor, "rows M"]
    ) -> None:
        """Add patches of the inputs, and the residual at the same positions."""
        self.inputs.add_rows(in_double(rows))
        self.residuals.append(in_double(residual))

    def moments(self) -> list[Observations]:
        """Return the regression of the residual, one for each matrix of the layer."""
        targets = torch.cat(self.residuals).cpu().unflatten(1, (self.reader.geometry.groups, -1))
        return [
            Observations(inputs=rows, targets=targets[:, number])
            for number, rows in enumerate(self.inputs.rows().cpu())
        ]


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


def _single(tensor: Tensor) -> Tensor:
    """Return the tensor in at least single precision."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
