"""ONNX operators as PyTorch operations that entrim can trace."""

import math
import operator
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entrim.errors import OnnxError
from entrim.onnx.sizes import (
    SIZE_OPERATORS,
    Literal,
    Place,
    Size,
    as_size,
    numbers,
    plain,
    slice_arguments,
)

_DTYPES = {2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32, 7: torch.int64}
_DTYPES |= {9: torch.bool}
_FLOATS = (1, 10, 11, 16)
_TRIGONOMETRIC = ("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")
_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_MAX_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVERAGE_POOL = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


class Constants(nn.Module):
    """The constant operands of a node without weights of its own, such as an addition."""

    def __init__(self, values: Mapping[int, Tensor]) -> None:
        super().__init__()
        for number, value in values.items():
            if value.is_floating_point():
                self.register_parameter(f"value{number}", nn.Parameter(value))
            else:
                self.register_buffer(f"value{number}", value)


@dataclass(frozen=True, slots=True)
class Channels:
    """The axis of the channels of an input at the import, and of the result."""

    axis: int
    size: int
    result_axis: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInputs:
    """One node with the values of its inputs."""

    label: str
    """The node and its operator, for messages."""
    inputs: Sequence[Any]
    """Tensors, sizes, or None for inputs that are left out."""
    attributes: Mapping[str, Any]
    opset: int
    outputs: int
    module: nn.Module | None
    channels: Channels | None
    batch: int | None
    """The batch size in the file, where it is fixed."""
    edits: MutableMapping[Place, int] | None
    """Channel counts of the file for the current width, where they are collected."""

    @property
    def x(self) -> Tensor:
        """The first input."""
        return self.inputs[0]

    def get(self, number: int) -> Any:
        """Return an input, None if it is left out."""
        return self.inputs[number] if number < len(self.inputs) else None

    def scalar(self, number: int, name: str, default: Any = None) -> Any:
        """Return a number from an input or, in older versions, an attribute."""
        value = self.get(number)
        if value is None:
            return self.attributes.get(name, default)
        return operand(value)

    def sequence(self, number: int, name: str) -> list[Any] | None:
        """Return numbers from an input or, in older versions, an attribute."""
        value = self.get(number)
        if value is None:
            found = self.attributes.get(name)
            return None if found is None else list(found)
        if isinstance(value, Tensor):
            raise self.unsupported("with sizes that depend on the values of an image")
        return list(value.reshape(-1))

    def required(self, number: int, name: str) -> list[Any]:
        """Return numbers from an input or attribute that must exist."""
        found = self.sequence(number, name)
        assert found is not None
        return found

    def adapt(self, number: Any) -> Any:
        """Return a number of channels in the file, adapted to the current width."""
        if self.channels is None or not isinstance(number, Literal):
            return plain(number)
        adapted = int(number) * self.x.shape[self.channels.axis] // self.channels.size
        if self.edits is not None:
            self.edits[number.place] = adapted
        return adapted

    def unsupported(self, what: str = "") -> OnnxError:
        """Return the error for an operator, or for a use of it, that is not implemented."""
        return OnnxError(
            f"{self.label} is not supported{' ' + what if what else ''}: export the network "
            "without it, or split the file before this node with onnx.utils.extract_model"
        )


def operand(value: Any) -> Any:
    """Return a tensor, or a size as a Python number or a tensor."""
    if isinstance(value, Tensor) or value is None:
        return value
    if value.size == 1:
        return plain(value.reshape(-1)[0])
    return size_tensor(value)


def size_tensor(size: Size) -> Tensor:
    """Return a size as a tensor of the same shape."""
    return torch.tensor(numbers(size)).reshape(size.shape)


def _unary(function: Callable[[Tensor], Tensor]) -> Callable[[NodeInputs], Tensor]:
    return lambda call: function(call.x)


def _binary(function: Callable[[Any, Any], Tensor]) -> Callable[[NodeInputs], Tensor]:
    return lambda call: function(operand(call.inputs[0]), operand(call.inputs[1]))


def _variadic(function: Callable[[Any, Any], Tensor]) -> Callable[[NodeInputs], Tensor]:
    def apply(call: NodeInputs) -> Tensor:
        first, *others = map(operand, call.inputs)
        for other in others:
            first = function(first, other)
        return first

    return apply


def _pairwise(function: Callable[[Tensor, Tensor], Tensor], limit: str) -> Callable[..., Tensor]:
    """Return the larger or smaller value of two; one may be a number, the limit of a clamp."""

    def apply(a: Any, b: Any) -> Tensor:
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return function(a, b)
        tensor, number = (a, b) if isinstance(a, Tensor) else (b, a)
        return torch.clamp(tensor, **{limit: number})

    return apply


