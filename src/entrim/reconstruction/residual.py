"""Residual correction: the change on a skip path that the layer added to it compensates for."""

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, fx

from entrim.calibration.collect import BatchNormCall, batchnorm_of
from entrim.calibration.executor import Execution
from entrim.graph.tracer import arguments_of

_NEAR_ZERO = 1e-2
"""Relative to the median scale of a BatchNorm: channels with a smaller scale are not corrected."""


def residual_correction(
    old: Execution, new: Execution, place: int
) -> Callable[[int], Tensor] | None:
    """Return the correction of the output at `place` as a function of the batch, None for none.

    If the output, with or without a following BatchNorm, is added to a value that has changed, the
    sum is restored by subtracting this change, scaled by the inverse of the normalization.
    """
    program = old.program
    node, scale = program.nodes[place], None
    while len(node.users) == 1:
        user = next(iter(node.users))
        kind = str(user.target)
        norm = batchnorm_of(program, user)
        if norm is not None and scale is None and norm.scaled == (norm.weight is not None):
            scale = _inverse_scale(norm, old.tensors)
        elif not any(name in kind for name in ("getitem", "clone", "alias", "detach")):
            break
        node = user
    if len(node.users) != 1:
        return None
    user = next(iter(node.users))
    other = _added_to(user, node)
    if other is None or program.place.get(other, -1) not in new.changed_nodes:
        return None
    at = program.place[other]
    if at >= place or not _same_shape(other, program.nodes[place]):
        return None

    def drift(batch: int) -> Tensor:
        gap = old.at(at, batch) - new.at(at, batch)
        return gap if scale is None else gap * scale.view(-1, *[1] * (gap.dim() - 2))

    return drift


def _added_to(user: fx.Node, node: fx.Node) -> fx.Node | None:
    """Return the other operand if `user` is a plain sum of `node` and another tensor, else None."""
    if user.target is not torch.ops.aten.add.Tensor or arguments_of(user).get("alpha", 1) != 1:
        return None
    others = [arg for arg in user.args[:2] if isinstance(arg, fx.Node) and arg is not node]
    return others[0] if len(others) == 1 else None


def _same_shape(one: fx.Node, other: fx.Node) -> bool:
    shapes = [getattr(node.meta.get("val"), "shape", None) for node in (one, other)]
    return shapes[0] is not None and shapes[0] == shapes[1]


def _inverse_scale(norm: BatchNormCall, tensors: Mapping[str, Tensor]) -> Float[Tensor, " D"]:
    """Return sigma / gamma of a BatchNorm, 0 where gamma / sigma is close to 0."""
    scale = (tensors[norm.var] + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * tensors[norm.weight]
    large = scale.abs() > _NEAR_ZERO * scale.abs().median()
    return torch.where(large, 1 / scale, 0)
