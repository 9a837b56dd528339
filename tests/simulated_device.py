"""A second device without hardware: its tensors are stored and computed on the CPU.

`enable()` registers the device "simulated" as a backend of PyTorch. As on CUDA, an operation on
tensors of two devices is an error, except for single numbers, copies and indices. A result that
was computed there differs from that of the CPU only if code depends on the device. The backend
cannot be removed again: enable it in a process of its own.
"""

from functools import partial
from typing import Any

import torch
import torch.utils.backend_registration as registration
from torch import Tensor
from torch.utils import _pytree as pytree

NAME = "simulated"
IS_SUPPORTED = hasattr(registration, "_setup_privateuseone_for_python_backend")
"""Whether this PyTorch supports backends in Python."""
_SEVERAL_DEVICES = {"aten::_copy_from", "aten::index", "aten::index_put_", "aten::_index_put_impl_"}
"""Operators that also accept tensors of the CPU."""
_VIEWS = (
    *("diagonal", "expand", "permute", "select.int", "slice.Tensor", "split.Tensor"),
    *("split_with_sizes", "squeeze", "squeeze.dim", "squeeze.dims", "t", "transpose.int"),
    *("unbind.int", "unfold", "unsqueeze"),
)
"""Operators that PyTorch would compute from the strides of the outer tensor, which has none."""
_INNER: dict[int, Tensor] = {}
"""The tensor of the CPU that belongs to each storage."""


_LIBRARIES: list[torch.library.Library] = []
"""The registered operators; they are removed with their library."""


def enable() -> None:
    """Register the device; call it once in a process."""
    registration._setup_privateuseone_for_python_backend(NAME)
    every, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    _LIBRARIES.extend((every, aten))
    every.fallback(_run, "PrivateUse1")
    for name in _VIEWS:
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
        aten.impl(name, partial(_run, operator), "PrivateUse1")
    aten.impl("convolution_overrideable", _convolution, "PrivateUse1")
    aten.impl("convolution_backward_overrideable", _convolution_backward, "PrivateUse1")
    torch.Tensor.__deepcopy__ = _deepcopy(torch.Tensor.__deepcopy__)
    torch.accelerator.synchronize = lambda *_: None


def _is_simulated(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == NAME


def _outer(inner: Tensor) -> Tensor:
    new: Any = torch._C
    found = new._acc.create_empty_tensor(inner.size(), inner.dtype)
    _INNER[found.untyped_storage()._cdata] = inner
    return found


def _inner(value: Any) -> Any:
    return _INNER[value.untyped_storage()._cdata] if _is_simulated(value) else value


def _run(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator on the tensors of the CPU."""
    name = operator._schema.name
    tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    elsewhere = [x for x in tensors if x.device.type == "cpu" and x.dim() > 0]
    if elsewhere and name not in _SEVERAL_DEVICES:
        raise RuntimeError(f"Expected all tensors to be on the same device: {operator}")
    given, options = pytree.tree_map(_inner, (args, kwargs))
    if name == "aten::_copy_from":
        given[1].copy_(given[0])
        return args[1]
    if name == "aten::_local_scalar_dense":
        return given[0].item()
    if name == "aten::view":
        operator = torch.ops.aten.reshape.default
    leaves_device = options.get("device") == torch.device("cpu")
    options = {key: value for key, value in options.items() if key not in ("device", "pin_memory")}
    if "device" in kwargs:
        options["device"] = torch.device("cpu")
    result = operator(*given, **options)
    for tensor in filter(_is_simulated, tensors):  # an output that was resized
        if tensor.shape != _inner(tensor).shape:
            tensor.data = _outer(_inner(tensor))
    known = {id(_inner(tensor)): tensor for tensor in filter(_is_simulated, tensors)}

    def wrap(value: Tensor) -> Tensor:
        if leaves_device:
            return value
        return known[id(value)] if id(value) in known else _outer(value)

    return pytree.tree_map_only(Tensor, wrap, result)


def _convolution(*args: Any) -> Any:
    return _run(torch.ops.aten.convolution.default, *args)


def _convolution_backward(gradient: Tensor, x: Tensor, weight: Tensor, *args: Any) -> Any:
    operator = torch.ops.aten.convolution_backward.default
    return _run(operator, gradient, x, weight, [gradient.shape[1]], *args)


def _deepcopy(original: Any) -> Any:
    """Return `Tensor.__deepcopy__`, which copies the storage, for this device too."""

    def deepcopy(tensor: Tensor, memo: dict[int, Any]) -> Any:
        if not _is_simulated(tensor):
            return original(tensor, memo)
        if id(tensor) not in memo:
            memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return memo[id(tensor)]

    return deepcopy
