"""What follows a layer: its BatchNorm, the sum with a skip connection, and the activation."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, fx

from entrim.calibration.collect import BatchNormCall, batchnorm_of
from entrim.calibration.executor import Execution, Program
from entrim.graph.tracer import arguments_of

MISSING = "missing"
"""Label of the stored differences that removed branches leave."""
_NEAR_ZERO = 1e-2
"""Relative to the median scale of a BatchNorm: channels with a smaller scale are not corrected."""
_COPIES = ("getitem", "clone", "alias", "detach")
_LIMITED = {"relu": (0.0, math.inf), "relu6": (0.0, 6.0), "hardtanh": (), "clamp": ()}
"""Activations that clip their inputs, with their limits; () if these are arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPath:
    """The operations behind a layer up to the first activation; each is the only reader."""

    norm: BatchNormCall | None = None
    norm_bias: str | None = None
    total: fx.Node | None = None
    """The sum with a skip connection."""
    other: fx.Node | None = None
    """The other operand of this sum."""
    limits: tuple[float, float] | None = None
    """The values at which the activation clips its inputs.

    None if it is not a ReLU, or follows a BatchNorm over another axis than the outputs.
    """

    @classmethod
    def of(cls, program: Program, place: int) -> "OutputPath":
        """Return the path of the output at `place`."""
        found, node = cls(), program.nodes[place]
        while len(node.users) == 1:
            user = next(iter(node.users))
            norm, other = batchnorm_of(program, user), added_to(user, node)
            if norm is not None and found.norm is None and found.total is None:
                if norm.scaled != (norm.weight is not None):
                    return found
                bias = arguments_of(user).get("bias")
                name = program.names.get(bias) if isinstance(bias, fx.Node) else None
                found = replace(found, norm=norm, norm_bias=name)
            elif other is not None and found.total is None:
                if not _same_shape(other, program.nodes[place]):
                    return found
                found = replace(found, total=user, other=other)
            elif not any(name in str(user.target) for name in _COPIES):
                by_output = found.norm is None or _has_outputs_second(program.nodes[place])
                return replace(found, limits=_limits(user) if by_output else None)
            node = user
        return found

    def is_known(self, program: Program, place: int) -> bool:
        """Whether the input of the activation follows from values known at `place`."""
        return self.other is None or is_available(program, self.other, place)

    def scale(self, tensors: Mapping[str, Tensor]) -> Float[Tensor, " M"] | None:
        """Return the scale of the BatchNorm, None if there is none."""
        if self.norm is None:
            return None
        scale = (tensors[self.norm.var] + self.norm.eps).rsqrt()
        return scale if self.norm.weight is None else scale * tensors[self.norm.weight]

    def normalize(
        self, outputs: Float[Tensor, "rows M"], tensors: Mapping[str, Tensor]
    ) -> Float[Tensor, "rows M"]:
        """Return outputs of the layer after the BatchNorm."""
        scale = self.scale(tensors)
        if self.norm is None or scale is None:
            return outputs
        normalized = (outputs - tensors[self.norm.mean]) * scale
        return normalized if self.norm_bias is None else normalized + tensors[self.norm_bias]


def is_safe(scale: Float[Tensor, " M"]) -> Tensor:
    """Return where the scale of a BatchNorm is large enough to be inverted."""
    return scale.abs() > _NEAR_ZERO * scale.abs().median()


def residual_correction(
    old: Execution,
    new: Execution,
    place: int,
    missing: Collection[int] = (),
) -> Callable[[int], Tensor] | None:
    """Return the correction of the output at `place` as a function of the batch, None for none.

    If the output, with or without a following BatchNorm, is added to a value that has changed, the
    sum is restored by subtracting this change, scaled by the inverse of the normalization. What is
    missing behind the sum, which `store_missing_branches` stored, is added in the same way.
    """
    path = OutputPath.of(old.program, place)
    if path.total is None or path.other is None:
        return None
    other, total = path.other, old.program.place[path.total]
    at = old.program.place[other]
    has_changed = is_available(old.program, other, place) and _has_changed(new, other, place)
    if not has_changed and total not in missing:
        return None
    scale = path.scale(old.tensors)
    inverse = None if scale is None else torch.where(is_safe(scale), 1 / scale, 0)

    def drift(batch: int) -> Tensor:
        parts = [old.ahead(at, batch) - new.ahead(at, batch)] if has_changed else []
        if total in missing:
            parts.append(old.store.get((MISSING, total, batch)))
        gap = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        return gap if inverse is None else gap * inverse.view(-1, *[1] * (gap.dim() - 2))

    return drift


def is_available(program: Program, node: fx.Node, place: int) -> bool:
    """Whether `node` is known before the operation at `place`, or follows without parameters."""
    if program.place[node] < place:
        return True
    if program.place[node] == place or any(one in program.names for one in node.all_input_nodes):
        return False
    return all(is_available(program, one, place) for one in node.all_input_nodes)


def _has_changed(new: Execution, node: fx.Node, place: int) -> bool:
    """Whether the value of `node` differs from the base, at `place` of the execution."""
    if new.program.place[node] < place:
        return new.program.place[node] in new.changed_nodes
    return any(_has_changed(new, one, place) for one in node.all_input_nodes)


def _limits(activation: fx.Node) -> tuple[float, float] | None:
    """Return where an activation clips its inputs and is the identity between, None if not."""
    schema = getattr(activation.target, "_schema", None)
    name = str(getattr(schema, "name", "")).rpartition("::")[2]
    if name not in _LIMITED:
        return None
    if _LIMITED[name]:
        return _LIMITED[name]
    given = arguments_of(activation)
    low, high = (given.get(f"{end}_val", given.get(end)) for end in ("min", "max"))
    if not all(end is None or isinstance(end, int | float) for end in (low, high)):
        return None
    return -math.inf if low is None else float(low), math.inf if high is None else float(high)


def added_to(user: fx.Node, node: fx.Node) -> fx.Node | None:
    """Return the other operand if `user` is a plain sum of `node` and another tensor, else None."""
    if user.target is not torch.ops.aten.add.Tensor or arguments_of(user).get("alpha", 1) != 1:
        return None
    others = [arg for arg in user.args[:2] if isinstance(arg, fx.Node) and arg is not node]
    return others[0] if len(others) == 1 else None


def _has_outputs_second(layer: fx.Node) -> bool:
    """Whether a BatchNorm behind a layer normalizes its outputs, instead of positions."""
    return "conv" in str(layer.target) or layer.meta["val"].dim() == 2


def _same_shape(one: fx.Node, other: fx.Node) -> bool:
    shapes = [getattr(node.meta.get("val"), "shape", None) for node in (one, other)]
    return shapes[0] is not None and shapes[0] == shapes[1]
