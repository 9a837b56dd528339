"""Refit one layer and write its new weights and intercept."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Int
from torch import Tensor

from entrim.calibration.consumers import BoundConsumer, KeptIndices
from entrim.calibration.gram import Gram, LayerRows
from entrim.entropic.least_squares import Refit, refit
from entrim.entropic.moments import Moments
from entrim.entropic.observations import Observations, refit_rows
from entrim.entropic.solution import Part
from entrim.graph.channel_graph import ChannelGraph, Group
from entrim.graph.residual_blocks import ResidualBlock
from entrim.surgery.prune import part_of, write_part, zero_removed

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
    """Squared error of the kept outputs, relative to their variance."""


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
    """Return the tensors with zeros in the columns of removed channels and in removed branches."""
    changed = {}
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
    for number, (rows, columns) in enumerate(_kept_matrix(reader, kept_indices)):
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
    for number, (rows, kept) in enumerate(_kept_matrix(reader, kept_indices)):
        change = torch.cat([shift[number][:, None], new[number] - old[number]], 1)[rows]
        error += gram.mean_square(number, change)
        variance += gram.variance(number, old[number][rows])
        columns = len(kept)
    relative = max(0.0, error) / variance if variance else 0.0
    return LayerFit(reader.spec.layer, gram.count, columns, relative)


def _kept_matrix(
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

    @cache
    def error(candidate: int) -> float:
        if not 0 <= candidate < len(RIDGES):
            return math.inf
        return judge(RIDGES[candidate])

    def judge(candidate: float) -> float:
        return squared_error(inner, solve_layer(reader, fitting, candidate))

    best = len(RIDGES) // 2
    step = 1 if error(best + 1) < error(best) else -1
    while error(best + step) < error(best):
        best += step
    if error(best) < inner.target_sum_sq:
        return RIDGES[best]
    return next((one for one in LARGE_RIDGES if judge(one) < inner.target_sum_sq), math.inf)


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


def as_fit(reader: BoundConsumer, parts: Sequence[Refit], rows: int, variance: float) -> LayerFit:
    """Return the fit of the solved `parts`, relative to the total variance of the outputs."""
    lack = sum(part.mse * len(part.bias) for part in parts)
    columns = parts[0].weight.shape[1]
    return LayerFit(reader.spec.layer, rows, columns, lack / variance if variance else 0.0)
