"""Networks from a factory, a library such as timm, a .pt2 or an .onnx file."""

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
from torch.export.passes import move_to_device_pass

from entrim import onnx
from entrim.cli.pretrained import read_pretrained
from entrim.errors import CommandError
from entrim.export.parity import silence_exporter

_MODES = ("train", "training")
"""Names of the argument of operations that is off in eval mode."""


def read_program(file: Path, device: torch.device | None = None) -> nn.Module:
    """Return the network of an exported program. Reading it can execute code."""
    if not file.is_file():
        raise CommandError(f"there is no file {file}: name a program that torch.export.save wrote")
    try:
        with silence_exporter():
            program = torch.export.load(file)
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise CommandError(
            f"{file} is not an exported program that this PyTorch reads ({reason}): write it again "
            "with torch.export.save"
        ) from error
    _check_batch_size(program, file)
    _check_training(program.graph, file)
    if device is not None:
        program = move_to_device_pass(program, device)
    model = program.module()
    for module in model.modules():
        for forbidden in ("train", "eval"):  # they raise; the mode is fixed and correct
            vars(module).pop(forbidden, None)
    return model


def _check_batch_size(program: ExportedProgram, file: Path) -> None:
    """Refuse a program with a fixed batch size."""
    inputs = program.graph_signature.user_inputs
    nodes = [node for node in program.graph.nodes if node.name in inputs]
    if len(nodes) != 1 or not isinstance(nodes[0].meta.get("val"), torch.Tensor):
        raise CommandError(
            f"{file} has {len(inputs)} inputs: export a network with one input tensor"
        )
    number = nodes[0].meta["val"].shape[0]
    if isinstance(number, int):
        raise CommandError(
            f"{file} was exported for batches of {number} images: export it again with "
            'dynamic_shapes=({0: torch.export.Dim("batch")},)'
        )


def _check_training(graph: fx.Graph, file: Path) -> None:
    """Refuse a program that was exported in training mode."""
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
"""First bytes of files that torch.save writes: an archive, formerly a pickle."""
MODEL = "package.module:factory or path.py:factory, a function that returns the network; "
MODEL += "timm:NAME, torchvision:NAME or hf:NAME, with its trained weights; or a .pt2 or .onnx file"


