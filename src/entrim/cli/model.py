"""From `package.module:factory`, `path.py:factory` or a .pt2, and weights, to a network."""

import importlib
import importlib.util
import pickle
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from entrim.errors import CommandError
from entrim.export.parity import silence_exporter

_MODES = ("train", "training")
"""What operations call the switch that eval mode turns off."""


def read_program(file: Path) -> nn.Module:
    """Return the network of an exported program. Reading one can run code, as importing can."""
    if not file.is_file():
        raise CommandError(f"there is no file {file}: name a program that torch.export.save wrote")
    try:
        with silence_exporter():
            program = torch.export.load(file)
    except Exception as error:
        said = (str(error).splitlines() or [""])[0]
        raise CommandError(
            f"{file} is no exported program that this PyTorch reads ({said}): write it again with "
            "torch.export.save"
        ) from error
    _check_fixed(program, file)
    _check_training(program.graph, file)
    model = program.module()
    for module in model.modules():
        for forbidden in ("train", "eval"):  # the mode cannot change, and it is the right one
            vars(module).pop(forbidden, None)
    return model


def _check_fixed(program: ExportedProgram, file: Path) -> None:
    """Refuse a program for one number of images only."""
    inputs = program.graph_signature.user_inputs
    nodes = [node for node in program.graph.nodes if node.name in inputs]
    if len(nodes) != 1 or not isinstance(nodes[0].meta.get("val"), torch.Tensor):
        raise CommandError(f"{file} takes {len(inputs)} inputs: export a network of one tensor")
    number = nodes[0].meta["val"].shape[0]
    if isinstance(number, int):
        raise CommandError(
            f"{file} was exported for {number} images at a time: export it again with "
            'dynamic_shapes=({0: torch.export.Dim("batch")},)'
        )


def _check_training(graph: fx.Graph, file: Path) -> None:
    """Refuse a program whose operations are those of training mode."""
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        for place, argument in enumerate(schema.arguments if schema is not None else ()):
            given = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
            if argument.name in _MODES and given is True:
                raise CommandError(
                    f"{file} was exported in training mode ({node.name}): call model.eval() "
                    "before torch.export.export"
                )


_BEGINNINGS = (b"PK\x03\x04", b"\x80")
"""Of what torch.save writes: an archive, in former times a pickle."""
MODEL = "package.module:factory or path.py:factory, which returns the network, or a .pt2 program"


