"""Build the submodule of a node with weights, and record where the file contains each tensor."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from entrim.onnx.operators import Constants, is_symmetric

_CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
_BATCHNORM = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
_INSTANCE = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighted:
    """A node, its constant inputs, and the shape of its first input."""

    attributes: Mapping[str, Any]
    constants: Mapping[int, np.ndarray]
    """Input -> its value."""
    shape: Sequence[int]
    opset: int
    outputs: int = 1
    bias: np.ndarray | None = None
    """The constant of an addition that follows a layer without bias."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A submodule, and for each of its tensors the input of the node with its layout."""

    module: nn.Module
    tensors: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Tensor -> (input, layout); the input is -1 for the addition that follows."""


Builder = Callable[[Weighted], Layer | None]


def _fill(module: nn.Module, node: Weighted, tensors: dict[str, tuple[int, str]]) -> Layer:
    """Copy the constants into the tensors of a module on the meta device."""
    for name, (number, layout) in tensors.items():
        array = node.bias if number == -1 else node.constants[number]
        assert array is not None
        value = to_tensor(array)
        if layout == "transposed":
            value = value.T.contiguous()
        if layout == "vector":
            value = value.reshape(-1)
        if name in dict(module.named_buffers()):
            module.register_buffer(name, value)
        else:
            module.register_parameter(name, nn.Parameter(value))
    return Layer(module, tensors)


def to_tensor(array: np.ndarray) -> Tensor:
    """Return a copy of a constant; types that NumPy lacks become float32."""
    if array.dtype.kind not in "biufc":
        array = array.astype(np.float32)
    return torch.from_numpy(np.array(array))


def _bias(node: Weighted) -> dict[str, tuple[int, str]]:
    if 2 in node.constants:
        return {"bias": (2, "vector")}
    return {} if node.bias is None else {"bias": (-1, "vector")}


def _convolution(node: Weighted) -> Layer | None:
    weight = node.constants.get(1)
    if weight is None or weight.ndim - 2 not in _CONV:
        return None
    groups = node.attributes.get("group", 1)
    return _fill_convolution(_CONV, node, (weight.shape[1] * groups, weight.shape[0]))


def _transposed(node: Weighted) -> Layer | None:
    weight, attributes = node.constants.get(1), node.attributes
    if weight is None or weight.ndim - 2 not in _CONV:
        return None
    channels = (weight.shape[0], weight.shape[1] * attributes.get("group", 1))
    extra = {"output_padding": tuple(attributes.get("output_padding", [0] * (weight.ndim - 2)))}
    return _fill_convolution(_TRANSPOSED, node, channels, **extra)


def _fill_convolution(
    kinds: Mapping[int, Any], node: Weighted, channels: tuple[int, int], **extra: Any
) -> Layer:
    kernel, attributes, bias = node.constants[1].shape[2:], node.attributes, _bias(node)
    rank = len(kernel)
    module = kinds[rank](
        *channels,
        kernel,
        stride=tuple(attributes.get("strides", [1] * rank)),
        padding=_fixed_padding(attributes, rank),
        dilation=tuple(attributes.get("dilations", [1] * rank)),
        groups=attributes.get("group", 1),
        bias=bool(bias),
        device="meta",
        **extra,
    )
    return _fill(module, node, {"weight": (1, "same"), **bias})


def _fixed_padding(attributes: Mapping[str, Any], rank: int) -> tuple[int, ...]:
    """Return the padding of the module; unequal padding is a separate operation."""
    if not is_symmetric(attributes) or attributes.get("auto_pad") == "VALID":
        return (0,) * rank
    return tuple(attributes.get("pads", [0] * rank))[:rank]


def _gemm(node: Weighted) -> Layer | None:
    weight, attributes = node.constants.get(1), node.attributes
    factors = (attributes.get("alpha", 1.0), attributes.get("beta", 1.0))
    if weight is None or weight.ndim != 2 or attributes.get("transA") or factors != (1.0, 1.0):
        return None
    layout = "same" if attributes.get("transB") else "transposed"
    outputs, inputs = weight.shape if layout == "same" else weight.shape[::-1]
    bias = _bias(node)
    if 2 in node.constants and node.constants[2].size != outputs:
        return None
    module = nn.Linear(inputs, outputs, bias=bool(bias), device="meta")
    return _fill(module, node, {"weight": (1, layout), **bias})


def _matmul(node: Weighted) -> Layer | None:
    weight = node.constants.get(1)
    if weight is None or weight.ndim != 2:
        return None
    bias = {} if node.bias is None else {"bias": (-1, "vector")}
    module = nn.Linear(*weight.shape, bias=bool(bias), device="meta")
    return _fill(module, node, {"weight": (1, "transposed"), **bias})


def _batchnorm(node: Weighted) -> Layer | None:
    if set(node.constants) != {1, 2, 3, 4} or len(node.shape) not in _BATCHNORM:
        return None
    if node.attributes.get("training_mode", 0):
        return None
    eps = node.attributes.get("epsilon", 1e-5)
    module = _BATCHNORM[len(node.shape)](node.constants[1].size, eps=eps, device="meta")
    del module.num_batches_tracked
    module.register_buffer("num_batches_tracked", torch.tensor(0))
    names = ("weight", "bias", "running_mean", "running_var")
    return _fill(module, node, {name: (k, "vector") for k, name in enumerate(names, 1)})


def _instance_norm(node: Weighted) -> Layer | None:
    if set(node.constants) != {1, 2} or len(node.shape) not in _INSTANCE:
        return None
    module = _INSTANCE[len(node.shape)](
        node.constants[1].size,
        eps=node.attributes.get("epsilon", 1e-5),
        affine=True,
        device="meta",
    )
    return _fill(module, node, {"weight": (1, "vector"), "bias": (2, "vector")})


def _layer_norm(node: Weighted) -> Layer | None:
    scale = node.constants.get(1)
    axis = node.attributes.get("axis", -1) % len(node.shape)
    if scale is None or node.outputs > 1 or tuple(node.shape[axis:]) != scale.shape:
        return None
    module = nn.LayerNorm(
        list(scale.shape),
        eps=node.attributes.get("epsilon", 1e-5),
        bias=2 in node.constants,
        device="meta",
    )
    tensors = {"weight": (1, "same")} | ({"bias": (2, "same")} if 2 in node.constants else {})
    return _fill(module, node, tensors)


def _group_norm(node: Weighted) -> Layer | None:
    groups = node.attributes["num_groups"]
    if set(node.constants) != {1, 2} or node.constants[1].size != node.shape[1]:
        return None
    eps = node.attributes.get("epsilon", 1e-5)
    module = nn.GroupNorm(groups, node.shape[1], eps=eps, device="meta")
    return _fill(module, node, {"weight": (1, "vector"), "bias": (2, "vector")})


def _prelu(node: Weighted) -> Layer | None:
    slope = node.constants.get(1)
    if slope is None or (slope.size > 1 and not is_channel_vector(slope, node.shape)):
        return None
    return _fill(nn.PReLU(slope.size, device="meta"), node, {"weight": (1, "vector")})


def is_channel_vector(array: np.ndarray, shape: Sequence[int], axis: int = 1) -> bool:
    """Whether a constant has one number per channel of an activation of this shape."""
    full = (1,) * (len(shape) - array.ndim) + array.shape
    return len(full) == len(shape) and all(
        size == (shape[dim] if dim == axis % len(shape) else 1) for dim, size in enumerate(full)
    )


BUILDERS: dict[str, Builder] = {
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "BatchNormalization": _batchnorm,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "GroupNormalization": _group_norm,
    "PRelu": _prelu,
}
"""Operator -> function that builds its module, or returns None if it has no module."""


def constant_operands(arrays: Mapping[int, np.ndarray]) -> Layer:
    """Return the module of constant operands."""
    values = {number: to_tensor(array) for number, array in arrays.items()}
    return Layer(Constants(values), {f"value{number}": (number, "same") for number in arrays})
