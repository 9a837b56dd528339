"""Rules for layers with weights: convolution, linear, normalization, PReLU."""

from torch import fx

from entrim.graph.channel_ids import ChannelLayout
from entrim.graph.tracer import OpCall, Result, Vector, register_rule


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
        call.state.channels.freeze(ids, f"{call.layer()} is a GroupNorm over all channels at once")
    together = ids.view(groups, -1).T
    call.state.channels.union(together[:-1], together[1:])
    call.attach("weight", ids)
    call.attach("bias", ids)
    call.count("num_channels", ids)
    call.count("num_groups", ids, len(ids) // groups)
    return ChannelLayout(call.shape, 1, ids)


def layer_norm(call: OpCall) -> Result:
    """Apply the rule of LayerNorm: normalized channels are frozen."""
    x = call.value("input")
    first = len(x.shape) - len(call.get("normalized_shape"))
    if (x.axis or 0) >= first:
        return call.state.freeze_call(call, f"{call.layer()} is a LayerNorm over the channels")
    for name in ("weight", "bias"):
        if isinstance(call.get(name), fx.Node):
            ids = call.value(name).ids
            call.state.channels.freeze(ids, f"{call.layer()} is a LayerNorm over positions")
    return ChannelLayout(call.shape, x.axis, x.ids)


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
    "prelu": prelu,
}.items():
    register_rule(f"aten::{_name}", _rule)
