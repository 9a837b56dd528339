"""Rules for data movement: the operation is executed on channel ids."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from entrim.graph.channel_ids import ChannelLayout
from entrim.graph.tracer import OpCall, Result, register_rule


def move(call: OpCall) -> Result:
    """Apply the rule of an operation that rearranges or copies elements."""
    return _read_off(call, _first_axis(call))


def reshape(call: OpCall) -> Result:
    """Apply the rule of a reshape; the axis of the channels follows from the ids."""
    full = call.state.channels.broadcast(call.value())
    if full.numel() != math.prod(call.shape):
        return call.state.freeze_call(call, f"{call.node.name} reinterprets bits as another type")
    return call.state.channels.gather(full.reshape(call.shape))


def expand(call: OpCall) -> Result:
    """Apply the rule of an expansion, including to the shape of another tensor."""
    x = call.value()
    return call.state.channels.gather(call.state.channels.broadcast(x).expand(call.shape), x.axis)


def concat(call: OpCall) -> Result:
    """Apply the rule of a concatenation; along the channels, only ids are concatenated."""
    values, channels = list(map(call.state.value, call.get("tensors"))), call.state.channels
    dim = call.get("dim") % len(call.shape)
    whole = all(len(value.shape) == len(call.shape) for value in values)
    if whole and {value.axis for value in values} <= {None, dim}:
        return ChannelLayout(
            call.shape, dim, torch.cat([channels.ids_along(value, dim) for value in values])
        )
    return move(call)


def stack(call: OpCall) -> Result:
    """Apply the rule of a stack: the new axis has a fixed size, so channels keep their axis."""
    axis, dim = _first_axis(call), call.get("dim") % len(call.shape)
    shifted = None if axis is None else axis + (axis >= dim)
    return _read_off(call, shifted)


def channel_shuffle(call: OpCall) -> Result:
    """Apply the rule of a channel shuffle: reshape into groups, transpose, reshape back."""
    channels, groups = call.state.channels, call.get("groups")
    full = channels.broadcast(call.value())
    split = channels.broadcast(
        channels.gather(full.reshape(full.shape[0], groups, -1, *full.shape[2:]))
    )
    return channels.gather(split.transpose(1, 2).reshape(full.shape), 1)


def part(call: OpCall) -> Result:
    """Apply the rule of a slice or split; along the channels, only parts of equal size.

    The exported graph does not show whether the code uses a fraction, as in
    `x[:, : x.shape[1] // 2]`, or a constant. Channels are coupled so that equal parts stay equal;
    trial pruning finds out whether the code adapts.
    """
    x, channels = call.value(), call.state.channels
    dim = call.get("dim") % len(x.shape)
    if x.axis != dim:
        return move(call)
    places = torch.arange(x.shape[dim]).view([-1 if i == dim else 1 for i in range(len(x.shape))])
    cut = _outputs(_run(call, lambda _: places.expand(x.shape)))
    edges = [edge for piece in cut if piece.numel() for edge in _edges(piece)]
    size = math.gcd(x.shape[dim], *edges)
    if size == 1 < x.shape[dim] or any(_stride(piece) for piece in cut):
        name = call.node.name
        channels.freeze(x.ids, f"{name} selects single channels or parts of unequal size")
    else:
        equal = x.ids.view(-1, size)
        channels.union(equal[:-1], equal[1:])
    return move(call)


def _edges(piece: Tensor) -> tuple[int, int]:
    return int(piece.min()), int(piece.max()) + 1


def _stride(piece: Tensor) -> bool:
    first, end = _edges(piece) if piece.numel() else (0, 0)
    return end - first != len(torch.unique(piece))


def roll(call: OpCall) -> Result:
    """Apply the rule of a cyclic shift of positions; a shift of channels is frozen."""
    x, dims = call.value(), call.get("dims")
    if not dims or x.axis is None or x.axis in {dim % len(x.shape) for dim in dims}:
        return call.state.freeze_call(call, f"{call.node.name} shifts channels")
    return ChannelLayout(x.shape, x.axis, x.ids)


def pad(call: OpCall) -> Result:
    """Apply the rule of padding; the number of padded channels is fixed."""
    x, channels = call.value(), call.state.channels
    widths = list(call.get("pad"))
    sides = {len(x.shape) - 1 - i // 2: tuple(widths[i : i + 2]) for i in range(0, len(widths), 2)}
    if x.axis is None or sides.get(x.axis, (0, 0)) == (0, 0):
        return ChannelLayout(call.shape, x.axis, x.ids)
    if call.get("mode") not in (None, "constant") or min(sides[x.axis]) < 0:
        return call.state.freeze_call(call, f"{call.node.name} pads channels with other channels")
    fill = channels.frozen_layout((), f"{call.node.name} pads a fixed number of channels").ids
    before, after = sides[x.axis]
    return ChannelLayout(
        call.shape, x.axis, torch.cat([fill.expand(before), x.ids, fill.expand(after)])
    )


def _read_off(call: OpCall, prefer: int | None) -> Result:
    channels = call.state.channels
    outputs = _run(call, lambda node: channels.broadcast(call.state.value(node)))
    if isinstance(outputs, Tensor):
        return channels.gather(outputs, prefer)
    return tuple(channels.gather(output, prefer) for output in outputs)


def _run(call: OpCall, ids: Callable[[fx.Node], Tensor]) -> Any:
    """Return the result of the operation on ids in place of its tensors."""
    operation: Any = call.node.target
    args, kwargs = map_arg((call.node.args, call.node.kwargs), ids)
    return operation(*args, **kwargs)


def _outputs(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


def _first_axis(call: OpCall) -> int | None:
    """Return the channel axis of the first operand that has one."""
    axes = [value.axis for value in call.operands() if value.axis is not None]
    return axes[0] if axes else None


_RESHAPES = "view reshape _unsafe_view flatten unflatten squeeze unsqueeze view_as reshape_as"
_MOVES = (
    "permute transpose t movedim moveaxis swapaxes swapdims numpy_T mT adjoint "
    "repeat tile flip pixel_shuffle pixel_unshuffle"
)
_PARTS = "slice split split_with_sizes chunk narrow select unbind tensor_split unsafe_split"

for _name, _rule in {
    **dict.fromkeys(_RESHAPES.split(), reshape),
    **dict.fromkeys(_MOVES.split(), move),
    **dict.fromkeys(_PARTS.split(), part),
    **dict.fromkeys(("expand", "expand_as"), expand),
    **dict.fromkeys(("pad", "constant_pad_nd"), pad),
    **dict.fromkeys(("cat", "concat", "concatenate"), concat),
    "stack": stack,
    "channel_shuffle": channel_shuffle,
    "roll": roll,
}.items():
    register_rule(f"aten::{_name}", _rule)
