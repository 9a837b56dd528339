"""A pruned network on disk: safetensors and JSON in a folder that is complete at all times.

The manifest `entrim.json` names the file of the tensors by its checksum. `save` writes a new file
next to the previous one and then replaces the manifest atomically: a reader, or a process that is
killed, leaves either the old network or the new one. `load_model.py` loads it without entrim.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn

from entrim.errors import LoadError, PlanError, SaveError
from entrim.graph.eager import copy_module, neutral_context, unwrap
from entrim.records import Record
from entrim.storage import atomic
from entrim.storage.checkpoint import UNFINISHED
from entrim.surgery.load_model import (
    METADATA,
    check_original,
    class_name_of,
    name_tensors,
    rebuild,
)
from entrim.surgery.plan import Plan
from entrim.surgery.prune import ModelStructure, SourceModel

FORMAT = 2
"""The format of folders with removed blocks; others are written in the first."""
MANIFEST = "entrim.json"
"""The file that identifies a folder of `save`."""
_LOCK = ".entrim.lock"
LOADER = "load_model.py"
"""The file that loads the network without entrim, a copy of `entrim.surgery.load_model`."""
LOADER_CODE = files("entrim.surgery").joinpath(LOADER).read_bytes()
CHECKPOINT = ".entrim.checkpoint"
"""The checkpoint folder of an unfinished distillation, inside its output folder."""
_OURS = re.compile(
    r"weights-[0-9a-f]{16}\.safetensors|\.entrim-[0-9a-f]{32}\.part|" + re.escape(_LOCK)
)


def save(
    small: nn.Module, plan: Plan, folder: str | os.PathLike[str], *, record: str | None = None
) -> None:
    """Write `small`, pruned by `plan`, to `folder`; a network saved there is replaced atomically.

    The folder contains everything that `load` needs: tensors (also non-persistent buffers), which
    of them are shared or require gradients, training modes and memory formats, and `record`, the
    JSON of `Record.to_json`. Its `load_model.py` loads the network where entrim is not installed:
    `load_model.load(model)`. Other files in the folder are kept.

    >>> import tempfile, torch, entrim
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> plan, folder = entrim.Plan({"0": [1, 6]}), tempfile.mkdtemp()
    >>> entrim.save(entrim.apply_plan(net, plan, torch.randn(3, 4)), plan, folder)
    >>> [path.suffix for path in sorted(Path(folder).glob("[a-z]*"))]
    ['.json', '.py', '.safetensors']
    """
    origin, place = _checked_origin(small, plan), Path(folder)
    form = ModelStructure.of(small, origin)
    weights = safetensors.torch.save(
        {
            name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, tensor in name_tensors(small)
            if name not in form.shared
        },
        metadata={METADATA: _note(origin, form)},
    )
    digest = hashlib.sha256(weights).hexdigest()
    manifest = _seal(
        {
            "format": FORMAT if origin.removed_blocks else 1,
            "entrim": version("entrim"),
            "plan": json.loads(plan_of(origin).to_json()),
            "original": {
                "kind": origin.class_name,
                "tensors": origin.tensors,
                "counts": origin.counts,
            },
            "small": form.to_plain(),
            "weights": {"sha256": digest, "bytes": len(weights)},
            **({"record": json.loads(record)} if record is not None else {}),
        }
    )
    try:
        _check_foreign(place)
        if not place.is_dir():
            place.mkdir(parents=True, exist_ok=True)
            atomic.sync_folder(place.parent)
        with alone(place):
            _sweep(place)
            atomic.write(place / _weights_file(digest), weights)
            atomic.write(place / LOADER, LOADER_CODE)
            atomic.write(place / MANIFEST, _lines(manifest).encode())
            with suppress(OSError):  # the new network is complete; the next save sweeps again
                _sweep(place)
    except SaveError:
        raise
    except OSError as error:
        raise SaveError(
            f"{place} cannot be written ({error}): make room or choose another folder; a network "
            "that was saved there before is intact"
        ) from error


def load(model: nn.Module, folder: str | os.PathLike[str]) -> nn.Module:
    """Return the network saved in `folder`, of the class of `model`, which is not modified.

    `model` is the network before pruning, with any weights, also on the meta device.

    >>> import tempfile, torch, entrim
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> plan, folder = entrim.Plan({"0": [1, 6]}), tempfile.mkdtemp()
    >>> entrim.save(entrim.apply_plan(net, plan, torch.randn(3, 4)), plan, folder)
    >>> entrim.load(net, folder)[0]
    Linear(in_features=4, out_features=2, bias=True)
    """
    return read(model, Path(folder))[0]


@neutral_context()
def read(model: nn.Module, place: Path) -> tuple[nn.Module, dict[str, Any]]:
    """Return the network saved in `place` and its manifest."""
    model = unwrap(model)
    try:
        manifest, weights = _complete(place)
        plan = Plan.from_json(json.dumps(manifest["plan"]))
        original = manifest["original"]
        origin = SourceModel(
            original["kind"],
            original["tensors"],
            original["counts"],
            kept=plan.kept,
            removed_blocks=plan.removed_blocks,
        )
        _check_other(model, origin)
        tensors = safetensors.torch.load(weights)
        small = rebuild(copy_module(model), tensors, **manifest["small"])
    except LoadError:
        raise
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        PlanError,
        SafetensorError,
    ) as error:
        raise LoadError(f"{place} is damaged ({error!r}): save again") from error
    origin.write_on(small)
    return small, manifest


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the verified manifest in `folder`: plan, original network, record."""
    return _manifest(Path(folder))


