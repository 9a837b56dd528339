"""Rules of operators: how channel ids pass through element-wise operations, data movement, layers.

Element-wise operations couple the channels of their operands. Data movement is executed on the
channel ids. Layers with weights consume the ids of their inputs and produce new ones.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from entrim.graph.tracer import POINTWISE, ChannelLayout, OpCall, Result, Vector, register_rule

# Element-wise operations, and operations on each feature map


def pointwise(call: OpCall) -> Result:
    """Apply the rule of an element-wise operation: operands of one element are coupled.

    A tensor that is broadcast over the channels is frozen, because it affects all of them. Tensors
    with the same number of channels must be pruned together.
    """
    channels, shape = call.state.channels, call.shape
    _align_stored(call)
    operands = [(value, len(shape) - len(value.shape)) for value in call.operands()]
    axes = [value.axis + lead for value, lead in operands if value.axis is not None]
    if not operands:
        return channels.frozen_layout(shape, f"{call.node.name} has a fixed size")
    if not axes:
        for value, _ in operands[1:]:
            channels.union(operands[0][0].ids, value.ids)
        return ChannelLayout(shape, None, operands[0][0].ids)
    axis = max(axes, key=lambda a: (shape[a] > 1, axes.count(a)))
    vectors = []
    for value, lead in operands:
        if axis < lead or value.shape[axis - lead] == 1 < shape[axis]:
            channels.freeze(value.ids, f"{call.node.name} broadcasts it over all channels")
        elif value.shape[axis - lead] == shape[axis]:
            vectors.append(channels.ids_along(value, axis - lead))
        else:
            return call.state.freeze_call(call, f"{call.node.name} does not broadcast")
    for vector in vectors[1:]:
        channels.union(vectors[0], vector)
    return ChannelLayout(shape, axis, vectors[0])


def _align_stored(call: OpCall) -> None:
    """Let parameters with several dimensions have the channel axis of the activations."""
    state, rank = call.state, len(call.shape)
    known = [state.values.get(node) for node in call.node.all_input_nodes]
    axes = {
        value.axis + rank - len(value.shape)
        for value in known
        if isinstance(value, ChannelLayout) and value.axis is not None
    }
    for node in call.node.all_input_nodes if len(axes) == 1 else ():
        dim = next(iter(axes)) - rank + len(state.shapes.get(state.names.get(node, ""), ()))
        if dim >= 0:
            state.stored_along(node, dim)


def first(call: OpCall) -> Result:
    """Apply the rule of an operation that copies its first tensor."""
    x = call.value()
    return ChannelLayout(call.shape, x.axis, x.ids)


def dropout(call: OpCall) -> Result:
    """Apply the rule of an inactive dropout; an active one is frozen."""
    if call.get("train") or call.get("training"):
        return call.state.freeze_call(call, f"{call.node.name} draws random numbers")
    return first(call)


def over_dims(call: OpCall) -> Result:
    """Apply the rule of a reduction, softmax or sort; frozen if it is along the channels."""
    x, dims = call.value(), call.get("dim")
    if x.axis is None:
        return call.results(lambda shape: ChannelLayout(shape, None, x.ids))
    rank = len(x.shape)
    spanned = {d % rank for d in ([dims] if isinstance(dims, int) else dims or range(rank))}
    if x.axis in spanned:
        return call.state.freeze_call(call, f"{call.node.name} runs over the channels")
    lost = sum(dim < x.axis for dim in spanned)
    axis = x.axis
    return call.results(
        lambda shape: ChannelLayout(shape, axis if len(shape) == rank else axis - lost, x.ids)
    )


def plane(call: OpCall) -> Result:
    """Apply the rule of pooling, interpolation and similar operations on each feature map."""
    x = call.value()
    spatial = re.search(r"(\d)d", str(call.node.target))
    others = [value for value in call.operands() if value is not x]
    if spatial is None or (x.axis or 0) >= len(x.shape) - int(spatial[1]):
        return call.state.freeze_call(call, f"{call.node.name} runs over the channels")
    for value in others:
        call.state.channels.freeze(value.ids, f"{call.node.name} uses it for every channel")
    return call.results(lambda shape: ChannelLayout(shape, x.axis, x.ids))


_POINTWISE = (
    "hardswish hardsigmoid relu6 leaky_relu selu celu softsign rrelu log_sigmoid hardshrink "
    "softshrink tanhshrink threshold square copy masked_fill fill zero where clamp clip "
    "true_divide hardtanh"
)
_COPIES = (
    "to contiguous clone detach alias type_as lift_fresh_copy lift_fresh _to_copy float double "
    "half bfloat16 zeros_like ones_like full_like empty_like"
)
_DROPOUTS = "dropout feature_dropout alpha_dropout feature_alpha_dropout"
_OVER_DIMS = (
    "mean sum amax amin var std max min linalg_vector_norm norm logsumexp prod any all argmax "
    "argmin softmax log_softmax cumsum cumprod sort median"
)
_PLANES = (
    "max_pool{} max_pool{}_with_indices avg_pool{} adaptive_avg_pool{} "
    "adaptive_max_pool{} upsample_nearest{} _upsample_nearest_exact{} upsample_linear{} "
    "upsample_bilinear{} upsample_trilinear{} upsample_bicubic{} _upsample_bilinear{}_aa "
    "_upsample_bicubic{}_aa reflection_pad{} replication_pad{} grid_sampler_{}"
)

for _name, _rule in {
    **dict.fromkeys(_POINTWISE.split(), pointwise),
    **dict.fromkeys(_COPIES.split(), first),
    **dict.fromkeys(_DROPOUTS.split(), dropout),
    **dict.fromkeys(_OVER_DIMS.split(), over_dims),
    **{name.format(f"{n}d"): plane for name in _PLANES.split() for n in (1, 2, 3)},
}.items():
    register_rule(f"aten::{_name}", _rule)
register_rule(POINTWISE, pointwise)


# Data movement


def move(call: OpCall) -> Result:
    """Apply the rule of an operation that rearranges or copies elements."""
    return _read_off(call, _first_axis(call))


def reshape(call: OpCall) -> Result:
    """Apply the rule of a reshape; the axis of the channels follows from the ids."""
    x = call.value()
    full = call.state.channels.broadcast(x)
    if full.numel() != math.prod(call.shape):
        return call.state.freeze_call(call, f"{call.node.name} reinterprets bits as another type")
    heads = x.axis == len(x.shape) - 1 and splits_heads(call.node, x.shape, call.shape)
    return call.state.channels.gather(
        full.reshape(call.shape), len(call.shape) - 2 if heads else None
    )


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


def index(call: OpCall) -> Result:
    """Apply the rule of an indexing by tensors, such as that of a table of relative positions."""
    node, places = call.node.args[0], list(call.get("indices"))
    count = len(places)
    if not isinstance(node, fx.Node) or None in places:
        return call.state.freeze_call(call, f"{call.node.name} selects single channels")
    call.state.stored_along(node, count)
    return _rows(call, call.value(), count)


def embedding(call: OpCall) -> Result:
    """Apply the rule of an embedding: its columns are channels."""
    call.state.stored_along(call.get("weight"), 1)
    return _rows(call, call.value("weight"), 1)


def _rows(call: OpCall, table: ChannelLayout, indexed: int) -> Result:
    """Return the layout of rows of `table`, whose first `indexed` dimensions are replaced."""
    if table.axis is None or table.axis < indexed:
        return call.state.freeze_call(call, f"{call.node.name} selects single channels")
    return ChannelLayout(call.shape, table.axis + len(call.shape) - len(table.shape), table.ids)


def roll(call: OpCall) -> Result:
    """Apply the rule of a cyclic shift of positions; a shift of channels is frozen."""
    x, dims = call.value(), call.get("dims")
    if not dims or x.axis is None or x.axis in {dim % len(x.shape) for dim in dims}:
        return call.state.freeze_call(call, f"{call.node.name} shifts channels")
    return ChannelLayout(x.shape, x.axis, x.ids)


def index_select(call: OpCall) -> Result:
    """Apply the rule of a selection of positions; a selection of channels is frozen."""
    dim, node = call.get("dim") % len(call.shape), call.node.args[0]
    if dim == 0 and isinstance(node, fx.Node):
        call.state.stored_along(node, 1)  # rows of a table
    x = call.value()
    if x.axis in (None, dim):
        return call.state.freeze_call(call, f"{call.node.name} selects single channels")
    return ChannelLayout(call.shape, x.axis, x.ids)


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
    "index": index,
    "index_select": index_select,
    "embedding": embedding,
}.items():
    register_rule(f"aten::{_name}", _rule)


# Layers with weights


def convolution(call: OpCall) -> Result:
    """Apply the rule of a convolution with any number of dimensions and groups."""
    weight, transposed = call.tensor("weight"), "transpose" in str(call.node.target)
    x = call.value("input")
    axis = (
        len(x.shape)
        - len(call.value("weight").shape if weight is None else call.state.shapes[weight])
        + 1
    )
    if weight is None:
        return _opaque(call, axis, "a computed weight")
    if _is_complex(call):
        return _opaque(call, axis, "complex weights")
    columns, groups = call.state.channels.ids_along(x, axis), call.get("groups")
    if groups == 1:
        out = _dense(call, weight, columns, axis, transposed)
    elif groups == len(columns):
        out = _depthwise(call, weight, columns, transposed)
        call.count("groups", columns)
    else:
        out = _group_convolution(call, weight, columns, groups, axis, transposed)
    call.attach("bias", out)
    call.count("in_channels", columns)
    call.count("out_channels", out)
    return ChannelLayout(call.shape, axis, out)


def _dense(call: OpCall, weight: str, columns: Vector, axis: int, transposed: bool) -> Vector:
    inputs, outputs = (0, 1) if transposed else (1, 0)
    call.state.bind(weight, inputs, columns)
    _consume(call, weight, inputs, axis)
    return call.state.produce(call.layer(), weight, outputs)


def _depthwise(call: OpCall, weight: str, columns: Vector, transposed: bool) -> Vector:
    """Propagate the ids: an input channel and its output channels are removed together."""
    shape = call.state.shapes[weight]
    multiplier = shape[1] if transposed else shape[0] // len(columns)
    out = columns.repeat_interleave(multiplier)
    call.state.bind(weight, 0, columns if transposed else out)
    return out


def _group_convolution(
    call: OpCall, weight: str, columns: Vector, groups: int, axis: int, transposed: bool
) -> Vector:
    """Couple equal offsets across groups, so that all groups keep the same number."""
    walk, layer = call.state, call.layer()
    offsets = columns.view(groups, -1)
    walk.channels.union(offsets[:-1], offsets[1:])
    _consume(call, weight, 0 if transposed else 1, axis)
    if transposed:
        walk.bind(weight, 0, columns)
        out = walk.produce(layer, weight, 1).repeat(groups)
        walk.producers[layer] = out
        return out
    walk.bind(weight, 1, offsets[0])
    return walk.produce(layer, weight, 0, groups)


def linear(call: OpCall) -> Result:
    """Apply the rule of a linear layer; after a flatten, columns of one channel share an id."""
    weight = call.tensor("weight")
    if weight is None or len(call.state.shapes[weight]) != 2:
        return _opaque(call, -1, "a computed weight")
    if _is_complex(call):
        return _opaque(call, -1, "complex weights")
    x = call.value("input")
    columns = call.state.channels.ids_along(x, -1)
    call.state.bind(weight, 1, columns)
    _consume(call, weight, 1, len(call.shape) - 1)
    out = call.state.produce(call.layer(), weight, 0)
    call.attach("bias", out)
    call.count("in_features", columns)
    call.count("out_features", out)
    return ChannelLayout(call.shape, len(call.shape) - 1, out)


def _is_complex(call: OpCall) -> bool:
    return call.get("weight").meta["val"].is_complex()


def _opaque(call: OpCall, axis: int, what: str) -> Result:
    """Freeze a layer whose weights cannot be refitted, and list it."""
    result = call.state.freeze_call(call, f"{call.layer()} has {what}")
    if isinstance(result, ChannelLayout):
        call.state.producers.setdefault(call.layer(), call.state.channels.ids_along(result, axis))
    return result


def _consume(call: OpCall, weight: str, dim: int, axis: int) -> None:
    """Record the layer as a consumer, with the tensor that can take an intercept.

    `axis` is the axis of its output channels; a BatchNorm always normalizes axis 1.
    """
    home = None
    if call.tensor("bias") == f"{call.layer()}.bias" and _serves_only(call, call, "bias", weight):
        home = "bias"
    users = list(call.node.users)
    normalized = axis == 1 and len(users) == 1 and "batch_norm" in str(users[0].target)
    if call.get("bias") is None and normalized:
        user = OpCall.of(call.state, users[0])
        mean = user.tensor("running_mean") if not user.get("training") else None
        if mean is not None and _serves_only(call, user, "running_mean", weight):
            home = f"batchnorm:{mean}"
    known = call.state.consumers.setdefault(weight, (dim, home))
    if known != (dim, home):
        call.state.consumers[weight] = (dim, None)


def _serves_only(call: OpCall, holder: OpCall, name: str, weight: str) -> bool:
    """Whether the argument `name` of `holder` is used for outputs of `weight` only."""
    nodes = list(holder.get(name).users)
    if holder is not call:
        nodes = [OpCall.of(call.state, node).get("input") for node in nodes]
    return all(
        isinstance(node, fx.Node) and OpCall.of(call.state, node).tensor("weight") == weight
        for node in nodes
    )


def norm_per_channel(call: OpCall) -> Result:
    """Apply the rule of BatchNorm and InstanceNorm, which normalize each channel separately."""
    x = call.value("input")
    ids = call.state.channels.ids_along(x, 1)
    for name in ("weight", "bias", "running_mean", "running_var"):
        call.attach(name, ids)
    call.count("num_features", ids)
    return ChannelLayout(call.shape, 1, ids)


def group_norm(call: OpCall) -> Result:
    """Apply the rule of GroupNorm: only whole groups can be removed."""
    ids, groups = call.state.channels.ids_along(call.value("input"), 1), call.get("num_groups")
    if groups == 1:
        return _norm_over_channels(call, ids, 1, "num_channels")
    together = ids.view(groups, -1).T
    call.state.channels.union(together[:-1], together[1:])
    call.attach("weight", ids)
    call.attach("bias", ids)
    call.count("num_channels", ids)
    call.count("num_groups", ids, len(ids) // groups)
    return ChannelLayout(call.shape, 1, ids)


def layer_norm(call: OpCall) -> Result:
    """Apply the rule of LayerNorm and RMSNorm, over the channels or over positions."""
    x = call.value("input")
    first = len(x.shape) - len(call.get("normalized_shape"))
    if x.axis == first == len(x.shape) - 1:
        return _norm_over_channels(call, x.ids, first, "normalized_shape")
    if (x.axis or 0) >= first:
        return call.state.freeze_call(call, f"{call.layer()} normalizes channels and positions")
    for name in ("weight", "bias"):
        if isinstance(call.get(name), fx.Node):
            ids = call.value(name).ids
            call.state.channels.freeze(ids, f"{call.layer()} is a LayerNorm over positions")
    return ChannelLayout(call.shape, x.axis, x.ids)


def _norm_over_channels(call: OpCall, ids: Vector, axis: int, counted: str) -> Result:
    """Bind a normalization over channels: its statistics are restricted to the kept ones.

    The removed channels are marked in its weight, so a normalization without one is frozen.
    """
    weight = call.tensor("weight")
    if weight is None or len(call.state.shapes[weight]) != 1:
        return call.state.freeze_call(
            call, f"{call.layer()} normalizes over the channels without a weight"
        )
    call.state.norms.setdefault(weight, call.layer())
    for name in ("weight", "bias"):
        call.attach(name, ids)
    call.count(counted, ids)
    return ChannelLayout(call.shape, axis, ids)


def prelu(call: OpCall) -> Result:
    """Apply the rule of PReLU, with one slope for all channels or one per channel."""
    x, weight = call.value(), call.value("weight")
    if weight.shape in ((), (1,)) or len(x.shape) < 2:
        call.state.channels.freeze(weight.ids, f"{call.layer()} has one slope for all channels")
        return ChannelLayout(call.shape, x.axis, x.ids)
    ids = call.state.channels.ids_along(x, 1)
    call.attach("weight", ids)
    call.count("num_parameters", ids)
    return ChannelLayout(call.shape, 1, ids)


for _name, _rule in {
    **{f"conv{n}d": convolution for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": convolution for n in (1, 2, 3)},
    "linear": linear,
    "batch_norm": norm_per_channel,
    "instance_norm": norm_per_channel,
    "group_norm": group_norm,
    "layer_norm": layer_norm,
    "rms_norm": layer_norm,
    "prelu": prelu,
}.items():
    register_rule(f"aten::{_name}", _rule)


# Attention: entire heads are removed. They do not interact before the layer that reads all of them.
# Dimensions of queries and keys are not removed, because the scale depends on their number.

_PRODUCTS = frozenset(("scaled_dot_product_attention", "matmul", "bmm", "baddbmm"))
_ON_THE_WAY = re.compile(
    r"permute|transpose|unbind|getitem|select|chunk|split|contiguous|clone|mul|div|to|_to_copy|"
    r"squeeze|unsqueeze|layer_norm|rms_norm|reshape|view|cat"
)
_STEPS = 12
"""Operations between the view as heads and the product."""


def splits_heads(node: fx.Node, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Whether a reshape splits the last axis into heads and their dimensions, for an attention.

    Queries, keys and values may be one tensor: then the last axis is split into three.
    """
    added = len(after) - len(before)
    if added not in (1, 2) or not before or before[:-1] != after[: len(before) - 1]:
        return False
    if added == 2 and after[-3] not in (2, 3):
        return False
    reached, found = {node}, {node}
    for _ in range(_STEPS):
        found = {user for one in found for user in one.users} - reached
        if any(_operator_name(one) in _PRODUCTS for one in found):
            return True
        found = {one for one in found if _ON_THE_WAY.fullmatch(_operator_name(one))}
        reached |= found
    return False


