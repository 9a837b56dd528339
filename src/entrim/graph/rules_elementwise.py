"""Rules for operations that do not mix channels: element-wise, or per feature map."""

import re

from entrim.graph.channel_ids import ChannelLayout
from entrim.graph.tracer import POINTWISE, OpCall, Result, register_rule


def pointwise(call: OpCall) -> Result:
    """Apply the rule of an element-wise operation: operands of one element are coupled.

    A tensor that is broadcast over the channels is frozen, because it affects all of them. Tensors
    with the same number of channels must be pruned together.
    """
    channels, shape = call.state.channels, call.shape
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
    "softshrink tanhshrink threshold square copy masked_fill fill zero where clamp clip true_divide"
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