def add_model(parser: ArgumentParser) -> None:
    """Add the arguments that name a network."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help=MODEL,
    )
    parser.add_argument(
        "--weights", metavar="FILE", help="state dict of the network: .safetensors, or .pt"
    )
    add_device(parser)


def add_device(parser: ArgumentParser) -> None:
    """Add the argument that names the device of the network."""
    parser.add_argument(
        "--device",
        metavar="cuda",
        help="device that computes, such as cuda or cuda:1 (default: cpu)",
    )


def find_device(name: str | None) -> torch.device | None:
    """Return the device called `name`; refuse one that this PyTorch cannot use."""
    if name is None:
        return None
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # raises on the meta device, too
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise CommandError(
            f"--device {name} cannot be used ({reason}): pass a device of this machine, such as "
            "cpu, or install a PyTorch that supports it"
        ) from error
    return device


def read_model(
    where: str, weights: str | None, device: str | None = None, *, trained: bool = True
) -> nn.Module:
    """Return the network in eval mode. The code of MODEL is executed; weights are data only.

    A network of a library has its trained weights if there are no others, and with `trained`.
    """
    _check_temporary_folder()
    place = find_device(device)
    if where.endswith(".pt2"):
        model = read_program(Path(where), place)
    elif where.endswith(".onnx"):
        model = onnx.load(where)
    else:
        model = read_pretrained(where, trained=trained and weights is None)
        if model is None:
            model = _build(read_object(where, "factory"), where)
    if weights is not None:
        _load_weights(model, Path(weights))
    return model.eval().to(place)


def _check_temporary_folder() -> None:
    """Refuse to run without a folder for temporary files, with which PyTorch fails later."""
    try:
        tempfile.gettempdir()
    except OSError as error:
        raise CommandError(
            "PyTorch needs a folder for temporary files, and none can be written: free space "
            "on the disk, or set TMPDIR"
        ) from error


def read_object(where: str, what: str) -> Any:
    """Return the object that `where` names in a module or file, whose code is executed."""
    module_name, colon, name = where.rpartition(":")
    if not colon or not module_name or not name:
        raise CommandError(
            f"{where!r} does not name a {what}: write package.module:{what} or path.py:{what}"
        )
    module = _module(module_name)
    if not hasattr(module, name):
        known = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        raise CommandError(
            f"{module_name} has no {name!r}: name one of {_shorten(sorted(known), most=12)}"
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
                f"there is no module {error.name!r}: install it, or run in its folder"
            ) from error
        raise CommandError(
            f"importing {name} failed ({error}): install its requirements"
        ) from error
    except (Exception, SystemExit) as error:
        raise _user_code_error(f"importing {name}", error) from error


def _from_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise CommandError(f"there is no file {file}: write path.py:name")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise CommandError(f"{file} cannot be imported: pass Python source")
    module = importlib.util.module_from_spec(spec)
    folder = str(file.resolve().parent)
    if folder not in sys.path:  # the file may import others in its folder
        sys.path.insert(0, folder)
    sys.modules.setdefault(file.stem, module)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _user_code_error(f"importing {file}", error) from error
    return module


def _build(factory: Any, where: str) -> nn.Module:
    if isinstance(factory, nn.Module):
        return factory
    if not callable(factory):
        raise CommandError(f"{where} is a {type(factory).__name__}: name a function or a class")
    try:
        model = factory()
    except (Exception, SystemExit) as error:
        raise _user_code_error(f"{where}()", error) from error
    if not isinstance(model, nn.Module):
        raise CommandError(
            f"{where}() returned a {type(model).__name__}: it must return a torch.nn.Module"
        )
    return model


def _user_code_error(what: str, error: BaseException) -> CommandError:
    reason = (str(error).splitlines() or [""])[0]
    return CommandError(
        f"{what} raised {type(error).__name__}: {reason} (correct the code; --debug shows where)"
    )


def read_tensors(file: Path, what: str) -> Any:
    """Return the tensors and plain values in a .pt file; no code in it is executed."""
    try:
        with file.open("rb") as stream:
            if not stream.read(4).startswith(_BEGINNINGS):
                raise CommandError(f"{file} was not written by torch.save: save {what}")
        return torch.load(file, map_location="cpu", weights_only=True)
    except CommandError:
        raise
    except pickle.UnpicklingError as error:
        raise CommandError(
            f"{file} is refused, because reading it could execute code (none was): save {what} "
            "again, as tensors only"
        ) from error
    except Exception as error:  # torch.load raises many types for damaged files
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CommandError(
            f"{file} cannot be read ({reason}): copy it again, or save {what}"
        ) from error


def _load_weights(model: nn.Module, file: Path) -> None:
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
        raise CommandError(f"{file} contains no state dict: save model.state_dict()")
    _check_fit(model.state_dict(), found, file)
    model.load_state_dict(dict(found), strict=False)


def _check_fit(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], file: Path) -> None:
    """Refuse weights of another network; only BatchNorm counters may be missing."""
    missing = [n for n in expected if n not in found and not n.endswith("num_batches_tracked")]
    extra = [name for name in found if name not in expected]
    other = [
        f"{name} {list(found[name].shape)} instead of {list(tensor.shape)}"
        for name, tensor in expected.items()
        if name in found and found[name].shape != tensor.shape
    ]
    problems = {"missing": missing, "not in the network": extra, "of another shape": other}
    found_problems = [f"{what}: {_shorten(names)}" for what, names in problems.items() if names]
    if found_problems and (prefix := _prefix(expected, found)):
        raise CommandError(
            f"{file} does not match the network, because all its names begin with {prefix!r}: save "
            f"{{name.removeprefix({prefix!r}): tensor for name, tensor in state.items()}}"
        )
    if found_problems:
        raise CommandError(
            f"{file} does not match the network; {'; '.join(found_problems)}: pass the weights of "
            "this network, or the factory that they belong to"
        )


def _prefix(expected: Iterable[str], found: Collection[str]) -> str:
    """Return the common prefix of all found names before those of the network, or ''."""
    for name in expected:
        for other in found:
            prefix = other.removesuffix(name)
            if other.endswith(f".{name}") and all(key.startswith(prefix) for key in found):
                return prefix
    return ""


def _shorten(names: Sequence[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