def record_in(manifest: Mapping[str, Any], place: Path) -> Record:
    """Return the record in a manifest of `place`."""
    if "record" not in manifest:
        raise LoadError(
            f"{place} contains a network without the record of a run: save the result of sparsify "
            "with result.save(folder)"
        )
    return Record.from_json(json.dumps(manifest["record"]))


def plan_of(origin: SourceModel) -> Plan:
    """Return the plan of a pruned network, without weights."""
    return Plan(origin.kept, removed_blocks=origin.removed_blocks)


def _checked_origin(small: nn.Module, plan: Plan) -> SourceModel:
    """Return the source of `small`; raise if it was not pruned by `plan`."""
    origin = SourceModel.of(small)
    if origin is None:
        raise SaveError(
            f"this {class_name_of(small)} was not pruned by entrim: pass what apply_plan() "
            "returned, not a wrapper around it"
        )
    for name, units in origin.kept.items():
        if list(plan.kept.get(name, ())) != list(units):
            raise SaveError(f"{name} was not pruned by this plan: pass the plan of apply_plan()")
    present = [name for name in plan.removed_blocks if name not in origin.removed_blocks]
    if present:
        raise SaveError(
            f"the network still has the block {present[0]}, which this plan removes: pass the plan "
            "of apply_plan()"
        )
    expected = set(filter(origin.has_tensor, origin.tensors))
    odd = sorted({name for name, _ in name_tensors(small)} ^ expected)
    if odd:
        raise SaveError(
            f"{odd[0]} was added or removed after pruning, and load() cannot restore it in a "
            f"{origin.class_name}: save before such changes"
        )
    return origin


def _check_other(model: nn.Module, origin: SourceModel) -> None:
    try:
        check_original(model, origin.class_name, origin.tensors)
    except ValueError as error:
        raise LoadError(str(error)) from error


def _note(origin: SourceModel, form: ModelStructure) -> str:
    """Return what `load_model.load` needs in addition to the tensors, as JSON."""
    note = {"class_name": origin.class_name, "tensors": origin.tensors}
    return json.dumps({**note, "structure": form.to_plain()})


