"""Selectors to compare with: magnitude, LASSO, random, exhaustive, scores of the user."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from entrim.entropic.least_squares import RIDGE, NormalEquations, refit
from entrim.entropic.moments import Moments, columns_of
from entrim.entropic.objective import Consumer
from entrim.entropic.solve import consumers_of, solve_k
from entrim.errors import BadSettingError, MissingExtraError
from entrim.graph.channel_graph import Group
from entrim.selection.base import GroupStatistics
from entrim.selection.elimination import EliminationState, cheapest, elimination_order, own_blocks

if TYPE_CHECKING:
    Method = Literal["entropic", "greedy", "lasso", "magnitude", "random", "exhaustive"]
else:
    Method = str  # an unknown one is refused here, with a remedy
Weights = Tensor | Sequence[Tensor]
MOST_SUBSETS = 20_000
SWAPS = 16


@dataclass(frozen=True, slots=True)
class MomentsSelector:
    """A selector that works on second moments and weights, by its name in `select`."""

    method: Method

    def select(self, statistics: GroupStatistics, k: int) -> Int[Tensor, " k"]:
        """Return the indices of `k` channels."""
        return select(
            list(statistics.moments),
            k=k,
            method=self.method,
            weight=list(statistics.weights),
            generator=statistics.generator,
        )

    def __str__(self) -> str:
        return self.method


@dataclass(frozen=True, slots=True)
class Scores:
    """A selector that keeps the channels with the largest scores of the user.

    Parameters
    ----------
    scores : dict
        `{pattern: one number per channel}`. Patterns match the name of a group or of a layer that
        produces its channels; the first match counts. It must cover every group to be pruned.
    """

    scores: Mapping[str, Sequence[float] | Tensor]

    def __post_init__(self) -> None:
        if not isinstance(self.scores, Mapping):
            raise BadSettingError(
                f"scores must be a dict {{pattern: numbers}}, got {self.scores!r}"
            )
        for pattern, values in self.scores.items():
            if not isinstance(values, Tensor | Sequence):
                raise BadSettingError(
                    f"the scores of {pattern!r} must be one number per channel, got {values!r}"
                )
            if isinstance(values, Tensor) and values.ndim != 1:
                raise BadSettingError(
                    f"the scores of {pattern!r} have shape {tuple(values.shape)}: pass one number "
                    "per channel"
                )

    def of_group(self, group: Group) -> list[float]:
        """Return the scores of one group."""
        found = next((v for key, v in self.scores.items() if group.matches(key)), None)
        if found is None:
            raise BadSettingError(
                f"there are no scores for the group {group.name}: add them, or exclude the group"
            )
        values = [float(value) for value in found]
        if len(values) != group.channels or any(map(math.isnan, values)):
            raise BadSettingError(
                f"the scores of {group.name} are {len(values)} numbers: pass one for each of its "
                f"{group.channels} channels, none of them NaN"
            )
        return values

    def select(self, statistics: GroupStatistics, k: int) -> list[int]:
        """Return the indices of the `k` largest scores."""
        scores = torch.tensor(self.of_group(statistics.group))
        return scores.sort(descending=True, stable=True).indices[:k].tolist()

    def rank(self, statistics: GroupStatistics) -> list[int]:
        """Return all channels by ascending score."""
        scores = self.of_group(statistics.group)
        return sorted(range(statistics.channels), key=scores.__getitem__)

    def __str__(self) -> str:
        return "scores"


def select(
    moments: Moments | Sequence[Moments],
    *,
    k: int,
    method: Method,
    weight: Weights | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " k"]:
    """Return `k` channels, ascending, selected by `method`.

    Several moments are consumers of one channel group; their errors are averaged, and `weight` is
    then a list too.

    - `entropic`: the channels of `solve_k`, then up to 16 swaps of one channel for another while
      the least-squares error falls.
    - `greedy`: backward elimination by the exact increase of the least-squares error.
    - `lasso`: one scale per channel on the layer's `weight` (its least-squares fit when None), made
      sparse by an L1 penalty (He et al. 2017).
    - `magnitude`: the largest L1 norms of the layer's `weight` (M, D*block); needs no data.
    - `random`: the baseline; draws from `generator`.
    - `exhaustive`: the best of all subsets in least squares, for up to 20,000 of them.

    >>> import torch, entrim
    >>> x = torch.randn(500, 8, generator=torch.Generator().manual_seed(0))
    >>> m = entrim.Moments.of(x, x[:, [2, 6]])
    >>> entrim.select(m, k=2, method="greedy").tolist()
    [2, 6]
    """
    group = [m.to("cpu") for m in consumers_of(moments)]
    total = group[0].channels
    if not isinstance(k, int) or not 1 <= k <= total:
        raise BadSettingError(f"k is {k}: pass 1 to {total}")
    weights = _checked_weights(group, weight)
    if method == "entropic":
        chosen = _swap(group, solve_k(group, k=k).kept)
    elif method == "greedy":
        chosen = elimination_order(group)[total - k :]
    elif method == "lasso":
        chosen = _lasso(group, k, weights)
    elif method == "magnitude":
        chosen = _magnitude(group, k, weights)
    elif method == "random":
        chosen = torch.randperm(total, generator=generator)[:k]
    elif method == "exhaustive":
        chosen = _exhaustive(group, k)
    else:
        raise BadSettingError(
            f"no method {method!r}: choose entropic, greedy, lasso, magnitude, random or exhaustive"
        )
    return chosen.sort().values


def _checked_weights(group: Sequence[Moments], weight: Weights | None) -> list[Tensor] | None:
    if weight is None:
        return None
    weights = [weight] if isinstance(weight, Tensor) else list(weight)
    if len(weights) != len(group):
        raise BadSettingError(f"{len(weights)} weights for {len(group)} layers: hand over one each")
    for m, part in zip(group, weights, strict=True):
        if part.shape != (m.outputs, m.columns):
            raise BadSettingError(
                f"weight has shape {tuple(part.shape)}, the moments need "
                f"{(m.outputs, m.columns)}: flatten a convolution's kernels, (M, D*block)"
            )
    return weights


def mean_error(group: Sequence[Moments], kept: Int[Tensor, " k"] | Sequence[int]) -> float:
    """Return the least-squares error on the channels `kept`, averaged over the consumers."""
    return sum(refit(m, kept).mse for m in group) / len(group)


def _swap(group: Sequence[Moments], kept: Int[Tensor, " k"]) -> Int[Tensor, " k"]:
    """Give the cheapest channel away for the most useful one outside, while the error falls."""
    everything = torch.arange(group[0].channels)
    if len(kept) == len(everything):
        return kept
    equations = [NormalEquations.of(m, everything) for m in group]
    error = mean_error(group, kept)
    for _ in range(SWAPS):
        parts = [
            EliminationState.of(whole.among(columns_of(kept, m.block)), m.block)
            for whole, m in zip(equations, group, strict=True)
        ]
        out = cheapest(parts)
        rest = torch.cat([kept[:out], kept[out + 1 :]])
        outside = everything[~torch.isin(everything, rest)]
        gains = [
            _gains(whole, rest, outside, m.block) / m.outputs
            for whole, m in zip(equations, group, strict=True)
        ]
        best = outside[torch.stack(gains).mean(0).argmax()][None]
        swapped = torch.cat([rest, best]).sort().values
        better = mean_error(group, swapped)
        if not better < error:
            break
        kept, error = swapped, better
    return kept


def _gains(
    equations: NormalEquations, kept: Int[Tensor, " k"], outside: Int[Tensor, " rest"], block: int
) -> Float[Tensor, " rest"]:
    """Return how much each channel of `outside` takes off the squared error when it joins `kept`.

    With R_e what is left of C_e and S_ee what is left of G_ee once `kept` is fitted, channel e
    takes tr(R_e' S_ee^-1 R_e) off the error.
    """
    columns, others = columns_of(kept, block), columns_of(outside, block)[1:]
    factor = equations.among(columns).factor()
    link = equations.gram.index_select(0, columns).index_select(1, others)
    half = torch.linalg.solve_triangular(factor, link, upper=False)
    seen = half.T @ torch.linalg.solve_triangular(factor, equations.cross[columns], upper=False)
    left = (equations.cross[others] - seen).unflatten(0, (-1, block))
    explained = half.T.unflatten(0, (-1, block))
    own = own_blocks(equations.gram[others][:, others], block) - explained @ explained.mT
    own = own + RIDGE * torch.eye(block, dtype=own.dtype)
    return (left * torch.linalg.solve(own, left)).sum((1, 2))


def _lasso(group: Sequence[Moments], k: int, weights: Sequence[Tensor] | None) -> Int[Tensor, " k"]:
    """Cut the LASSO path of the channel scales at its first point with k of them."""
    try:
        from sklearn.linear_model import lars_path_gram
    except ImportError as error:
        raise MissingExtraError('method="lasso"', "scikit-learn", "compare") from error
    terms = []
    for number, m in enumerate(group):
        weight = weights[number] if weights else refit(m, range(m.channels)).weight
        W = torch.cat([torch.zeros(1, m.outputs), weight.detach().cpu().T]).to(torch.float64)
        terms.append(Consumer.of(_center(m), 1.0).quadratic(W))
    H, b = (torch.stack(parts).mean(0) for parts in zip(*terms, strict=True))
    alive = (H.diagonal() > 0).nonzero()[:, 0]
    _, _, path = lars_path_gram(
        b[alive].numpy(), H[alive][:, alive].numpy(), n_samples=group[0].count, method="lasso"
    )
    scales = torch.zeros(len(b), path.shape[1], dtype=torch.float64)
    scales[alive] = torch.from_numpy(path)
    enough = ((scales != 0).sum(0) >= k).nonzero()
    cut = int(enough[0]) if len(enough) else -1
    return scales[:, cut].abs().topk(k).indices


def _center(m: Moments) -> Moments:
    """Return the moments of the same rows with their means taken off."""
    mean = m.gram_sum[0] / m.count
    target = m.cross_sum[0] / m.count
    gram = m.gram_sum - m.count * torch.outer(mean, mean)
    gram[0, 0] = m.count
    gram.diagonal().clamp_min_(0)
    cross = m.cross_sum - m.count * torch.outer(mean, target)
    power = max(0.0, m.target_sum_sq - m.count * float(target.square().sum()))
    return Moments(
        count=m.count, gram_sum=gram, cross_sum=cross, target_sum_sq=power, block=m.block
    )


def _magnitude(
    group: Sequence[Moments], k: int, weights: Sequence[Tensor] | None
) -> Int[Tensor, " k"]:
    if weights is None:
        raise BadSettingError('method="magnitude" needs the layer: pass weight=, (M, D*block)')
    norms = [
        weight.detach().cpu().abs().double().sum(0).view(-1, m.block).sum(1)
        for m, weight in zip(group, weights, strict=True)
    ]
    return torch.stack(norms).sum(0).topk(k).indices


def _exhaustive(group: Sequence[Moments], k: int) -> Int[Tensor, " k"]:
    total = group[0].channels
    subsets = math.comb(total, k)
    if subsets > MOST_SUBSETS:
        raise BadSettingError(
            f"{subsets:,} subsets of {k} in {total} channels are more than "
            f'{MOST_SUBSETS:,}: use method="greedy"'
        )
    return torch.tensor(min(combinations(range(total), k), key=lambda s: mean_error(group, s)))
