"""Choosing exactly k channels from the same statistics: by entropy, and by honest competitors."""

import math
from itertools import combinations
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from entrim.errors import BadSettingError, MissingExtraError
from entrim.moments import Moments
from entrim.solver.least_squares import RIDGE, NormalEquations, refit
from entrim.solver.objective import Consumer, columns_of
from entrim.solver.path import solve_for

if TYPE_CHECKING:
    Selector = Literal["entropic", "greedy", "lasso", "magnitude", "random", "exhaustive"]
else:
    Selector = str  # so that an unknown one is refused by us, with the remedy
MOST_SUBSETS = 20_000
SWAPS = 16


def select(
    moments: Moments,
    *,
    channels: int,
    method: Selector,
    weight: Float[Tensor, "M n"] | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " k"]:
    """Return `channels` channels, ascending, chosen by `method`.

    - `entropic`: the channels of `solve_for`, then up to 16 swaps of one channel for another while
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
    >>> entrim.select(m, channels=2, method="greedy").tolist()
    [2, 6]
    """
    if not isinstance(channels, int) or not 1 <= channels <= moments.channels:
        raise BadSettingError(f"channels is {channels}: ask for 1 to {moments.channels}")
    if weight is not None and weight.shape != (moments.outputs, moments.columns):
        raise BadSettingError(
            f"weight has shape {tuple(weight.shape)}, the moments need "
            f"{(moments.outputs, moments.columns)}: flatten a convolution's kernels, (M, D*block)"
        )
    moments = moments.to("cpu")
    if method == "entropic":
        chosen = _swap(moments, solve_for(moments, channels=channels).kept)
    elif method == "greedy":
        chosen = _greedy(moments, channels)
    elif method == "lasso":
        chosen = _lasso(moments, channels, weight)
    elif method == "magnitude":
        chosen = _magnitude(moments, channels, weight)
    elif method == "random":
        chosen = torch.randperm(moments.channels, generator=generator)[:channels]
    elif method == "exhaustive":
        chosen = _exhaustive(moments, channels)
    else:
        raise BadSettingError(
            f"no method {method!r}: choose entropic, greedy, lasso, magnitude, random or exhaustive"
        )
    return chosen.sort().values


def _greedy(m: Moments, k: int) -> Int[Tensor, " k"]:
    """Drop the cheapest channel until k are left, updating P = G^-1 and B = P C.

    Without channel d the squared error rises by tr(B_d' P_dd^-1 B_d); the block inverse then loses
    P_rd P_dd^-1 P_dr. Cost: O(block n (n + M)) a step, against O(n^3) to solve again.
    """
    left = torch.arange(m.channels)
    equations = NormalEquations.of(m, left)
    factor = equations.factor()
    P = torch.cholesky_inverse(factor)
    B = torch.cholesky_solve(equations.cross, factor)
    while len(left) > k:
        worst = _cheapest(P, B, m.block)
        gone = columns_of(torch.tensor([worst]), m.block)[1:]
        rest = torch.cat([torch.arange(int(gone[0])), torch.arange(int(gone[-1]) + 1, len(P))])
        share = torch.linalg.solve(P[gone][:, gone], P[gone][:, rest])
        B = B[rest] - share.T @ B[gone]
        P = P[rest][:, rest] - P[rest][:, gone] @ share
        left = torch.cat([left[:worst], left[worst + 1 :]])
    return left


def _cheapest(P: Float[Tensor, "n1 n1"], B: Float[Tensor, "n1 M"], block: int) -> int:
    """Return the position of the channel whose loss costs least, the last one of equals."""
    used = B[1:].unflatten(0, (-1, block))
    rise = (used * torch.linalg.solve(own_blocks(P[1:, 1:], block), used)).sum((1, 2))
    return len(rise) - 1 - int(rise.flip(0).argmin())


def own_blocks(matrix: Float[Tensor, "n n"], block: int) -> Float[Tensor, "D block block"]:
    """Return the blocks on the diagonal."""
    blocks = matrix.unflatten(0, (-1, block)).unflatten(2, (-1, block))
    return blocks.diagonal(dim1=0, dim2=2).permute(2, 0, 1)


