"""Backward elimination: remove the channel with the lowest cost and update the rest."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from entrim.calibration.patch_gram import MAX_COLUMNS
from entrim.entropic.least_squares import NormalEquations
from entrim.entropic.moments import Moments, columns_of
from entrim.errors import SingularMomentsError
from entrim.selection.base import GroupStatistics

WAITING = 16
"""Number of elimination steps after which the inverse is updated."""
AT_ONCE = 64
"""One channel of this many is removed at once, at least one."""
ROUNDING = 1e-5
"""Ridge above the rounding of single-precision products, relative to a unit diagonal."""
COMPACT = 0.2
"""Share of removed channels above which the matrices are compacted."""


@dataclass(slots=True)
class EliminationState:
    """The solution of one consumer on the remaining channels: P = G^-1 and B = G^-1 C.

    Removing channel d increases the squared error by tr(B_d' P_dd^-1 B_d) and subtracts
    P_rd P_dd^-1 P_dr from P: O(block n (n + M)) per step, instead of O(n^3) for a new solve. B and
    the diagonal blocks are updated in every step. P is updated for several steps at once, because
    an update writes the whole matrix. The rows of a removed channel are zero until `compact`.
    """

    P: Float[Tensor, "n1 n1"]
    """The inverse before the pending updates."""
    B: Float[Tensor, "n1 M"]
    own: Float[Tensor, "D block block"]
    left: list[Float[Tensor, "n1 block"]] = field(default_factory=list)
    """Pending updates: each subtracts `left` times `right` from P."""
    right: list[Float[Tensor, "block n1"]] = field(default_factory=list)

    @classmethod
    def of(cls, equations: NormalEquations, block: int) -> "EliminationState":
        """Return the state with all channels."""
        try:
            factor = equations.factor()
        except SingularMomentsError:  # single-precision products of collinear columns
            factor = equations.factor(ROUNDING)
        P = torch.cholesky_inverse(factor)
        B = torch.cholesky_solve(equations.cross, factor)
        return cls(P, B, own_blocks(P[1:, 1:], block).clone())

    @property
    def block(self) -> int:
        """Number of columns per channel."""
        return self.own.shape[1]

    def removal_costs(self) -> Float[Tensor, " D"]:
        """Return the increase of the squared error per output if a channel is removed."""
        if self.block == 1:
            return self.B[1:].square().sum(1) / (self.own[:, 0, 0] * self.B.shape[1])
        used = self.B[1:].unflatten(0, (-1, self.block))
        solved = torch.linalg.solve(self.own, used @ used.mT)
        return solved.diagonal(dim1=1, dim2=2).sum(1) / self.B.shape[1]

    def drop(self, channels: Int[Tensor, " k"]) -> None:
        """Remove the channels at these positions."""
        gone = columns_of(channels, self.block)[1:]
        column = self.P[:, gone]
        if self.left:
            column -= torch.cat(self.left, 1) @ torch.cat([part[:, gone] for part in self.right])
        share = torch.linalg.solve(column[gone], column.T)
        self.B -= share.T @ self.B[gone]
        self.B[gone] = 0
        shape = (-1, self.block)
        self.own -= column[1:].unflatten(0, shape) @ share.T[1:].unflatten(0, shape).mT
        self.own[channels] = torch.eye(self.block, dtype=share.dtype)
        self.left.append(column)
        self.right.append(share)
        if sum(part.shape[1] for part in self.left) >= WAITING * self.block:
            self._settle()

    def compact(self, left: Int[Tensor, " k"]) -> None:
        """Keep only the rows and columns of the channels at these positions."""
        self._settle()
        columns = columns_of(left, self.block)
        self.P = self.P.index_select(0, columns).index_select(1, columns)
        self.B, self.own = self.B[columns], self.own[left]

    def _settle(self) -> None:
        if self.left:
            self.P.addmm_(torch.cat(self.left, 1), torch.cat(self.right), alpha=-1)
        self.left, self.right = [], []


@dataclass(frozen=True, slots=True)
class EliminationSelector:
    """Backward elimination by the exact increase of the least-squares error; nested."""

    def select(self, statistics: GroupStatistics, k: int) -> Int[Tensor, " k"]:
        """Return the indices of the `k` channels that are removed last."""
        return self.rank(statistics)[statistics.channels - k :].sort().values

    def rank(self, statistics: GroupStatistics) -> Int[Tensor, " D"]:
        """Return all channels in the order in which elimination removes them."""
        return elimination_order([m.to("cpu") for m in statistics.moments])

    def __str__(self) -> str:
        return "greedy"


def elimination_order(group: Sequence[Moments]) -> Int[Tensor, " D"]:
    """Return all channels in the order in which backward elimination removes them.

    The last k channels are the selection of size k, for every k. Of many channels, a few with the
    lowest costs are removed at once: a product with a few columns more takes hardly longer.
    """
    names = torch.arange(group[0].channels)
    reduced = [reduce_columns(m, MAX_COLUMNS // m.channels) for m in group]
    parts = [EliminationState.of(NormalEquations.of(m, names), m.block) for m in reduced]
    gone = torch.zeros(len(names), dtype=torch.bool)
    order = []
    while int((~gone).sum()) > 1:
        worst = cheapest(parts, gone, max(1, int((~gone).sum()) // AT_ONCE))
        order.extend(names[worst].tolist())
        gone[worst] = True
        for part in parts:
            part.drop(worst)
        if gone.float().mean() > COMPACT:
            left = (~gone).nonzero()[:, 0]
            for part in parts:
                part.compact(left)
            names, gone = names[left], gone[left]
    return torch.tensor([*order, *names[~gone].tolist()])


def reduce_columns(moments: Moments, block: int) -> Moments:
    """Return the moments of at most `block` linear combinations of the columns of each channel.

    These are the principal directions of the channel. The columns of a kernel are shifted copies
    of one map, so that a few directions carry most of it. Cost: O(n^2 block), against O(n^3) for
    the elimination on all columns.
    """
    full, block = moments.block, max(1, block)
    if full <= block:
        return moments
    gram = moments.gram_sum[1:, 1:]
    directions = torch.linalg.eigh(own_blocks(gram, full)).eigenvectors[:, :, -block:]
    blocks = gram.unflatten(0, (-1, full)).unflatten(2, (-1, full))
    half = torch.einsum("dari,dak->dkri", blocks, directions)
    inner = torch.einsum("dkri,ril->dkrl", half, directions).flatten(2).flatten(0, 1)
    size = len(inner) + 1
    reduced = gram.new_empty(size, size)
    reduced[1:, 1:] = inner
    reduced.diagonal().clamp_(min=0.0)  # rounding, where a channel has fewer directions
    reduced[0, 0] = moments.gram_sum[0, 0]
    sums = moments.gram_sum[0, 1:].unflatten(0, (-1, full))
    reduced[0, 1:] = reduced[1:, 0] = torch.einsum("da,dak->dk", sums, directions).flatten()
    cross = moments.cross_sum[1:].unflatten(0, (-1, full))
    cross = torch.einsum("dam,dak->dkm", cross, directions).flatten(0, 1)
    return Moments(
        count=moments.count,
        gram_sum=reduced,
        cross_sum=torch.cat([moments.cross_sum[:1], cross]),
        target_sum_sq=moments.target_sum_sq,
        block=block,
    )


def cheapest(
    parts: Sequence[EliminationState], removed: Bool[Tensor, " D"] | None = None, count: int = 1
) -> Int[Tensor, " k"]:
    """Return the positions of the `count` channels with the lowest removal costs, ascending.

    Of ties, the last channel comes first.
    """
    rise = torch.stack([part.removal_costs() for part in parts]).mean(0)
    if removed is not None:
        rise[removed] = math.inf
    return len(rise) - 1 - rise.flip(0).sort(stable=True).indices[:count]


def own_blocks(matrix: Float[Tensor, "n n"], block: int) -> Float[Tensor, "D block block"]:
    """Return the blocks on the diagonal."""
    blocks = matrix.unflatten(0, (-1, block)).unflatten(2, (-1, block))
    return blocks.diagonal(dim1=0, dim2=2).permute(2, 0, 1)
