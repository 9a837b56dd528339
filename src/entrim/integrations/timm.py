"""Pruned networks of timm in its own format: a string of shapes, and the weights.

timm builds its pruned networks (`ecaresnet50d_pruned` and others) from the full network and such a
string. Both files are loaded by timm alone:

    model = timm.create_model("resnet18")
    text = Path("small/shapes.txt").read_text()
    model = timm.models.adapt_model_from_string(model, text)
    timm.models.load_checkpoint(model, "small/model.safetensors")
"""

import os
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from entrim.errors import ExportError, SaveError
from entrim.graph.eager import call, copy_without_hooks, leaves
from entrim.integrations.packages import check_new_folder, import_package
from entrim.storage import atomic

SHAPES, WEIGHTS = "shapes.txt", "model.safetensors"


def shapes_string(model: nn.Module) -> str:
    """Return the shapes of all tensors in the format of timm.

    >>> shapes_string(nn.Linear(3, 2))
    'weight:[2, 3]***bias:[2]'
    """
    return "***".join(f"{name}:{list(value.shape)}" for name, value in model.state_dict().items())


def save_timm(small: nn.Module, original: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Write a pruned network of timm as files that timm loads without entrim.

    timm rebuilds the network first, and its outputs are compared with those of `small`. Its format
    describes convolutions, BatchNorm and the classifier: other layers must keep their sizes.

    Parameters
    ----------
    small : nn.Module
        The pruned network, `result.model`.
    original : nn.Module
        The network of timm before pruning, with any weights.
    folder : path
        A new or empty folder for `shapes.txt` and `model.safetensors`.

    Raises
    ------
    ExportError
        If the format of timm cannot describe the network.
    SaveError
        If the folder is not empty or cannot be written.
    MissingPackageError
        If timm is not installed.
    """
    shapes, weights, place = shapes_string(small), small.state_dict(), Path(folder)
    check_new_folder(place)
    _check_rebuilt(_rebuild(original, shapes), small)
    try:
        place.mkdir(parents=True, exist_ok=True)
        atomic.write(place / SHAPES, shapes.encode())
        atomic.write(
            place / WEIGHTS,
            safetensors.torch.save({name: w.contiguous() for name, w in weights.items()}),
        )
    except OSError as error:
        raise SaveError(
            f"{place} cannot be written ({error.strerror}): free space, or pass another folder"
        ) from error


def _rebuild(original: nn.Module, shapes: str) -> nn.Module:
    """Return the network that timm builds from the shapes."""
    models: Any = import_package("timm.models", "timm", "entrim.integrations.timm")
    try:
        return models.adapt_model_from_string(copy_without_hooks(original).cpu(), shapes)
    except (KeyError, IndexError, ValueError) as error:
        raise _not_described(f"{type(error).__name__}: {error}") from error


def _check_rebuilt(rebuilt: nn.Module, small: nn.Module) -> None:
    """Refuse a network to which timm gives other shapes or outputs."""
    expected = {name: value.shape for name, value in small.state_dict().items()}
    found = {name: value.shape for name, value in rebuilt.state_dict().items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise _not_described(f"{name} has {expected.get(name)}, timm makes {found.get(name)}")
    rebuilt.load_state_dict(small.state_dict())
    settings = getattr(small, "pretrained_cfg", None) or {}
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, *settings.get("input_size", (3, 224, 224)), generator=generator)
    networks = [rebuilt.eval(), copy_without_hooks(small).cpu().eval()]
    try:
        with torch.no_grad():
            first, second = (leaves(call(network, images))[0] for network in networks)
    except Exception as error:  # user code
        raise _not_described(f"{type(error).__name__}: {error}") from error
    if not torch.allclose(first, second, rtol=1e-4, atol=1e-5 * float(second.abs().max())):
        raise _not_described("its outputs differ")


def _not_described(reason: str) -> ExportError:
    return ExportError(
        f"the format of timm does not describe this network ({reason}): exclude this layer from "
        "pruning, or use result.save(folder), whose load_model.py needs no entrim"
    )