def _swap(m: Moments, kept: Int[Tensor, " k"]) -> Int[Tensor, " k"]:
    """Give the cheapest channel away for the most useful one outside, while the error falls."""
    equations = NormalEquations.of(m, torch.arange(m.channels))
    error = refit(m, kept).mse
    for _ in range(SWAPS):
        inner = equations.among(columns_of(kept, m.block))
        factor = inner.factor()
        B = torch.cholesky_solve(inner.cross, factor)
        out = _cheapest(torch.cholesky_inverse(factor), B, m.block)
        rest = torch.cat([kept[:out], kept[out + 1 :]])
        swapped = torch.cat([rest, _most_useful(equations, rest, m.block)]).sort().values
        better = refit(m, swapped).mse
        if not better < error:
            break
        kept, error = swapped, better
    return kept


def _most_useful(
    equations: NormalEquations, kept: Int[Tensor, " k"], block: int
) -> Int[Tensor, " 1"]:
    """Return the channel outside `kept` that lowers the least-squares error most.

    With R_e what is left of C_e and S_ee what is left of G_ee once `kept` is fitted, channel e
    takes tr(R_e' S_ee^-1 R_e) off the error.
    """
    channels = (len(equations.gram) - 1) // block
    outside = torch.tensor(sorted(set(range(channels)) - set(kept.tolist())))
    columns, others = columns_of(kept, block), columns_of(outside, block)[1:]
    factor = equations.among(columns).factor()
    link = equations.gram.index_select(0, columns).index_select(1, others)
    half = torch.linalg.solve_triangular(factor, link, upper=False)
    seen = half.T @ torch.linalg.solve_triangular(factor, equations.cross[columns], upper=False)
    left = (equations.cross[others] - seen).unflatten(0, (-1, block))
    explained = half.T.unflatten(0, (-1, block))
    own = own_blocks(equations.gram[others][:, others], block) - explained @ explained.mT
    own = own + RIDGE * torch.eye(block, dtype=own.dtype)
    gain = (left * torch.linalg.solve(own, left)).sum((1, 2))
    return outside[gain.argmax()][None]


def _lasso(m: Moments, k: int, weight: Tensor | None) -> Int[Tensor, " k"]:
    """Cut the LASSO path of the channel scales at its first point with k of them."""
    try:
        from sklearn.linear_model import lars_path_gram
    except ImportError as error:
        raise MissingExtraError('method="lasso"', "scikit-learn", "compare") from error
    if weight is None:
        weight = refit(m, range(m.channels)).weight
    W = torch.cat([torch.zeros(1, m.outputs), weight.detach().cpu().T]).to(torch.float64)
    H, b = Consumer.of(_centred(m), 1.0).quadratic(W)
    alive = (H.diagonal() > 0).nonzero()[:, 0]
    _, _, path = lars_path_gram(
        b[alive].numpy(), H[alive][:, alive].numpy(), n_samples=m.count, method="lasso"
    )
    scales = torch.zeros(m.channels, path.shape[1], dtype=torch.float64)
    scales[alive] = torch.from_numpy(path)
    enough = ((scales != 0).sum(0) >= k).nonzero()
    cut = int(enough[0]) if len(enough) else -1
    return scales[:, cut].abs().topk(k).indices


def _centred(m: Moments) -> Moments:
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


def _magnitude(m: Moments, k: int, weight: Tensor | None) -> Int[Tensor, " k"]:
    if weight is None:
        raise BadSettingError('method="magnitude" needs the layer: pass weight=, (M, D*block)')
    norms = weight.detach().abs().double().sum(0).view(-1, m.block).sum(1)
    return norms.topk(k).indices.cpu()


def _exhaustive(m: Moments, k: int) -> Int[Tensor, " k"]:
    subsets = math.comb(m.channels, k)
    if subsets > MOST_SUBSETS:
        raise BadSettingError(
            f"{subsets:,} subsets of {k} in {m.channels} channels are more than "
            f'{MOST_SUBSETS:,}: use method="greedy"'
        )
    return torch.tensor(min(combinations(range(m.channels), k), key=lambda s: refit(m, s).mse))
