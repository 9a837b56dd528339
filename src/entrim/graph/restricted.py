"""Normalization over channels, with statistics that are restricted to the kept channels.

LayerNorm, RMSNorm and GroupNorm with one group compute statistics over the channels of a position,
so these change if channels are removed. In a network of full size, a removed channel is marked by
NaN in the weight of the normalization. A normalization with marks has the same statistics as in the
pruned network; its outputs at removed channels are 0. Any other operation that reads a marked
weight returns NaN, so that a verification fails.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

KeptIndices = Mapping[str, Mapping[int, Sequence[int]]]


def mark_removed(weight: Tensor, kept: Sequence[int]) -> Tensor:
    """Return a copy of the weight of a normalization with marks at all but the `kept` channels."""
    marked = torch.full_like(weight, torch.nan)
    places = torch.tensor(kept, device=weight.device)
    return marked.index_copy_(0, places, weight.detach().index_select(0, places))


def layer_norm(
    input: Tensor,  # noqa: A002 (the name in PyTorch)
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    """Return a LayerNorm whose statistics are those of the channels without marks."""
    kept = _kept(weight)
    if kept is None:
        return functional.layer_norm(input, list(normalized_shape), weight, bias, eps)
    some, weight, bias = _parts(kept, input, -1, weight, bias)
    return _in_full_size(
        functional.layer_norm(some, [len(kept)], weight, bias, eps), input, kept, -1
    )


def rms_norm(
    input: Tensor,  # noqa: A002 (the name in PyTorch)
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Return an RMSNorm whose mean square is that of the channels without marks."""
    kept = _kept(weight)
    if kept is None:
        return functional.rms_norm(input, list(normalized_shape), weight, eps)
    some, weight, _ = _parts(kept, input, -1, weight, None)
    return _in_full_size(functional.rms_norm(some, [len(kept)], weight, eps), input, kept, -1)


def group_norm(
    input: Tensor,  # noqa: A002 (the name in PyTorch)
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    """Return a GroupNorm; with one group, statistics are those of the channels without marks."""
    kept = _kept(weight)
    if kept is None:
        return functional.group_norm(input, num_groups, weight, bias, eps)
    some, weight, bias = _parts(kept, input, 1, weight, bias)
    return _in_full_size(functional.group_norm(some, num_groups, weight, bias, eps), input, kept, 1)


RESTRICTED: dict[Any, Callable[..., Tensor]] = {
    functional.layer_norm: layer_norm,
    functional.rms_norm: rms_norm,
    functional.group_norm: group_norm,
    torch.layer_norm: layer_norm,
    torch.rms_norm: rms_norm,
    torch.group_norm: group_norm,
    torch.ops.aten.layer_norm.default: layer_norm,
    torch.ops.aten.rms_norm.default: rms_norm,
    torch.ops.aten.group_norm.default: group_norm,
}
"""Function or operator -> the same with restricted statistics."""


class RestrictedStatistics(TorchFunctionMode):
    """A context in which normalizations with marks have restricted statistics."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call `func`, or its restricted version."""
        operation: Any = RESTRICTED.get(func, func)
        return operation(*args, **(kwargs or {}))


def _kept(weight: Tensor | None) -> Int[Tensor, " kept"] | None:
    """Return the channels without marks, None if there are no marks."""
    if weight is None or not bool(torch.isnan(weight).any()):
        return None
    return torch.nonzero(~torch.isnan(weight)).flatten()


def _parts(
    kept: Tensor, x: Tensor, axis: int, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the kept channels of the input, the weight and the bias."""
    affine = (None if one is None else one.index_select(0, kept) for one in (weight, bias))
    weight, bias = affine
    return x.index_select(axis, kept), weight, bias


def _in_full_size(y: Tensor, x: Tensor, kept: Tensor, axis: int) -> Tensor:
    """Return the outputs `y` of the kept channels in the shape of `x`, with zeros elsewhere."""
    return torch.zeros_like(x, dtype=y.dtype).index_copy(axis, kept, y)
