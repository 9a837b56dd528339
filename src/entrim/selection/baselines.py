"""Baseline selectors: magnitude, LASSO, random, exhaustive, user-defined scores."""

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
    Method = str  # other values raise an error of entrim, with a remedy
Weights = Tensor | Sequence[Tensor]
MOST_SUBSETS = 20_000
SWAPS = 16


@dataclass(frozen=True, slots=True)
class MomentsSelector:
    """A method of `select`, as a selector."""

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
    """A selector that keeps the channels with the largest user-defined scores.

    Parameters
    ----------
    scores : dict
        `{pattern: one number per channel}`. A pattern matches the name of a group or of a layer
        that produces its channels; the first match applies. Every group to be pruned must match.
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
                    f"the scores of {pattern!r} must be one number per channel, got the shape "
                    f"{tuple(values.shape)}"
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
                f"the scores of {group.name} must be {group.channels} numbers, one per channel, "
                f"none of them NaN, got {len(values)} numbers"
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
    """Select `k` channels by one of several methods.

    Parameters
    ----------
    moments : Moments or list of Moments
        Second moments of a layer, or of several consumers of one channel group, whose errors are
        averaged.
    k : int
        Number of channels to keep.
    method : str
        - "entropic": the channels of `solve_k`, then up to 16 swaps of single channels while the
          least-squares error decreases.
        - "greedy": backward elimination by the exact increase of the least-squares error.
        - "lasso": one scale per channel on `weight`, with an L1 penalty (He et al. 2017).
        - "magnitude": the largest L1 norms of `weight`; independent of the data.
        - "random": random channels.
        - "exhaustive": the best of all subsets by least squares, for at most 20,000 subsets.
    weight : Tensor or list of Tensor, optional
        Weights of shape (M, D*block), one per consumer; required for "magnitude". For "lasso", the
        least-squares fit is the default.
    generator : torch.Generator, optional
        Source of random numbers for "random".

    Returns
    -------
    Tensor of shape (k,)
        Indices of the kept channels, in ascending order.

    Examples
    --------
    >>> import torch, entrim
    >>> x = torch.randn(500, 8, generator=torch.Generator().manual_seed(0))
    >>> m = entrim.Moments.of(x, x[:, [2, 6]])
    >>> entrim.select(m, k=2, method="greedy").tolist()
    [2, 6]
    """
    group = [m.to("cpu") for m in consumers_of(moments)]
    total = group[0].channels
    if not isinstance(k, int) or not 1 <= k <= total:
        raise BadSettingError(f"k must be an integer from 1 to {total}, got {k}")
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
            "method must be one of 'entropic', 'greedy', 'lasso', 'magnitude', 'random', "
            f"'exhaustive'; got {method!r}"
        )
    return chosen.sort().values


def _checked_weights(group: Sequence[Moments], weight: Weights | None) -> list[Tensor] | None:
    if weight is None:
        return None
    weights = [weight] if isinstance(weight, Tensor) else list(weight)
    if len(weights) != len(group):
        raise BadSettingError(
            f"weight must have one tensor for each of the {len(group)} layers, got {len(weights)}"
        )
    for m, part in zip(group, weights, strict=True):
        if part.shape != (m.outputs, m.columns):
            raise BadSettingError(
                f"weight must have the shape {(m.outputs, m.columns)}, got {tuple(part.shape)}: "
                "flatten the kernels of a convolution to (M, D*block)"
            )
    return weights


def mean_error(group: Sequence[Moments], kept: Int[Tensor, " k"] | Sequence[int]) -> float:
    """Return the least-squares error on the channels `kept`, averaged over the consumers."""
    return sum(refit(m, kept).mse for m in group) / len(group)


def _swap(group: Sequence[Moments], kept: Int[Tensor, " k"]) -> Int[Tensor, " k"]:
    """Swap the cheapest kept channel for the best removed one while the error decreases."""
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
        out = int(cheapest(parts))
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
    """Return the decrease of the squared error if a channel of `outside` is added to `kept`.

    With R_e and S_ee the residuals of C_e and G_ee after fitting `kept`, channel e decreases the
    error by tr(R_e' S_ee^-1 R_e).
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
    """Return the channels at the first point of the LASSO path with k nonzero scales."""
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
    """Return the moments of the centered rows."""
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
        raise BadSettingError('method="magnitude" requires weight=, of shape (M, D*block)')
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
            f"{subsets:,} subsets of {k} in {total} channels exceed the limit of "
            f'{MOST_SUBSETS:,}: use method="greedy"'
        )
    return torch.tensor(min(combinations(range(total), k), key=lambda s: mean_error(group, s)))