def _complete(place: Path) -> tuple[dict[str, Any], bytes]:
    """Return the manifest and the file of its tensors, both verified."""
    while True:
        manifest = _manifest(place)
        digest, size = manifest["weights"]["sha256"], manifest["weights"]["bytes"]
        file = place / _weights_file(digest)
        try:
            weights = file.read_bytes()
        except FileNotFoundError as error:
            if _manifest(place) != manifest:  # another process saved in between
                continue
            raise LoadError(f"{file} is missing: save again") from error
        except OSError as error:
            raise LoadError(f"{file} cannot be read ({error})") from error
        if len(weights) != size:
            raise LoadError(f"{file} has {len(weights)} of {size} bytes: copy it or save again")
        if hashlib.sha256(weights).hexdigest() != digest:
            raise LoadError(f"{file} was modified, its checksum differs: copy it or save again")
        return manifest, weights


def _manifest(place: Path) -> dict[str, Any]:
    file = place / MANIFEST
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        what = "contains no complete network" if place.is_dir() else "does not exist"
        raise LoadError(f"{place} {what} (no {MANIFEST}): pass a folder of save()") from error
    except NotADirectoryError as error:
        raise LoadError(f"{place} is not a folder: pass a folder of save()") from error
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"{file} cannot be read ({error}): copy it or save again") from error
    try:
        manifest = json.loads(text)
    except ValueError as error:
        raise LoadError(f"{file} is truncated or modified: copy it or save again") from error
    if not isinstance(manifest, dict) or type(manifest.get("format")) is not int:
        raise LoadError(f"{file} was not written by entrim: pass a folder of save()")
    if manifest["format"] > FORMAT:
        raise LoadError(
            f"{file} has format {manifest['format']}, this version reads up to {FORMAT}: update "
            "entrim"
        )
    if _seal(manifest) != manifest:
        raise LoadError(f"{file} was modified, its checksum differs: copy it or save again")
    return manifest


def _seal(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest with a checksum of its other entries."""
    content = {key: value for key, value in manifest.items() if key != "sha256"}
    text = json.dumps(content, sort_keys=True)
    return {**content, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def _lines(manifest: Mapping[str, Any]) -> str:
    """Return the manifest as JSON, one line per entry."""
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in manifest.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _weights_file(digest: str) -> str:
    return f"weights-{digest[:16]}.safetensors"


def is_free(place: Path) -> bool:
    """Return whether the folder contains only files of an interrupted run or an incomplete save."""
    entries = list(place.iterdir()) if place.is_dir() else []
    return all(
        _OURS.fullmatch(entry.name) or entry.name in (UNFINISHED, CHECKPOINT) or _is_loader(entry)
        for entry in entries
    )


def _is_loader(file: Path) -> bool:
    """Return whether `file` is a loader that `save` wrote, by its first line."""
    if file.name != LOADER or not file.is_file():
        return False
    with file.open("rb") as stream:
        return stream.readline() == LOADER_CODE.splitlines(keepends=True)[0]


def _check_foreign(place: Path) -> None:
    """Refuse a folder that contains files but no saved network."""
    if place.exists() and not place.is_dir():
        raise SaveError(f"{place} is not a folder: choose another name")
    if (place / LOADER).exists() and not _is_loader(place / LOADER):
        raise SaveError(f"{place} contains another {LOADER}: rename it, or choose another folder")
    if is_free(place):
        return
    try:
        _manifest(place)
    except LoadError as error:
        raise SaveError(
            f"{place} contains other files than a saved network ({error}): choose another folder, "
            "or empty it"
        ) from error


def _sweep(place: Path) -> None:
    """Remove the files of interrupted saves and of the previous network."""
    keep = {_LOCK}
    if (place / MANIFEST).exists():
        keep.add(_weights_file(_manifest(place)["weights"]["sha256"]))
    for entry in list(place.iterdir()):
        if _OURS.fullmatch(entry.name) and entry.name not in keep:
            entry.unlink(missing_ok=True)


def alone(place: Path) -> AbstractContextManager[None]:
    """Wait until no other process writes to `place`, then lock it; see `atomic.exclusive_lock`."""
    return atomic.exclusive_lock(place / _LOCK)
