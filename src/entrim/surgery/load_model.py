"""Load a pruned network that entrim saved; needs torch and safetensors, but not entrim.

`entrim.save` copies this file into the folder of the network. There:

    import load_model
    model = load_model.load(Net())  # Net() is the network before pruning, with any weights
"""

import copy
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

METADATA = "entrim"
"""The entry of the safetensors header: class and tensors before pruning, structure after it."""
LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}


def load(model: nn.Module, file: str | os.PathLike[str] | None = None) -> nn.Module:
    """Return the saved network, of the class of `model`, which is not modified.

    `model` is the network before pruning, with any weights, also on the meta device. `file` is the
    .safetensors file; by default, the one next to this file. A network or a file that does not fit
    raises a ValueError.
    """
    place = _file_next_to_this() if file is None else Path(file)
    try:
        with safe_open(place, framework="pt") as stream:
            found = json.loads(stream.metadata()[METADATA])
            names = stream.keys()
            tensors = {name: stream.get_tensor(name).clone() for name in names}  # not mapped
        class_name, before, structure = found["class_name"], found["tensors"], found["structure"]
    except OSError as error:
        raise ValueError(f"{place} cannot be read ({error}): copy it again") from error
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{place} is damaged, or was not written by entrim.save ({error!r}): save again"
        ) from error
    check_original(model, class_name, before)
    try:
        return rebuild(copy.deepcopy(model), tensors, **structure)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{place} is damaged ({error!r}): save again") from error


def check_original(model: nn.Module, class_name: str, tensors: Mapping[str, str]) -> None:
    """Raise a ValueError unless `model` has this class and these tensors."""
    if class_name_of(model) != class_name:
        raise ValueError(
            f"a {class_name} was saved, not a {class_name_of(model)}: pass the class that was "
            "pruned"
        )
    found = tensors_of(model)
    remedy = f"pass the {class_name} before pruning, at its full width"
    odd = sorted(found.keys() ^ tensors.keys())
    if odd:
        who = "this network has" if odd[0] in found else "the saved network has"
        raise ValueError(f"the names of the tensors differ, only {who} {odd[0]}: {remedy}")
    for name, there in tensors.items():
        if found[name] != there:
            raise ValueError(f"{name} is {found[name]}, but {there} was saved: {remedy}")


def rebuild(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    *,
    shared: Mapping[str, str],
    fixed: Sequence[str],
    channels_last: Sequence[str],
    training: Sequence[str],
    counts: Mapping[str, int],
    identities: Sequence[str] = (),
) -> nn.Module:
    """Change `model` in place to the structure of the pruned network, with `tensors`; return it.

    The keywords are described in `entrim.surgery.prune.ModelStructure`.
    """
    for name in identities:
        replace_by_identity(model, name)
    ready: dict[str, Tensor] = {}
    for name, old in list(name_tensors(model)):
        first = shared.get(name, name)
        if first not in ready:
            new = tensors[first]
            if not new.is_meta:
                new = new.to("cpu" if old.is_meta else old.device)
            if first in channels_last:
                new = new.contiguous(memory_format=LAYOUTS[new.dim()])
            if isinstance(old, nn.Parameter):
                new = nn.Parameter(new, requires_grad=first not in fixed)
            ready[first] = new
        module, leaf = split(model, name)
        store: Any = module._parameters if leaf in module._parameters else module._buffers
        store[leaf] = ready[first]
    for name, module in model.named_modules():
        module.training = name in training
    for count, value in counts.items():
        owner, attribute = owner_of(model, count)
        if not (type(value) is int and type(read_size(owner, attribute)) is int):
            raise TypeError(f"{count} is not an integer attribute")
        write_size(owner, attribute, value)
    return model


def replace_by_identity(model: nn.Module, name: str) -> None:
    """Replace the module called `name` by an identity, in place."""
    owner, leaf = split(model, name)
    owner._modules[leaf] = nn.Identity().train(model.get_submodule(name).training)


def class_name_of(model: nn.Module) -> str:
    """Return the qualified name of the class, without the module, which may be __main__."""
    return type(model).__qualname__


def tensors_of(model: nn.Module) -> dict[str, str]:
    """Return {name: dtype and shape} of all parameters and buffers, shared ones by every name."""
    return {
        name: f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
        for name, tensor in name_tensors(model)
    }


def name_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield all parameters and buffers, also non-persistent ones, shared ones by every name."""
    yield from chain(
        model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    )


def read_size(owner: Any, path: str) -> Any:
    """Return the attribute or item of `owner` at `path`."""
    for key in path.split("."):
        owner = _item(owner, key)
    return owner


def write_size(owner: Any, path: str, value: int) -> None:
    """Set the attribute or item of `owner` at `path`; tuples are replaced."""
    first, _, rest = path.partition(".")
    if rest:
        inner = _item(owner, first)
        if isinstance(inner, tuple):
            sizes = list(inner)
            sizes[int(rest)] = value
            setattr(owner, first, type(inner)(sizes))
        else:
            write_size(inner, rest, value)
    elif isinstance(owner, dict):
        owner[first] = value
    elif isinstance(owner, list):
        owner[int(first)] = value
    else:
        setattr(owner, first, value)


def _item(owner: Any, key: str) -> Any:
    if isinstance(owner, dict):
        return owner[key]
    return owner[int(key)] if isinstance(owner, list | tuple) else getattr(owner, key)


def owner_of(model: nn.Module, count: str) -> tuple[nn.Module, str]:
    """Return the module of an attribute, and its name or the path of an item of it."""
    first, _, rest = count.partition(".")
    if rest and (inner := model._modules.get(first)) is not None:
        return owner_of(inner, rest)
    return model, count


def split(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the module that owns the tensor, attribute or module `name`, and its last name."""
    owner, _, leaf = name.rpartition(".")
    return model.get_submodule(owner), leaf


def _file_next_to_this() -> Path:
    """Return the .safetensors file that `entrim.json` names, in the folder of this file."""
    manifest = Path(__file__).with_name("entrim.json")
    try:
        digest = json.loads(manifest.read_text(encoding="utf-8"))["weights"]["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{manifest} does not name the weights ({error!r}): pass the .safetensors file, "
            "load(model, file)"
        ) from error
    return manifest.with_name(f"weights-{digest[:16]}.safetensors")
