"""The objective F, its ridge step, gradient and optimality residual, on the remaining channels.

    F(w, L) = eps_w sum_d w_d log w_d  +  (eps_l2 / M) ||L||^2  +  (1 / (T M)) ||Y - L S (1; X)||^2

with S = diag(1, w_1 .. w_1, .., w_D .. w_D), every w repeated `block` times. Several consumers of
one channel group share w; their last two terms are averaged, so that eps keeps its meaning.
Letters are those of docs/notation.md; n1 = n + 1 includes the constant of (1; X).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from entrim.entropic.moments import Moments, columns_of
from entrim.errors import SingularMomentsError

EPS64 = torch.finfo(torch.float64).eps


def per_channel(values: Float[Tensor, " n"], block: int) -> Float[Tensor, " D"]:
    """Return the sums of `values` over the columns of each channel."""
    return values.view(-1, block).sum(1)


@dataclass(frozen=True, slots=True)
class Consumer:
    """The moments of one layer that consumes the group, on the remaining channels."""

    gram_sum: Float[Tensor, "n1 n1"]
    cross_sum: Float[Tensor, "n1 M"]
    power: float
    count: int
    block: int
    ridge: float

    @classmethod
    def of(cls, m: Moments, eps_l2: float) -> "Consumer":
        """Return the consumer with all channels, with a ridge above rounding error.

        w is at most 1, so no diagonal entry of S G S exceeds the largest of G.
        """
        floor = EPS64 * (m.columns + 1) * float(m.gram_sum.diagonal().max()) / m.count
        return cls(
            m.gram_sum,
            m.cross_sum,
            m.target_sum_sq / m.count,
            m.count,
            m.block,
            max(eps_l2, floor),
        )

    @property
    def outputs(self) -> int:
        """The number M of outputs."""
        return self.cross_sum.shape[1]

    def restrict(self, indices: Int[Tensor, " k"]) -> "Consumer":
        """Return the consumer restricted to the channels at `indices`."""
        columns = columns_of(indices.to(self.gram_sum.device), self.block)
        gram = self.gram_sum.index_select(0, columns).index_select(1, columns)
        cross = self.cross_sum.index_select(0, columns)
        return Consumer(gram, cross, self.power, self.count, self.block, self.ridge)

    def products(self) -> Float[Tensor, "D D"]:
        """Return the inner products of channels, column by column: O(D^2 block)."""
        blocks = self.gram_sum[1:, 1:].unflatten(0, (-1, self.block)).unflatten(2, (-1, self.block))
        return blocks.diagonal(dim1=1, dim2=3).sum(-1).cpu()

    def scale(self, w: Float[Tensor, " D"]) -> Float[Tensor, " n1"]:
        """Return the diagonal of S."""
        s = w.to(self.gram_sum.device).repeat_interleave(self.block)
        return torch.cat([s.new_ones(1), s])

    def ridge_step(self, w: Float[Tensor, " D"]) -> tuple[Float[Tensor, "n1 M"], float]:
        """Return L' = (S G S + ridge I)^-1 S C and the value of its two terms of F.

        At the minimizer these terms are (sum Y^2 / T - <S C, L'>) / M: one subtraction, O(n M).
        Cost: n^3/3 + 2 n^2 M, and memory of two n x n matrices in addition to the moments.
        """
        s = self.scale(w)
        system = self.gram_sum * (s / self.count)[:, None]
        system.mul_(s)
        system.diagonal().add_(self.ridge)
        factor, info = torch.linalg.cholesky_ex(system)
        if int(info) > 0:
            raise SingularMomentsError(
                f"pivot {int(info)} of {len(system)} is not positive with ridge {self.ridge:.1e}: "
                "the sums are not second moments (not symmetric or not positive semidefinite); "
                "collect them again in float64"
            )
        target = self.cross_sum * (s / self.count)[:, None]
        L = torch.cholesky_solve(target, factor)
        return L, (self.power - float((target * L).sum())) / self.outputs

    def quadratic(
        self, L: Float[Tensor, "n1 M"]
    ) -> tuple[Float[Tensor, "D D"], Float[Tensor, " D"]]:
        """Return H and b of the squared error w'Hw - 2 b'w + const, with L fixed.

        H = blocksum((L'L) o G) / M and b = blocksum(diag((C - G_0 L_0) L')) / M.
        """
        inner = (L[1:] @ L[1:].T).mul_(self.gram_sum[1:, 1:])
        H = inner.unflatten(0, (-1, self.block)).unflatten(2, (-1, self.block)).sum((1, 3))
        rest = self.cross_sum[1:] - self.gram_sum[1:, :1] * L[0]
        b = per_channel((rest * L[1:]).sum(1), self.block)
        scale = self.count * self.outputs
        return H.cpu() / scale, b.cpu() / scale


@dataclass(frozen=True, slots=True)
class Objective:
    """F on the remaining channels; `channels` are their indices in the group."""

    consumers: tuple[Consumer, ...]
    channels: Int[Tensor, " D"]
    eps_w: float

    @classmethod
    def of(cls, moments: Sequence[Moments], eps_w: float, eps_l2: float) -> "Objective":
        """Return the objective of several consumers of one channel group."""
        consumers = tuple(Consumer.of(m, eps_l2) for m in moments)
        return cls(consumers, torch.arange(moments[0].channels), eps_w)

    def restrict(self, indices: Int[Tensor, " k"]) -> "Objective":
        """Return F restricted to the channels at `indices`; the object itself for all of them."""
        if len(indices) == len(self.channels):
            return self
        consumers = tuple(c.restrict(indices) for c in self.consumers)
        return Objective(consumers, self.channels[indices], self.eps_w)

    def live(self) -> Int[Tensor, " live"]:
        """Return the positions of the channels that are not always zero."""
        energies = [per_channel(c.gram_sum.diagonal()[1:], c.block).cpu() for c in self.consumers]
        return (torch.stack(energies).sum(0) > 0).nonzero()[:, 0]

    def similarity(self) -> Float[Tensor, "D D"]:
        """Return 1 - |x_i -+ x_j|^2 / (|x_i|^2 + |x_j|^2): 1 for copies up to sign.

        The minimum over the consumers; two channels that are dead for a consumer have similarity 1
        there.
        """
        parts = []
        for products in (c.products() for c in self.consumers):
            energy = products.diagonal()
            parts.append(2 * products.abs() / (energy[:, None] + energy))
        return torch.stack(parts).nan_to_num(nan=1.0).amin(0)

    def at(self, w: Float[Tensor, " D"]) -> "Point":
        """Return the point with the best L for `w`: one ridge solve per consumer."""
        steps = [c.ridge_step(w) for c in self.consumers]
        return Point(self, w, tuple(L for L, _ in steps), tuple(value for _, value in steps))


@dataclass(frozen=True)
class Point:
    """A w with its best L. By the envelope theorem, the gradient of F in w costs O(n M)."""

    objective: Objective
    w: Float[Tensor, " D"]
    regressions: tuple[Float[Tensor, "..."], ...]
    values: tuple[float, ...]

    @cached_property
    def entropy_term(self) -> float:
        """The term eps_w sum w log w."""
        return self.objective.eps_w * float(torch.special.xlogy(self.w, self.w).sum())

    @cached_property
    def loss(self) -> float:
        """The objective F."""
        return self.entropy_term + sum(self.values) / len(self.values)

    @cached_property
    def ridge_energy(self) -> Float[Tensor, " D"]:
        """a_d = mean over consumers of ridge ||U_d||^2 / M: the use of channel d."""
        parts = [
            per_channel(L[1:].square().sum(1), c.block).mul(c.ridge / c.outputs).to("cpu")
            for c, L in zip(self.objective.consumers, self.regressions, strict=True)
        ]
        return torch.stack(parts).mean(0) * self.w.square()

    @cached_property
    def entropy_slope(self) -> Float[Tensor, " D"]:
        """c_d = eps_w (log w_d + 1), the gradient of the entropy term."""
        return self.objective.eps_w * (self.w.log() + 1)

    def optimality_residual(self, min_w: float) -> float:
        """Return the relative first-order optimality residual; 1 at a maximum or saddle point.

        At a minimum the gradient -2 a_d / w_d^3 + c_d has the same value for all channels with
        w > `min_w`, and is not smaller for the others. This also holds at a uniform w where the
        entropy outweighs the fit, which is a maximum. If the curvature is negative for two
        channels, 6 a_d / w_d^4 < |eps_w| / w_d, moving weight between them decreases F; the
        residual is then 1.
        """
        fit = 2 * self.ridge_energy / self.w**3
        gradient = self.entropy_slope - fit
        free = self.w > min_w
        if int((free & (3 * fit < -self.objective.eps_w)).sum()) > 1:
            return 1.0
        spread = float(gradient[free].max()) - float(gradient.min()) if bool(free.any()) else 0.0
        return spread / float((fit + self.entropy_slope.abs()).max())

    def quadratic(self) -> tuple[Float[Tensor, "D D"], Float[Tensor, " D"]]:
        """Return H and b of the mean squared error as a function of w, for fixed L."""
        terms = [
            c.quadratic(L) for c, L in zip(self.objective.consumers, self.regressions, strict=True)
        ]
        H, b = zip(*terms, strict=True)
        return torch.stack(H).mean(0), torch.stack(b).mean(0)

    def mse(self, consumer: int) -> float:
        """Return the mean squared error of one consumer, without its ridge term."""
        c, L = self.objective.consumers[consumer], self.regressions[consumer]
        penalty = c.ridge / c.outputs * float(L.square().sum())
        return max(0.0, self.values[consumer] - penalty)

    def layer_weights(
        self, consumer: int
    ) -> tuple[Float[Tensor, "M columns"], Float[Tensor, " M"]]:
        """Return the weights and the intercepts U = L S of one consumer."""
        U = self.regressions[consumer] * self.objective.consumers[consumer].scale(self.w)[:, None]
        return U[1:].T.contiguous(), U[0].clone()