def attention(call: OpCall) -> Result:
    """Apply the rule of scaled dot-product attention: heads of all three inputs are coupled."""
    query, key, value = (call.value(name) for name in ("query", "key", "value"))
    rank = len(call.shape)
    sizes = {len(one.ids) if one.axis == rank - 3 else 0 for one in (query, key, value)}
    if rank < 4 or len(sizes) != 1 or 0 in sizes:
        return call.state.freeze_call(call, f"{call.node.name} is an attention without heads")
    for other in (key, value):
        call.state.channels.union(query.ids, other.ids)
    _couple_mask(call, query)
    size = math.prod(query.shape[:-1]) * key.shape[-2]
    call.state.products.append((query.ids, size * (query.shape[-1] + value.shape[-1])))
    return ChannelLayout(call.shape, query.axis, query.ids)


def _couple_mask(call: OpCall, query: ChannelLayout) -> None:
    """Couple a mask that differs between heads, such as a bias for relative positions."""
    mask, state = call.get("attn_mask"), call.state
    axis = len(mask.meta["val"].shape) - 3 if isinstance(mask, fx.Node) else -1
    if axis >= 0 and mask.meta["val"].shape[axis] > 1:
        state.stored_along(mask, axis)
        state.channels.union(query.ids, state.channels.ids_along(state.value(mask), axis))


def product(call: OpCall) -> Result:
    """Apply the rule of a product of matrices, one for each head."""
    factors = list(call.operands())
    axes = {one.axis if one.shape[:-2] == call.shape[:-2] else None for one in factors}
    axis = axes.pop() if len(axes) == 1 else None
    if len(factors) != 2 or axis is None or axis >= len(call.shape) - 2:
        return call.state.freeze_call(call, f"{call.node.name} sums over the channels")
    first, second = (call.state.channels.ids_along(one, axis) for one in factors)
    call.state.channels.union(first, second)
    call.state.products.append((first, math.prod(call.shape) * factors[0].shape[-1]))
    return ChannelLayout(call.shape, axis, first)


def _operator_name(node: fx.Node) -> str:
    schema = getattr(node.target, "_schema", None)
    full = getattr(schema, "name", None) or getattr(node.target, "__name__", "")
    return str(full).rpartition("::")[2].removesuffix("_")


register_rule("aten::scaled_dot_product_attention", attention)
register_rule("aten::matmul", product)
register_rule("aten::bmm", product)
