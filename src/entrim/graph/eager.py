"""Eager calls of a network without side effects: copied inputs, no hooks of the user.

Every eager call in entrim uses `call`, on a copy from `copy_without_hooks` or inside
`remove_hooks`: a network may write into its inputs, and hooks may store activations.
"""

import copy
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from entrim.errors import BadSettingError, TraceError

ExampleInputs = Tensor | tuple[Any, ...] | Mapping[str, Any]
"""Inputs of the network: one tensor, a tuple of positional or a dict of keyword arguments."""

Hooks = OrderedDict[int, Callable[..., Any]]


def arguments(example_inputs: ExampleInputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments of a call with `example_inputs`."""
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    return (example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)), {}


def samples(example_inputs: ExampleInputs) -> int:
    """Return the batch size: the first dimension of the first tensor."""
    for leaf in pytree.tree_leaves(arguments(example_inputs)):
        if isinstance(leaf, Tensor) and leaf.dim():
            return leaf.shape[0]
    raise BadSettingError("example_inputs contain no tensor with a batch dimension: pass batch=")


def copy_inputs(
    example_inputs: ExampleInputs, *, in_double: bool = False
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with all tensors copied, optionally in double precision."""

    def copy_tensor(tensor: Tensor) -> Tensor:
        wide = in_double and tensor.is_floating_point()
        return tensor.to(torch.float64, copy=True) if wide else tensor.clone()

    return pytree.tree_map_only(Tensor, copy_tensor, arguments(example_inputs))


def move_inputs(example_inputs: ExampleInputs, device: torch.device) -> ExampleInputs:
    """Return the inputs with all tensors on `device`."""
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), example_inputs)


def call(model: nn.Module, example_inputs: ExampleInputs) -> Any:
    """Return the output of `model` on a copy of the inputs, because it may modify them."""
    args, kwargs = copy_inputs(example_inputs)
    return model(*args, **kwargs)


def leaves(output: Any) -> list[Tensor]:
    """Return the tensors and numbers in the output of a network, in order."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, int | float | bool):
        return [torch.tensor(output)]
    if isinstance(output, Mapping):
        return [leaf for value in output.values() for leaf in leaves(value)]
    if isinstance(output, list | tuple):
        return [leaf for value in output for leaf in leaves(value)]
    if is_dataclass(output):
        return [leaf for f in fields(output) for leaf in leaves(getattr(output, f.name))]
    return []


def unwrap(model: Any) -> nn.Module:
    """Return the network inside the wrappers of torch.compile and data parallelism."""
    if not isinstance(model, nn.Module):
        raise TraceError(
            f"model must be a torch.nn.Module, got {type(model).__name__}: create the network, and "
            "load its weights"
        )
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while True:
        if isinstance(model, parallel):
            model = model.module
        elif isinstance(inner := model._modules.get("_orig_mod"), nn.Module):
            model = inner
        else:
            return model


def copy_module(model: nn.Module) -> nn.Module:
    """Return a deep copy of `model`, including the hooks of the user."""
    try:
        with warnings.catch_warnings():  # an exported program is copied with a deprecated pytree
            warnings.simplefilter("ignore", FutureWarning)
            return copy.deepcopy(model)
    except RuntimeError as error:
        raise TraceError(
            f"the network cannot be copied ({error}): a hook stores a computed tensor on a module; "
            "replace torch.nn.utils.weight_norm by torch.nn.utils.parametrizations.weight_norm"
        ) from error


def copy_without_hooks(model: nn.Module) -> nn.Module:
    """Return a deep copy of `model` without the forward hooks of the user.

    Hooks of the user must not be called with fake tensors or calibration images. Hooks of PyTorch,
    such as those of `torch.nn.utils.spectral_norm`, are part of the computation and are kept.
    """
    clone = copy_module(model)
    for module, name, hooks in _user_hooks(clone):
        module.__dict__[name] = _hooks_of_torch(hooks)
    return clone


@contextmanager
def remove_hooks(model: nn.Module) -> Iterator[None]:
    """Remove the forward hooks of the user from `model` in the block, and restore them after."""
    before = _user_hooks(model)
    try:
        for module, name, hooks in before:
            module.__dict__[name] = _hooks_of_torch(hooks)
        yield
    finally:
        for module, name, hooks in before:
            module.__dict__[name] = hooks


def has_user_hooks(model: nn.Module) -> bool:
    """Whether any module of `model` has a forward hook that is not from PyTorch."""
    return bool(_user_hooks(model))


def _user_hooks(model: nn.Module) -> list[tuple[nn.Module, str, Hooks]]:
    """Return the modules with forward hooks of the user: module, attribute, all its hooks."""
    return [
        (module, name, hooks)
        for module in model.modules()
        for name in ("_forward_hooks", "_forward_pre_hooks")
        if len(hooks := module.__dict__[name]) > len(_hooks_of_torch(hooks))
    ]


def _hooks_of_torch(hooks: Hooks) -> Hooks:
    return OrderedDict((key, hook) for key, hook in hooks.items() if _is_of_torch(hook))


def _is_of_torch(hook: object) -> bool:
    owner = getattr(hook, "__module__", None) or type(hook).__module__
    return owner == "torch" or owner.startswith("torch.")


@contextmanager
def neutral_context() -> Iterator[None]:
    """Disable inference mode and autocast of the caller.

    Tensors created in inference mode cannot be trained later, and autocast would reduce the
    precision of second moments and verifications.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        kinds = {"cpu"}
        if torch.accelerator.is_available():
            kinds.add(torch.accelerator.current_accelerator().type)  # pyright: ignore[reportOptionalMemberAccess]
        for kind in sorted(kinds):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextmanager
def isolate_random_state() -> Iterator[None]:
    """Restore the state of the global random generators after the block."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield
