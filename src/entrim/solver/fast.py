"""The fast method: majorise-minimise in U = L S, extrapolated.

In U the ridge term reads (eps_l2 / M) (||U_0||^2 + sum_d ||U_d||^2 / w_d^2), so for fixed U the
w-step is separable: with the concave entropy replaced by its tangent, it has the closed form
w_d = (2 a_d / (c_d + nu))^(1/3). Alternating in (L, w), as the paper does, zig-zags instead: the
scales of w and of L fight each other.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from entrim.solver.descent import Descent
from entrim.solver.objective import Point


def descend(descent: Descent) -> None:
    """Walk down to a minimum, then give up channels that F would rather not pay for.

    The second part ends when it has cost as much as the first.
    """
    _walk(descent)
    limit = 2 * descent.cost
    while descent.cost < limit and descent.drop_least():
        _walk(descent)


def _walk(descent: Descent) -> None:
    """Go on in cycles of two steps and an extrapolation (SQUAREM on log w) until it is over."""
    while not descent.over:
        first = descent.point
        descent.step(next_w(first, descent.floor))
        if descent.over:
            return
        second = descent.point
        third = next_w(second, descent.floor)
        leap = extrapolate(first, second, third, descent.floor)
        if leap is None or not descent.try_step(leap):
            if descent.exhausted:
                return
            descent.step(third)


def next_w(point: Point, floor: float) -> Float[Tensor, " D"]:
    """Return the minimiser over the simplex of sum_d a_d / w_d^2 + c_d w_d with w >= `floor`.

    Where no channel is used at all, any single one will do: the first.
    """
    a2, c = 2 * point.pull, point.entropy_slope
    w = torch.full_like(c, floor)
    free = a2 > 0
    if not bool(free.any()):
        w[0] = 1
    while bool(free.any()):
        mass = 1 - floor * float((~free).sum())
        w[free] = cube_root_shares(a2[free] / mass**3, c[free]) * mass
        low = free & (w < floor)
        if not bool(low.any()):
            break
        w[low] = floor
        free &= ~low
    return w / w.sum()


def cube_root_shares(a2: Float[Tensor, " k"], c: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
    """Return (a2 / (c + nu))^(1/3) with the one nu that makes the shares sum to 1.

    With h the sum, h^-3 is a power mean of functions linear in nu: concave and rising, so Newton
    from the left, where the largest share alone is 1, never overshoots. nu is counted from the
    smallest c, so that nothing cancels when a2 is tiny.
    """
    gap = c - c.min()
    nu = float((a2 - gap).max())
    shares = (a2 / (gap + nu)).pow(1 / 3)
    while (h := float(shares.sum())) > 1 + 1e-14:
        further = nu + (h**4 - h) / float((shares / (gap + nu)).sum())
        if further == nu:
            break
        nu = further
        shares = (a2 / (gap + nu)).pow(1 / 3)
    return shares


def extrapolate(
    first: Point, second: Point, third: Float[Tensor, " k"], floor: float
) -> Float[Tensor, " k"] | None:
    """Return the SQUAREM leap on log w over the channels of `second`, None where it has no length.

    The step length ||r|| / ||v|| treats the two changes r and r + v of log w as one geometric
    series; the leap is only a proposal, F decides.
    """
    start = first.w[torch.isin(first.objective.channels, second.objective.channels)]
    alive = third > 0
    x0, x1, x2 = start[alive].log(), second.w[alive].log(), third[alive].log()
    r, v = x1 - x0, x2 - 2 * x1 + x0
    if not float(v.norm()) > 0:
        return None
    length = max(1.0, float(r.norm() / v.norm()))
    x = x0 + 2 * length * r + length**2 * v
    leap = torch.zeros_like(third)
    leap[alive] = (x - x.max()).exp()
    leap = (leap / leap.sum()).clamp_min(floor)
    return leap / leap.sum()
