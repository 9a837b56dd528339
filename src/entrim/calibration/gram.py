"""The collected inputs of one layer: Gram matrices, or the rows if there are fewer than columns."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from entrim.entropic.moments import Moments
from entrim.entropic.observations import Observations, principal_directions

MAX_COLUMNS = 2048
"""Number of columns above which those of each channel are reduced to its principal directions, for
rankings and for second moments that are computed from rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Gram:
    """The sums of z z' over the rows of one layer, z = (1; x), for each group of a convolution."""

    sums: Float[Tensor, "groups n1 n1"]
    count: int

    def problem(
        self, number: int, kept: Int[Tensor, " k"], weight: Float[Tensor, "M n"]
    ) -> Moments:
        """Return the regression of the outputs of all removed columns on the kept ones."""
        sums = self.sums[number].cpu()
        lost = removed_columns(kept, len(sums) - 1)
        inner = torch.cat([torch.zeros(1, dtype=torch.int64), 1 + kept])
        return Moments(
            count=self.count,
            gram_sum=sums[inner][:, inner],
            cross_sum=sums[inner][:, 1 + lost] @ weight[:, lost].T,
            target_sum_sq=0.0,
        )

    def mean_square(self, number: int, change: Float[Tensor, "M n1"]) -> float:
        """Return the mean squared output of the weights `change`, summed over the outputs."""
        sums = self.sums[number].cpu()
        return float((change @ sums * change).sum()) / self.count

    def variance(self, number: int, weight: Float[Tensor, "M n"]) -> float:
        """Return the variance of the outputs of `weight`, summed over the outputs."""
        sums = self.sums[number].cpu()
        mean = sums[0, 1:] / self.count
        second = float((weight * (weight @ sums[1:, 1:])).sum()) / self.count
        return max(0.0, second - float((weight @ mean).square().sum()))

    def moments(
        self,
        number: int,
        table: Int[Tensor, "units block"],
        share: Float[Tensor, "M n"],
        bias: Float[Tensor, " M"],
    ) -> Moments:
        """Return the moments of the columns in `table`, with the outputs of `share` and `bias`."""
        columns = table.flatten()
        there = columns >= 0
        index = torch.cat([torch.zeros(1, dtype=torch.int64), 1 + columns.clamp_min(0)])
        sums = self.sums[number].cpu()
        if not torch.equal(index, torch.arange(len(sums))):
            sums = sums[index][:, index]
        present = torch.cat([torch.ones(1, dtype=torch.bool), there])
        if not bool(present.all()):
            sums = sums * present * present[:, None]
        target = torch.cat([bias[None], share.T])
        cross = sums @ target
        return Moments(
            count=self.count,
            gram_sum=sums,
            cross_sum=cross,
            target_sum_sq=max(0.0, float((target * cross).sum())),
            block=table.shape[1],
        )

    def reduce_weights(
        self, number: int, table: Int[Tensor, "units block"], share: Float[Tensor, "M n"]
    ) -> Float[Tensor, "M n"]:
        """Return the weights on the columns of `moments`: all of them."""
        return share


@dataclass(frozen=True, slots=True, eq=False)
class LayerRows:
    """The rows of one layer with fewer rows than columns, for each group of a convolution."""

    rows: Float[Tensor, "groups T n"]
    memory_limit: int

    @property
    def count(self) -> int:
        """The number T of rows."""
        return self.rows.shape[1]

    def problem(
        self, number: int, kept: Int[Tensor, " k"], weight: Float[Tensor, "M n"]
    ) -> Moments | Observations:
        """Return the regression of the outputs of all removed columns on the kept ones."""
        x = self.rows[number].cpu()
        lost = removed_columns(kept, x.shape[1])
        targets = x[:, lost].double() @ weight[:, lost].T
        found = Observations(inputs=x[:, kept], targets=targets)
        return found if found.columns > found.count else found.moments()

    def mean_square(self, number: int, change: Float[Tensor, "M n1"]) -> float:
        """Return the mean squared output of the weights `change`, summed over the outputs."""
        found = self.rows[number].cpu().double() @ change[:, 1:].T + change[:, 0]
        return float(found.square().sum()) / self.count

    def variance(self, number: int, weight: Float[Tensor, "M n"]) -> float:
        """Return the variance of the outputs of `weight`, summed over the outputs."""
        found = self.rows[number].cpu().double() @ weight.T
        return float(found.var(0, correction=0).sum())

    def moments(
        self,
        number: int,
        table: Int[Tensor, "units block"],
        share: Float[Tensor, "M n"],
        bias: Float[Tensor, " M"],
    ) -> Moments:
        """Return the moments of the columns in `table`, with the outputs of `share` and `bias`.

        If there are many columns, those of each channel are reduced to its principal directions.
        """
        x = self._channels(number, table)
        targets = x.flatten(1) @ share.T + bias
        directions = self._directions(x)
        if directions is not None:
            x = torch.einsum("tdq,dqk->tdk", x, directions)
        size = (x[0].numel() + 1) ** 2 * 8
        return Moments.of(x.flatten(1), targets, block=x.shape[2], memory_limit=size)

    def reduce_weights(
        self, number: int, table: Int[Tensor, "units block"], share: Float[Tensor, "M n"]
    ) -> Float[Tensor, "M k"]:
        """Return the weights on the columns of `moments`: on the principal directions."""
        directions = self._directions(self._channels(number, table))
        if directions is None:
            return share
        parts = share.unflatten(1, table.shape)
        return torch.einsum("mdq,dqk->mdk", parts, directions.to(parts)).flatten(1)

    def _channels(self, number: int, table: Int[Tensor, "units block"]) -> Float[Tensor, "T D q"]:
        """Return the columns of each channel; those that a channel does not have are zero."""
        rows = self.rows[number].cpu()[:, table.flatten().clamp_min(0)].double()
        return (rows * (table.flatten() >= 0)).unflatten(1, table.shape)

    def _directions(self, x: Float[Tensor, "T D q"]) -> Float[Tensor, "D q k"] | None:
        count = max(1, reduced_columns(self.memory_limit) // x.shape[1])
        return principal_directions(x, min(count, len(x)))


def reduced_columns(memory_limit: int) -> int:
    """Return how many columns the second moments computed from rows may have."""
    return min(MAX_COLUMNS, math.isqrt(memory_limit // 8) - 1)


def removed_columns(kept: Int[Tensor, " k"], columns: int) -> Int[Tensor, " l"]:
    """Return the columns that are not kept."""
    removed = torch.ones(columns, dtype=torch.bool)
    removed[kept] = False
    return removed.nonzero()[:, 0]