def _divide(a: Any, b: Any) -> Tensor:
    whole = not any(
        value.is_floating_point() if isinstance(value, Tensor) else isinstance(value, float)
        for value in (a, b)
    )
    return torch.div(a, b, rounding_mode="trunc") if whole else a / b


def _pow(a: Any, b: Any) -> Tensor:
    return a * a if not isinstance(b, Tensor) and b == 2 else torch.pow(a, b)


def _mean(call: NodeInputs) -> Tensor:
    return _variadic(operator.add)(call) / len(call.inputs)


def _mod(call: NodeInputs) -> Tensor:
    remainder = torch.fmod if call.attributes.get("fmod", 0) else torch.remainder
    return remainder(operand(call.inputs[0]), operand(call.inputs[1]))


def _selu(call: NodeInputs) -> Tensor:
    alpha, gamma = call.attributes.get("alpha", 1.6732632), call.attributes.get("gamma", 1.0507010)
    return gamma * F.elu(call.x, alpha)


def _swish(call: NodeInputs) -> Tensor:
    return call.x * torch.sigmoid(call.attributes.get("alpha", 1.0) * call.x)


def _shrink(call: NodeInputs) -> Tensor:
    bias, limit = call.attributes.get("bias", 0.0), call.attributes.get("lambd", 0.5)
    zero = torch.zeros_like(call.x)
    return torch.where(
        call.x > limit, call.x - bias, torch.where(call.x < -limit, call.x + bias, zero)
    )


def _clip(call: NodeInputs) -> Tensor:
    low, high = call.scalar(1, "min"), call.scalar(2, "max")
    if low is None and high is None:
        return call.x
    return torch.clamp(call.x, low, high)


def _hard_sigmoid(call: NodeInputs) -> Tensor:
    alpha, beta = call.attributes.get("alpha", 0.2), call.attributes.get("beta", 0.5)
    return torch.clamp(call.x * alpha + beta, 0, 1)


def _with_alpha(
    function: Callable[[Tensor, float], Tensor], default: float
) -> Callable[[NodeInputs], Tensor]:
    return lambda call: function(call.x, call.attributes.get("alpha", default))


def _prelu(call: NodeInputs) -> Tensor:
    if isinstance(call.module, nn.PReLU):
        return call.module(call.x)
    slope = operand(call.inputs[1])
    return torch.clamp(call.x, min=0) + slope * torch.clamp(call.x, max=0)


def _gelu(call: NodeInputs) -> Tensor:
    return F.gelu(call.x, approximate=call.attributes.get("approximate", "none"))


def _where(call: NodeInputs) -> Tensor:
    return torch.where(*map(operand, call.inputs))


def _cast(call: NodeInputs) -> Tensor:
    """Cast; between floating-point types nothing changes, because a module has one precision."""
    kind = call.attributes["to"]
    if kind in _FLOATS:
        return call.x if call.x.is_floating_point() else call.x.float()
    if kind not in _DTYPES:
        raise call.unsupported(f"to the type {kind}")
    return call.x.to(_DTYPES[kind])


def _cast_like(call: NodeInputs) -> Any:
    x, other = call.inputs
    if not isinstance(x, Tensor) or not isinstance(other, Tensor):
        return x
    return x if other.is_floating_point() == x.is_floating_point() else x.to(other.dtype)


def padding(call: NodeInputs, kernel: Sequence[int]) -> list[tuple[int, int]]:
    """Return the padding before and after each spatial dimension."""
    rank, attributes = len(kernel), call.attributes
    mode = attributes.get("auto_pad", "NOTSET")
    if mode in ("NOTSET", "VALID", ""):
        pads = attributes.get("pads", [0] * 2 * rank) if mode != "VALID" else [0] * 2 * rank
        return list(zip(pads[:rank], pads[rank:], strict=True))
    strides = attributes.get("strides", [1] * rank)
    dilations = attributes.get("dilations", [1] * rank)
    found = []
    for size, k, s, d in zip(call.x.shape[2:], kernel, strides, dilations, strict=True):
        total = max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
        less, more = total // 2, total - total // 2
        found.append((less, more) if mode == "SAME_UPPER" else (more, less))
    return found