def add_model(parser: ArgumentParser) -> None:
    """Add the arguments that name a network."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help=MODEL,
    )
    parser.add_argument(
        "--weights", metavar="FILE", help="its state dict: .safetensors, or .pt with tensors only"
    )


def read_model(where: str, weights: str | None) -> nn.Module:
    """Return the network in eval mode. The code of MODEL is run; a file of weights never is."""
    _require_scratch()
    if where.endswith(".pt2"):
        model = read_program(Path(where))
    else:
        model = _made(read_object(where, "network", "factory"), where)
    if weights is not None:
        _give(model, Path(weights))
    return model.eval()


def _require_scratch() -> None:
    """Refuse a machine without a folder for temporary files: PyTorch blames the network for it."""
    try:
        tempfile.gettempdir()
    except OSError as error:
        raise CommandError(
            "PyTorch needs a folder for temporary files, and none can be written: make room on the "
            "disk, or name one in TMPDIR"
        ) from error


def read_object(where: str, noun: str, what: str) -> Any:
    """Return what `where` names in a module or file, whose code is run."""
    module_name, colon, name = where.rpartition(":")
    if not colon or not module_name or not name:
        raise CommandError(
            f"{where!r} names no {what}: write package.module:{what} or path.py:{what}"
        )
    module = _module(module_name)
    if not hasattr(module, name):
        known = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        raise CommandError(
            f"{module_name} has no {name!r}: name one of {_some(sorted(known), most=12)}"
        )
    return getattr(module, name)


def _module(name: str) -> ModuleType:
    if name.endswith(".py"):
        return _from_file(Path(name))
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise CommandError(
                f"there is no module {error.name!r}: install it, or run where it lies"
            ) from error
        raise CommandError(f"importing {name} failed ({error}): install what it needs") from error
    except (Exception, SystemExit) as error:
        raise _raised(f"importing {name}", error) from error


def _from_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise CommandError(f"there is no file {file}: write path.py:name")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise CommandError(f"{file} cannot be imported: hand over Python source")
    module = importlib.util.module_from_spec(spec)
    folder = str(file.resolve().parent)
    if folder not in sys.path:  # the file may import its neighbours
        sys.path.insert(0, folder)
    sys.modules.setdefault(file.stem, module)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _raised(f"importing {file}", error) from error
    return module


def _made(factory: Any, where: str) -> nn.Module:
    if isinstance(factory, nn.Module):
        return factory
    if not callable(factory):
        raise CommandError(f"{where} is a {type(factory).__name__}: name a function or a class")
    try:
        model = factory()
    except (Exception, SystemExit) as error:
        raise _raised(f"{where}()", error) from error
    if not isinstance(model, nn.Module):
        raise CommandError(
            f"{where}() returned a {type(model).__name__}: it must return a torch.nn.Module"
        )
    return model


def _raised(what: str, error: BaseException) -> CommandError:
    said = (str(error).splitlines() or [""])[0]
    return CommandError(
        f"{what} raised {type(error).__name__}: {said} (mend it there; --debug shows where)"
    )


def read_tensors(file: Path, what: str) -> Any:
    """Return what a .pt file holds, if that is tensors and plain values; no code of it is run."""
    try:
        with file.open("rb") as stream:
            if not stream.read(4).startswith(_BEGINNINGS):
                raise CommandError(f"{file} was not written by torch.save: save {what}")
        return torch.load(file, map_location="cpu", weights_only=True)
    except CommandError:
        raise
    except pickle.UnpicklingError as error:
        raise CommandError(
            f"{file} is refused, because reading it could run code (nothing was run): save "
            f"{what} again, as tensors only"
        ) from error
    except Exception as error:  # whatever torch.load meets in a damaged file
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise CommandError(
            f"{file} cannot be read ({said}): copy it again, or save {what}"
        ) from error


def _give(model: nn.Module, file: Path) -> None:
    if not file.is_file():
        raise CommandError(f"there is no file {file}: name the weights with --weights FILE")
    if file.suffix == ".safetensors":
        try:
            found: Any = load_file(file)
        except (SafetensorError, OSError) as error:
            raise CommandError(f"{file} cannot be read ({error}): copy it again") from error
    else:
        found = read_tensors(file, "model.state_dict() as .safetensors or .pt")
    if isinstance(found, Mapping) and isinstance(found.get("state_dict"), Mapping):
        found = found["state_dict"]
    if not isinstance(found, Mapping) or not all(isinstance(v, Tensor) for v in found.values()):
        raise CommandError(f"{file} holds no state dict: save model.state_dict()")
    _check_fit(model.state_dict(), found, file)
    model.load_state_dict(dict(found), strict=False)


def _check_fit(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], file: Path) -> None:
    """Refuse weights of another network; only counters of BatchNorm may be missing."""
    missing = [n for n in expected if n not in found and not n.endswith("num_batches_tracked")]
    extra = [name for name in found if name not in expected]
    other = [
        f"{name} {list(found[name].shape)} instead of {list(tensor.shape)}"
        for name, tensor in expected.items()
        if name in found and found[name].shape != tensor.shape
    ]
    kinds = {"missing": missing, "not in the network": extra, "of another shape": other}
    odd = [f"{kind}: {_some(names)}" for kind, names in kinds.items() if names]
    if odd and (prefix := _prefix(expected, found)):
        raise CommandError(
            f"{file} does not fit the network, because all its names begin with {prefix!r}: save "
            f"{{name.removeprefix({prefix!r}): tensor for name, tensor in state.items()}}"
        )
    if odd:
        raise CommandError(
            f"{file} does not fit the network; {'; '.join(odd)}: hand over the weights of this "
            "network, or name the factory that they belong to"
        )


def _prefix(expected: Iterable[str], found: Collection[str]) -> str:
    """Return what stands before the names of the network in all that were found, if anything."""
    for name in expected:
        for other in found:
            prefix = other.removesuffix(name)
            if other.endswith(f".{name}") and all(key.startswith(prefix) for key in found):
                return prefix
    return ""


def _some(names: Sequence[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
