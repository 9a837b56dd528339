"""The w-step: the best importances for given regressions and boxes, by the sign of eps_w.

For fixed U = L S, affiliations and centers, F is separable in w:

    sum_d  a_d / w_d^2  +  b_d w_d  +  eps_w w_d log w_d       over the simplex

with a_d = eps_l2 ||U_d||^2 and b_d the price of feature d in box distance. Letters are those of
docs/notation.md.
"""

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import wrightomega

from entrim.entropic.algorithm import cube_root_shares

Vector = Float[np.ndarray, " D"]


def w_step(a: Vector, b: Vector, w: Vector, eps_w: float) -> Vector:
    """Return the next w: the minimizer for eps_w >= 0, of a tangent majorant for eps_w < 0.

    For eps_w < 0 the problem is not convex. The concave entropy term is bounded by its tangent at
    the current w, so the minimizer of the tangent problem does not increase F.
    """
    if eps_w > 0:
        return convex_step(a, b, eps_w)
    slope = eps_w * (np.log(w) + 1) if eps_w < 0 else 0.0
    return linear_step(a, b + slope)


def linear_step(a: Vector, c: Vector) -> Vector:
    """Return the minimizer over the simplex of sum_d a_d / w_d^2 + c_d w_d in closed form.

    w_d = (2 a_d / (c_d + nu))^(1/3), nu the one root of sum w_d = 1. A feature that is not used,
    a_d = 0, gets what is left where it is cheaper than every one that is.
    """
    w = np.zeros_like(c)
    used = a > 0
    idle = np.flatnonzero(~used)
    if used.any():
        shares = cube_root_shares(torch.from_numpy(2 * a[used]), torch.from_numpy(c[used])).numpy()
        w[used] = shares / shares.sum()
    if len(idle) == 0:
        return w
    cheapest = idle[c[idle].argmin()]
    if used.any():
        at = np.flatnonzero(used)[w[used].argmax()]
        if 2 * a[at] / w[at] ** 3 - c[at] >= -c[cheapest]:
            return w
        w[used] = np.cbrt(2 * a[used] / (c[used] - c[cheapest]))
    w[cheapest] = 1 - w[used].sum()
    return w


def convex_step(a: Vector, b: Vector, eps_w: float) -> Vector:
    """Return the minimizer over the simplex of sum_d a_d / w_d^2 + b_d w_d + eps_w w_d log w_d.

    For eps_w > 0 it is convex, and for a given multiplier nu each w_d is a Wright omega. With h the
    logarithm of their sum, h is convex and falls in nu, so Newton from the left, where the w_d that
    ignore a already sum to 1, never overshoots.
    """
    nu = eps_w * (_log_sum(-b / eps_w) - 1)
    log_w = _log_shares(a, b + nu, eps_w)
    while (h := _log_sum(log_w)) > 1e-14:
        curve = 3 * np.maximum(0, b + nu + eps_w * (log_w + 1)) + eps_w  # 6 a / w^3 + eps_w
        further = nu + h / float((np.exp(log_w - h) / curve).sum())
        if further == nu:
            break
        nu = further
        log_w = _log_shares(a, b + nu, eps_w)
    return np.exp(log_w - _log_sum(log_w))


def _log_sum(logarithms: Vector) -> float:
    top = float(logarithms.max())
    return top + float(np.log(np.exp(logarithms - top).sum()))


def _log_shares(a: Vector, c: Vector, eps_w: float) -> Vector:
    """Return log w_d where -2 a_d / w_d^3 + c_d + eps_w (log w_d + 1) = 0.

    With o the Wright omega of z = log(6 a / eps_w) + 3 (c / eps_w + 1), log w is both o / 3 - c /
    eps_w - 1 and (log(6 a / eps_w) - log o) / 3; each cancels where the other does not.
    """
    plain = -c / eps_w - 1
    with np.errstate(divide="ignore"):
        scale = np.log(6 * a / eps_w)
    z = scale - 3 * plain
    omega = np.real(wrightomega(z))
    large = z > 1
    log_omega = np.log(np.where(large, omega, 1.0))
    return np.where(large, (np.where(large, scale, 0.0) - log_omega) / 3, plain + omega / 3)