def is_symmetric(attributes: Mapping[str, Any]) -> bool:
    """Whether a convolution or pooling has a fixed padding, equal on both sides."""
    if "output_shape" in attributes:
        return False
    mode, pads = attributes.get("auto_pad", "NOTSET"), list(attributes.get("pads", ()))
    fixed = mode in ("NOTSET", "VALID", "")
    return mode == "VALID" or (fixed and pads[: len(pads) // 2] == pads[len(pads) // 2 :])


def _pad_sides(x: Tensor, sides: Sequence[tuple[int, int]], value: float = 0.0) -> Tensor:
    flat = [int(width) for side in reversed(sides) for width in side]
    return F.pad(x, flat, value=value) if any(flat) else x


def _conv(call: NodeInputs) -> Tensor:
    weight, x = call.inputs[1], call.x
    kernel = weight.shape[2:]
    if not is_symmetric(call.attributes):
        x = _pad_sides(x, padding(call, kernel))
    if call.module is not None and not isinstance(call.module, Constants):
        return call.module(x)
    rank, attributes = len(kernel), call.attributes
    sides = padding(call, kernel) if is_symmetric(attributes) else [(0, 0)] * rank
    convolve: Any = _CONV[rank]
    return convolve(
        x,
        weight,
        call.get(2),
        stride=attributes.get("strides", 1),
        padding=[before for before, _ in sides],
        dilation=attributes.get("dilations", 1),
        groups=attributes.get("group", 1),
    )


def _conv_transpose(call: NodeInputs) -> Tensor:
    if call.module is None or isinstance(call.module, Constants):
        raise call.unsupported("with a computed weight")
    y = call.module(call.x)
    if is_symmetric(call.attributes):
        return y
    for dim, (before, after) in enumerate(_cropping(call, y), 2):
        y = y.narrow(dim, before, y.shape[dim] - before - after)
    return y


def _cropping(call: NodeInputs, y: Tensor) -> list[tuple[int, int]]:
    """Return what a transposed convolution removes on both sides of each spatial dimension."""
    rank, mode = y.dim() - 2, call.attributes.get("auto_pad", "NOTSET")
    target = call.attributes.get("output_shape")
    if target is None and not mode.startswith("SAME"):
        return padding(call, y.shape[2:])
    if target is None:
        strides = call.attributes.get("strides", [1] * rank)
        target = [size * stride for size, stride in zip(call.x.shape[2:], strides, strict=True)]
    found = []
    for size, wanted in zip(y.shape[2:], target, strict=True):
        if size < wanted:
            raise call.unsupported("with a stride that is larger than the kernel")
        less, more = (size - wanted) // 2, size - wanted - (size - wanted) // 2
        found.append((less, more) if mode == "SAME_UPPER" else (more, less))
    return found


def _gemm(call: NodeInputs) -> Tensor:
    if isinstance(call.module, nn.Linear):
        return call.module(call.x)
    a, b = call.x, operand(call.inputs[1])
    a = a.transpose(0, 1) if call.attributes.get("transA") else a
    b = b.transpose(0, 1) if call.attributes.get("transB") else b
    y = call.attributes.get("alpha", 1.0) * (a @ b)
    c = operand(call.get(2))
    return y if c is None else y + call.attributes.get("beta", 1.0) * c


def _matmul(call: NodeInputs) -> Tensor:
    if isinstance(call.module, nn.Linear):
        return call.module(call.x)
    return torch.matmul(call.inputs[0], call.inputs[1])


def _layer(call: NodeInputs) -> Tensor:
    """Run a normalization, which is always a module."""
    if call.module is None or isinstance(call.module, Constants):
        raise call.unsupported("with computed parameters, or in training mode")
    return call.module(call.x)


def _rms_norm(call: NodeInputs) -> Tensor:
    axis, eps = call.attributes.get("axis", -1), call.attributes.get("epsilon", 1e-5)
    dims = list(range(axis % call.x.dim(), call.x.dim()))
    scale = torch.rsqrt(torch.mean(call.x * call.x, dims, keepdim=True) + eps)
    return call.x * scale * operand(call.inputs[1])


def _max_pool(call: NodeInputs) -> Tensor:
    kernel = call.attributes["kernel_shape"]
    fits = all(
        2 * before <= k for (before, _), k in zip(padding(call, kernel), kernel, strict=True)
    )
    dilation = call.attributes.get("dilations", 1)
    return _pool(call, _MAX_POOL, -math.inf, separate=not fits, dilation=dilation)


def _average_pool(call: NodeInputs) -> Tensor:
    counted = bool(call.attributes.get("count_include_pad", 0))
    kernel = call.attributes["kernel_shape"]
    if any(d != 1 for d in call.attributes.get("dilations", ())):
        raise call.unsupported("with dilations")
    sides = padding(call, kernel)
    separate = any(
        before != after or 2 * before > k for (before, after), k in zip(sides, kernel, strict=True)
    )
    if counted or not separate:
        options = {"separate": separate, "count_include_pad": counted}
        return _pool(call, _AVERAGE_POOL, 0.0, **options)
    ones = torch.ones((1, 1, *call.x.shape[2:]), dtype=call.x.dtype, device=call.x.device)
    inside = _pool(replace(call, inputs=[ones]), _AVERAGE_POOL, 0.0, separate=True)
    return _pool(call, _AVERAGE_POOL, 0.0, separate=True) / inside


def _pool(
    call: NodeInputs,
    functions: Mapping[int, Any],
    value: float,
    *,
    separate: bool = False,
    **options: Any,
) -> Tensor:
    """Pool with padding; PyTorch pads both sides equally, otherwise it is a separate operation."""
    kernel, x = call.attributes["kernel_shape"], call.x
    sides = padding(call, kernel)
    if separate or any(before != after for before, after in sides):
        x, sides = _pad_sides(x, sides, value), [(0, 0)] * len(kernel)
    return functions[len(kernel)](
        x,
        kernel,
        stride=call.attributes.get("strides", [1] * len(kernel)),
        padding=[before for before, _ in sides],
        ceil_mode=bool(call.attributes.get("ceil_mode", 0)),
        **options,
    )


def _global_pool(function: Callable[..., Tensor]) -> Callable[[NodeInputs], Tensor]:
    return lambda call: function(call.x, tuple(range(2, call.x.dim())), keepdim=True)


def _reduction(function: Callable[..., Tensor]) -> Callable[[NodeInputs], Tensor]:
    def reduce(call: NodeInputs) -> Tensor:
        axes = call.sequence(1, "axes")
        if not axes and call.attributes.get("noop_with_empty_axes", 0):
            return call.x
        dims = [int(axis) for axis in axes] if axes else list(range(call.x.dim()))
        return function(call.x, dims, bool(call.attributes.get("keepdims", 1)))

    return reduce


def _product(x: Tensor, dims: Sequence[int], keep: bool) -> Tensor:
    for dim in sorted((dim % x.dim() for dim in dims), reverse=True):
        x = torch.prod(x, dim, keepdim=keep)
    return x


def _softmax(function: Callable[..., Tensor]) -> Callable[[NodeInputs], Tensor]:
    def apply(call: NodeInputs) -> Tensor:
        axis = call.attributes.get("axis", -1 if call.opset >= 13 else 1)
        last = axis % call.x.dim() == call.x.dim() - 1
        if call.opset >= 13 or last:
            return function(call.x, dim=axis)
        flat = function(call.x.flatten(axis), dim=-1)
        return flat.reshape(call.x.shape)

    return apply


def _arg(function: Callable[..., Tensor]) -> Callable[[NodeInputs], Tensor]:
    return lambda call: function(
        call.x, call.attributes.get("axis", 0), bool(call.attributes.get("keepdims", 1))
    )


def _concat(call: NodeInputs) -> Tensor:
    first = next(value for value in call.inputs if isinstance(value, Tensor))
    tensors = [
        value
        if isinstance(value, Tensor)
        else torch.tensor(numbers(value), dtype=first.dtype).reshape(value.shape)
        for value in call.inputs
    ]
    return torch.cat(tensors, call.attributes["axis"])


def _split(call: NodeInputs) -> Any:
    axis = call.attributes.get("axis", 0) % call.x.dim()
    sizes, total = call.sequence(1, "split"), call.x.shape[axis]
    if sizes is None:
        size = -(-total // call.outputs)
        return torch.split(call.x, size, axis)
    if call.channels is not None and call.channels.axis == axis:
        return torch.split(call.x, [call.adapt(size) for size in sizes], axis)
    return torch.split(call.x, [plain(size) for size in sizes], axis)


def _split_to_sequence(call: NodeInputs) -> Any:
    if not call.attributes.get("keepdims", 1):
        raise call.unsupported("without keepdims")
    axis, size = call.attributes.get("axis", 0) % call.x.dim(), call.get(1)
    sizes = [1] if size is None else list(size.reshape(-1))
    if call.channels is not None and call.channels.axis == axis:
        sizes = [call.adapt(size) for size in sizes]
    sizes = [plain(size) for size in sizes]
    one = size is None or size.ndim == 0
    return ((torch.split(call.x, sizes[0] if one else sizes, axis)),)


def _sequence_at(call: NodeInputs) -> Tensor:
    return call.inputs[0][plain(call.inputs[1].reshape(-1)[0])]


def _slice(call: NodeInputs) -> Tensor:
    if any(isinstance(value, Tensor) for value in call.inputs[1:]):
        raise call.unsupported("with limits that depend on the values of an image")
    x = call.x
    for start, end, axis, step in zip(
        *slice_arguments(call.inputs, call.attributes, x.dim()), strict=True
    ):
        first, last = plain(start), plain(end)
        if step < 0:
            if (step, first % x.shape[axis]) != (-1, x.shape[axis] - 1) or last > -x.shape[axis]:
                raise call.unsupported("with this negative step")
            x = x.flip(axis)
            continue
        if call.channels is not None and call.channels.axis == axis:
            inside = [abs(plain(edge)) <= call.channels.size for edge in (start, end)]
            first = call.adapt(start) if inside[0] else first
            last = call.adapt(end) if inside[1] else last
        index: list[slice] = [slice(None)] * x.dim()
        index[axis] = slice(first, None if last >= 2**31 - 1 else last, plain(step))
        x = x[tuple(index)]
    return x


def _target(call: NodeInputs, sizes: Sequence[Any]) -> list[Any]:
    """Return the target sizes of a reshape or expansion, for the current width and batch."""
    found = []
    for position, size in enumerate(sizes):
        if call.channels is not None and position == call.channels.result_axis and size > 0:
            found.append(call.adapt(size))
        elif position == 0 and isinstance(size, Literal) and size == call.batch:
            found.append(call.x.shape[0])
        else:
            found.append(plain(size))
    return found


def _reshape(call: NodeInputs) -> Tensor:
    target = _target(call, call.required(1, "shape"))
    if not call.attributes.get("allowzero", 0):
        target = [call.x.shape[k] if size == 0 else size for k, size in enumerate(target)]
    return call.x.reshape(target)


def _expand(call: NodeInputs) -> Tensor:
    target, x = _target(call, call.required(1, "shape")), call.x
    shape = [1] * (len(target) - x.dim()) + list(x.shape)
    target = [1] * (len(shape) - len(target)) + target
    return x.expand([a if b == 1 else b for a, b in zip(shape, target, strict=True)])


def _flatten(call: NodeInputs) -> Tensor:
    axis = call.attributes.get("axis", 1)
    axis = axis % call.x.dim() if axis < 0 else axis
    if axis == 1:
        return call.x.flatten(1)
    if axis == 0:
        return call.x.reshape(1, -1)
    return call.x.flatten(axis).flatten(0, axis - 1)


def _squeeze(call: NodeInputs) -> Tensor:
    axes = call.sequence(1, "axes")
    dims = [d for d, size in enumerate(call.x.shape) if size == 1] if axes is None else axes
    return torch.squeeze(call.x, tuple(int(d) for d in dims))


def _unsqueeze(call: NodeInputs) -> Tensor:
    axes, x = call.required(1, "axes"), call.x
    rank = x.dim() + len(axes)
    for axis in sorted(int(axis) % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


def _transpose(call: NodeInputs) -> Tensor:
    perm = call.attributes.get("perm", list(range(call.x.dim()))[::-1])
    return call.x.permute(perm)


def _gather(call: NodeInputs) -> Any:
    axis, index = call.attributes.get("axis", 0), call.inputs[1]
    x = operand(call.inputs[0])
    if isinstance(index, Tensor):
        if index.dim() == 1:
            return torch.index_select(x, axis, index)
        if axis == 0:
            return F.embedding(index, x)
        raise call.unsupported("with an index of several dimensions")
    if index.ndim == 0:
        return x.select(axis, plain(index[()]))
    places = torch.tensor(numbers(index), device=x.device)
    picked = torch.index_select(x, axis, places % x.shape[axis])
    axis %= x.dim()
    return picked.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


def _gather_nd(call: NodeInputs) -> Tensor:
    if call.attributes.get("batch_dims", 0):
        raise call.unsupported("with batch dimensions")
    index = _index(call)
    return call.x[index.unbind(-1)]


def _index(call: NodeInputs) -> Tensor:
    """Return the second input of a gather or scatter."""
    index = call.inputs[1]
    return index if isinstance(index, Tensor) else size_tensor(index)


def _scatter_nd(call: NodeInputs) -> Tensor:
    reduction = call.attributes.get("reduction", "none")
    if reduction not in ("none", "add"):
        raise call.unsupported(f"with the reduction {reduction}")
    places, values = _index(call).unbind(-1), call.inputs[2]
    values = values if isinstance(values, Tensor) else size_tensor(values).to(call.x.dtype)
    return torch.index_put(call.x, places, values, accumulate=reduction == "add")


def _gather_elements(call: NodeInputs) -> Tensor:
    axis, index = call.attributes.get("axis", 0), _index(call)
    return torch.gather(call.x, axis, index % call.x.shape[axis])


def _grid_sample(call: NodeInputs) -> Tensor:
    modes = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest"}
    return F.grid_sample(
        call.x,
        call.inputs[1],
        modes.get(call.attributes.get("mode", "linear"), "bilinear"),
        call.attributes.get("padding_mode", "zeros"),
        bool(call.attributes.get("align_corners", 0)),
    )


def _trilu(call: NodeInputs) -> Tensor:
    diagonal = call.scalar(1, "k", 0)
    return (torch.triu if call.attributes.get("upper", 1) else torch.tril)(call.x, diagonal)


def _cumsum(call: NodeInputs) -> Tensor:
    if call.attributes.get("exclusive", 0) or call.attributes.get("reverse", 0):
        raise call.unsupported("exclusive or in reverse")
    return torch.cumsum(call.x, int(call.required(1, "axis")[0]))


def _pad(call: NodeInputs) -> Tensor:
    pads, mode = call.required(1, "pads"), call.attributes.get("mode", "constant")
    value = call.scalar(2, "value", 0.0)
    if call.get(3) is not None:
        axes = [int(axis) % call.x.dim() for axis in call.inputs[3].reshape(-1)]
        full: list[Any] = [0] * 2 * call.x.dim()
        for k, axis in enumerate(axes):
            full[axis], full[axis + call.x.dim()] = pads[k], pads[k + len(axes)]
        pads = full
    rank = len(pads) // 2
    sides = [(plain(a), plain(b)) for a, b in zip(pads[:rank], pads[rank:], strict=True)]
    while sides and sides[0] == (0, 0) and (mode == "constant" or len(sides) > 1):
        sides = sides[1:]
    flat = [width for side in reversed(sides) for width in side]
    if not any(flat):
        return call.x
    if mode == "constant":
        return F.pad(call.x, flat, value=0.0 if value is None else value)
    names = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    return F.pad(call.x, flat, mode=names[mode])


def _tile(call: NodeInputs) -> Tensor:
    return call.x.repeat([plain(count) for count in call.required(1, "repeats")])


def _resize(call: NodeInputs) -> Tensor:
    old = call.opset < 11
    mode = call.attributes.get("mode", "nearest")
    coordinates = call.attributes.get(
        "coordinate_transformation_mode", "asymmetric" if old else "half_pixel"
    )
    sizes, factors = _resized(call, old)
    rounding = call.attributes.get("nearest_mode", "floor" if old else "round_prefer_floor")
    if not _is_native(mode, coordinates, rounding, factors):
        if mode == "cubic" or call.attributes.get("antialias", 0):
            raise call.unsupported(f"with {coordinates} coordinates, cubic or with antialiasing")
        return _resize_axes(call, sizes, factors, (mode, coordinates, rounding))
    wanted = None if old else call.get(3)
    options: dict[str, Any]
    if wanted is not None and wanted.size:
        options = {"size": sizes}
    else:
        options = {"scale_factor": factors, "recompute_scale_factor": False}
    if mode != "nearest":
        options["align_corners"] = coordinates == "align_corners"
        options["antialias"] = bool(call.attributes.get("antialias", 0))
    names = {"linear": ("linear", "bilinear", "trilinear"), "cubic": ("", "bicubic", "")}
    return F.interpolate(call.x, mode=names.get(mode, (mode,) * 3)[len(sizes) - 1], **options)


def _resized(call: NodeInputs, old: bool) -> tuple[list[Any], list[Any]]:
    """Return new sizes of the spatial dimensions, and their ratios to the old ones."""
    scales, sizes = call.get(1 if old else 2), None if old else call.get(3)
    given = sizes if sizes is not None and sizes.size else scales
    if given is None:
        given = as_size(call.attributes["scales"])
    if call.attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise call.unsupported("with a fixed aspect ratio")
    shape = call.x.shape
    axes = [axis % len(shape) for axis in call.attributes.get("axes", range(len(shape)))]
    found = dict(zip(axes, given.reshape(-1), strict=True))
    if given is sizes:
        if call.edits is not None and isinstance(found.get(1), Literal):
            call.edits[found[1].place] = shape[1]
        targets = [plain(found.get(dim, shape[dim])) for dim in range(2, len(shape))]
        return targets, [a / b for a, b in zip(targets, shape[2:], strict=True)]
    if any(float(found.get(dim, 1)) != 1 for dim in (0, 1)):
        raise call.unsupported("along the batch or the channels")
    factors = [float(found.get(dim, 1)) for dim in range(2, len(shape))]
    return [math.floor(n * f) for n, f in zip(shape[2:], factors, strict=True)], factors


def _is_native(mode: str, coordinates: str, rounding: str, factors: Sequence[float]) -> bool:
    """Whether PyTorch interpolates in this way."""
    centered = coordinates in ("half_pixel", "pytorch_half_pixel")
    if mode != "nearest":
        return centered or coordinates == "align_corners"
    if coordinates == "asymmetric":
        return rounding == "floor" or all(factor in (1.0, 2.0) for factor in factors)
    enlarges = all(float(factor).is_integer() for factor in factors)
    return centered and enlarges and rounding.startswith("round")


def _resize_axes(
    call: NodeInputs, sizes: Sequence[int], factors: Sequence[float], method: tuple[str, str, str]
) -> Tensor:
    """Interpolate one dimension after the other, as ONNX defines it."""
    mode, coordinates, rounding = method
    x = call.x
    rounded = {
        "floor": np.floor,
        "ceil": np.ceil,
        "round_prefer_floor": lambda at: np.ceil(at - 0.5),
        "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    }
    for dim, (size, factor) in enumerate(zip(sizes, factors, strict=True), 2):
        last = x.shape[dim] - 1
        if size == last + 1 and factor == 1:
            continue
        at = _source_coordinates(call, coordinates, size, x.shape[dim], factor)
        at = rounded[rounding](at) if mode == "nearest" else at
        at = np.clip(at, 0, last)
        low = torch.tensor(np.floor(at).astype(np.int64).tolist(), device=x.device)
        y = torch.index_select(x, dim, low)
        if mode != "nearest":
            high = torch.clamp(low + 1, max=last)
            shape = [-1 if d == dim else 1 for d in range(x.dim())]
            part = torch.tensor((at - np.floor(at)).tolist(), dtype=x.dtype, device=x.device)
            part = part.reshape(shape)
            y = y * (1 - part) + torch.index_select(x, dim, high) * part
        x = y
    return x


def _source_coordinates(
    call: NodeInputs, coordinates: str, size: int, before: int, factor: float
) -> np.ndarray:
    """Return the place in the original of every element of a resized dimension."""
    places, scale = np.arange(size, dtype=np.float32), np.float32(factor)
    center = (places + np.float32(0.5)) / scale
    if coordinates == "asymmetric":
        return places / scale
    if coordinates == "align_corners":
        return places * np.float32((before - 1) / max(size - 1, 1))
    if coordinates == "tf_half_pixel_for_nn":
        return center
    if coordinates == "pytorch_half_pixel" and size == 1:
        return np.zeros(1, dtype=np.float32)
    if coordinates == "half_pixel_symmetric":
        return before / 2 * (1 - size / (before * scale)) + center - np.float32(0.5)
    if coordinates not in ("half_pixel", "pytorch_half_pixel"):
        raise call.unsupported(f"with {coordinates} coordinates")
    return center - np.float32(0.5)


def _depth_to_space(call: NodeInputs) -> Tensor:
    block = call.attributes["blocksize"]
    if call.attributes.get("mode", "DCR") == "CRD":
        return F.pixel_shuffle(call.x, block)
    n, c, h, w = call.x.shape
    y = call.x.reshape(n, block, block, c // block**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return y.reshape(n, c // block**2, h * block, w * block)


def _space_to_depth(call: NodeInputs) -> Tensor:
    block = call.attributes["blocksize"]
    n, c, h, w = call.x.shape
    y = call.x.reshape(n, c, h // block, block, w // block, block).permute(0, 3, 5, 1, 2, 4)
    return y.reshape(n, c * block**2, h // block, w // block)


def _einsum(call: NodeInputs) -> Tensor:
    return torch.einsum(call.attributes["equation"], *map(operand, call.inputs))


def _top_k(call: NodeInputs) -> Any:
    return torch.topk(
        call.x,
        plain(call.required(1, "k")[0]),
        call.attributes.get("axis", -1),
        bool(call.attributes.get("largest", 1)),
        bool(call.attributes.get("sorted", 1)),
    )


def _lp_normalization(call: NodeInputs) -> Tensor:
    axis, p = call.attributes.get("axis", -1), call.attributes.get("p", 2)
    return call.x / torch.linalg.vector_norm(call.x, p, axis, keepdim=True)


def _lrn(call: NodeInputs) -> Tensor:
    attributes = call.attributes
    return F.local_response_norm(
        call.x,
        attributes["size"],
        attributes.get("alpha", 1e-4),
        attributes.get("beta", 0.75),
        attributes.get("bias", 1.0),
    )


def _shape(call: NodeInputs) -> Size:
    first, last = call.attributes.get("start", 0), call.attributes.get("end")
    return as_size(list(call.x.shape)[first:last])


def _size(call: NodeInputs) -> Size:
    return as_size([call.x.numel()]).reshape(())


Operator = Callable[[NodeInputs], Any]
OPERATORS: dict[str, Operator] = {
    **{
        name: _unary(function)
        for name, function in {
            "Relu": F.relu,
            "Sigmoid": torch.sigmoid,
            "Tanh": torch.tanh,
            "Exp": torch.exp,
            "Log": torch.log,
            "Sqrt": torch.sqrt,
            "Abs": torch.abs,
            "Neg": torch.neg,
            "Floor": torch.floor,
            "Ceil": torch.ceil,
            "Round": torch.round,
            "Reciprocal": torch.reciprocal,
            "Erf": torch.erf,
            "Sin": torch.sin,
            "Cos": torch.cos,
            "Sign": torch.sign,
            **{name.capitalize(): getattr(torch, name) for name in _TRIGONOMETRIC},
            "IsNaN": torch.isnan,
            "Softplus": F.softplus,
            "Softsign": F.softsign,
            "HardSwish": F.hardswish,
            "Mish": F.mish,
            "Not": torch.logical_not,
            "Identity": lambda x: x,
            "Dropout": lambda x: x,
        }.items()
    },
    **{
        name: _binary(function)
        for name, function in {
            "Sub": operator.sub,
            "Div": _divide,
            "Pow": _pow,
            "Equal": operator.eq,
            "Greater": operator.gt,
            "GreaterOrEqual": operator.ge,
            "Less": operator.lt,
            "LessOrEqual": operator.le,
            "And": torch.logical_and,
            "Or": torch.logical_or,
            "Xor": torch.logical_xor,
        }.items()
    },
    "Add": _variadic(operator.add),
    "Mul": _variadic(operator.mul),
    "Sum": _variadic(operator.add),
    "Mean": _mean,
    "Mod": _mod,
    "Max": _variadic(_pairwise(torch.maximum, "min")),
    "Min": _variadic(_pairwise(torch.minimum, "max")),
    "LeakyRelu": _with_alpha(F.leaky_relu, 0.01),
    "Elu": _with_alpha(F.elu, 1.0),
    "Celu": _with_alpha(F.celu, 1.0),
    "Selu": _selu,
    "Swish": _swish,
    "Shrink": _shrink,
    "ThresholdedRelu": _with_alpha(lambda x, alpha: F.threshold(x, alpha, 0.0), 1.0),
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "Clip": _clip,
    "PRelu": _prelu,
    "Where": _where,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "BatchNormalization": _layer,
    "InstanceNormalization": _layer,
    "LayerNormalization": _layer,
    "GroupNormalization": _layer,
    "RMSNormalization": _rms_norm,
    "LRN": _lrn,
    "LpNormalization": _lp_normalization,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_pool(torch.mean),
    "GlobalMaxPool": _global_pool(torch.amax),
    "ReduceMean": _reduction(torch.mean),
    "ReduceSum": _reduction(torch.sum),
    "ReduceMax": _reduction(torch.amax),
    "ReduceMin": _reduction(torch.amin),
    "ReduceProd": _reduction(_product),
    "ReduceL1": _reduction(lambda x, dims, keep: torch.linalg.vector_norm(x, 1, dims, keep)),
    "ReduceL2": _reduction(lambda x, dims, keep: torch.linalg.vector_norm(x, 2, dims, keep)),
    "ReduceLogSum": _reduction(lambda x, dims, keep: torch.log(torch.sum(x, dims, keep))),
    "ReduceLogSumExp": _reduction(torch.logsumexp),
    "ReduceSumSquare": _reduction(lambda x, dims, keep: torch.sum(x * x, dims, keep)),
    "Softmax": _softmax(torch.softmax),
    "LogSoftmax": _softmax(torch.log_softmax),
    "ArgMax": _arg(torch.argmax),
    "ArgMin": _arg(torch.argmin),
    "Concat": _concat,
    "Split": _split,
    "SplitToSequence": _split_to_sequence,
    "SequenceAt": _sequence_at,
    "Slice": _slice,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "Expand": _expand,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "GatherElements": _gather_elements,
    "ScatterND": _scatter_nd,
    "GridSample": _grid_sample,
    "Trilu": _trilu,
    "CumSum": _cumsum,
    "Pad": _pad,
    "Tile": _tile,
    "Resize": _resize,
    "Upsample": _resize,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "Einsum": _einsum,
    "TopK": _top_k,
    "Shape": _shape,
    "Size": _size,
}
"""Operator -> function of a call with tensors."""

SIZE_INPUTS: dict[str, tuple[int, ...]] = {
    "Reshape": (1,),
    "Expand": (1,),
    "Tile": (1,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "SequenceAt": (1,),
    "Resize": (1, 2, 3),
    "Upsample": (1,),
    "Pad": (1, 2, 3),
    "Squeeze": (1,),
    "Unsqueeze": (1,),
    "Clip": (1, 2),
    "TopK": (1,),
    "Dropout": (1, 2),
    "Gather": (1,),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"), (1,)),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"), (1,)),
    "ReduceSumSquare": (1,),
    "Trilu": (1,),
    "CumSum": (1,),
}
"""Inputs that are sizes, not tensors, if they are constant."""
COUNTED = ("Reshape", "Expand", "Split", "SplitToSequence", "Slice")
"""Operators whose sizes may contain channel counts."""


def run(op_type: str, call: NodeInputs) -> Any:
    """Return the result of an operator: on tensors, or on sizes if no input is a tensor."""
    if any(isinstance(value, Tensor | tuple) for value in call.inputs):
        on_tensors = OPERATORS.get(op_type)
        if on_tensors is None:
            raise call.unsupported()
        return on_tensors(call)
    on_sizes = SIZE_OPERATORS.get(op_type)
    if on_sizes is None:
        raise call.unsupported("on sizes")
    return on_sizes(call.inputs, call.attributes)
