"""A cut network on disk: safetensors and JSON in one folder that is complete at every moment.

The manifest `entrim.json` names the file of the tensors by its checksum. A save writes that file
under its own name beside the one of before, then replaces the manifest in one step: whoever reads,
or is killed, sees the old network or the new one.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn

from entrim.errors import LoadError, PlanError, SaveError
from entrim.records import Record
from entrim.storage import atomic
from entrim.storage.checkpoint import UNFINISHED
from entrim.surgery.plan import Plan
from entrim.surgery.structure import (
    ModelStructure,
    SourceModel,
    class_name_of,
    name_tensors,
    tensors_of,
)

FORMAT = 1
MANIFEST = "entrim.json"
"""The file that makes a folder one of ours."""
_LOCK = ".entrim.lock"
CHECKPOINT = ".entrim.checkpoint"
"""What a run that is not finished keeps where it will be saved."""
_OURS = re.compile(
    r"weights-[0-9a-f]{16}\.safetensors|\.entrim-[0-9a-f]{32}\.part|\.entrim\.(lock|checkpoint)"
)


def save(
    small: nn.Module, plan: Plan, folder: str | os.PathLike[str], *, record: str | None = None
) -> None:
    """Write `small`, cut by `plan`, into `folder`; a save that is there is replaced in one step.

    Everything that `load` needs goes along: tensors (non-persistent buffers too), which of them are
    shared or ask for gradients, modes and memory formats. `record`, JSON that `Record.to_json`
    gives, is kept beside them. Other files in the folder stay.

    >>> import tempfile, torch, entrim
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> plan, folder = entrim.Plan({"0": [1, 6]}), tempfile.mkdtemp()
    >>> entrim.save(entrim.apply_plan(net, plan, torch.randn(3, 4)), plan, folder)
    >>> [path.suffix for path in sorted(Path(folder).glob("[a-z]*"))]
    ['.json', '.safetensors']
    """
    origin, place = _checked_origin(small, plan), Path(folder)
    form = ModelStructure.of(small, origin.counts)
    weights = safetensors.torch.save(
        {
            name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, tensor in name_tensors(small)
            if name not in form.shared
        }
    )
    digest = hashlib.sha256(weights).hexdigest()
    manifest = _seal(
        {
            "format": FORMAT,
            "entrim": version("entrim"),
            "plan": json.loads(Plan(origin.kept).to_json()),
            "original": {
                "kind": origin.class_name,
                "tensors": origin.tensors,
                "counts": origin.counts,
            },
            "small": asdict(form),
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
            atomic.write(place / MANIFEST, _lines(manifest).encode())
            with suppress(OSError):  # the new save is complete; the next one sweeps again
                _sweep(place)
    except SaveError:
        raise
    except OSError as error:
        raise SaveError(
            f"{place} cannot be written ({error}): make room or choose another folder; a save that "
            "was there before is intact"
        ) from error


def load(model: nn.Module, folder: str | os.PathLike[str]) -> nn.Module:
    """Return the network saved in `folder`, of the class of `model`, which is not touched.

    `model` is the network before the cut, with any weights, also on the meta device.

    >>> import tempfile, torch, entrim
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> plan, folder = entrim.Plan({"0": [1, 6]}), tempfile.mkdtemp()
    >>> entrim.save(entrim.apply_plan(net, plan, torch.randn(3, 4)), plan, folder)
    >>> entrim.load(net, folder)[0]
    Linear(in_features=4, out_features=2, bias=True)
    """
    return read(model, Path(folder))[0]


def read(model: nn.Module, place: Path) -> tuple[nn.Module, dict[str, Any]]:
    """Return the network saved in `place`, as `load` does, and the manifest that came with it."""
    try:
        manifest, weights = _complete(place)
        plan = Plan.from_json(json.dumps(manifest["plan"]))
        original = manifest["original"]
        origin = SourceModel(
            original["kind"], original["tensors"], original["counts"], kept=plan.kept
        )
        _check_other(model, origin)
        small = ModelStructure(**manifest["small"]).given_to(model, safetensors.torch.load(weights))
    except (KeyError, TypeError, AttributeError, PlanError, SafetensorError) as error:
        raise LoadError(f"{place} is not as entrim writes it ({error!r}): save again") from error
    origin.write_on(small)
    return small, manifest


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what `save` noted in `folder` beside the tensors, checked: plan, origin, record."""
    return _manifest(Path(folder))


def record_in(manifest: Mapping[str, Any], place: Path) -> Record:
    """Return the record that was saved with the network in `place`."""
    if "record" not in manifest:
        raise LoadError(
            f"{place} holds a network without the record of a run: save what sparsify returned, "
            "with small.save(folder)"
        )
    return Record.from_json(json.dumps(manifest["record"]))


def _checked_origin(small: nn.Module, plan: Plan) -> SourceModel:
    """Return where `small` comes from, if `plan` is the one that cut it."""
    origin = SourceModel.of(small)
    if origin is None:
        raise SaveError(
            f"this {class_name_of(small)} was not pruned by entrim: pass what apply_plan() "
            "returned, not a wrapper around it"
        )
    for name, units in origin.kept.items():
        if list(plan.kept.get(name, ())) != list(units):
            raise SaveError(f"{name} was not cut by this plan: hand over the one of apply_plan()")
    odd = sorted({name for name, _ in name_tensors(small)} ^ set(origin.tensors))
    if odd:
        raise SaveError(
            f"{odd[0]} came or went after the cut, and load() could not place it in a new "
            f"{origin.class_name}: save before such changes"
        )
    return origin


def _check_other(model: nn.Module, origin: SourceModel) -> None:
    if class_name_of(model) != origin.class_name:
        raise LoadError(
            f"a {origin.class_name} was saved, not a {class_name_of(model)}: pass the class that "
            "was pruned"
        )
    found = tensors_of(model)
    remedy = f"hand over the {origin.class_name} that was cut, at its full width"
    odd = sorted(found.keys() ^ origin.tensors.keys())
    if odd:
        who = "this network has" if odd[0] in found else "the saved network has"
        raise LoadError(f"the names of the tensors differ, only {who} {odd[0]}: {remedy}")
    for name, there in origin.tensors.items():
        if found[name] != there:
            raise LoadError(f"{name} is {found[name]} here and {there} in the save: {remedy}")


def _complete(place: Path) -> tuple[dict[str, Any], bytes]:
    """Return the manifest and the tensors it names, as bytes that were checked."""
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
            raise LoadError(f"{file} was changed, its checksum is another: copy it or save again")
        return manifest, weights


def _manifest(place: Path) -> dict[str, Any]:
    file = place / MANIFEST
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        what = "holds no complete save" if place.is_dir() else "is not there"
        raise LoadError(f"{place} {what} (no {MANIFEST}): hand over a folder of save()") from error
    except NotADirectoryError as error:
        raise LoadError(f"{place} is not a folder: hand over a folder of save()") from error
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"{file} cannot be read ({error}): copy it or save again") from error
    try:
        manifest = json.loads(text)
    except ValueError as error:
        raise LoadError(f"{file} was cut short or changed: copy it or save again") from error
    if not isinstance(manifest, dict) or type(manifest.get("format")) is not int:
        raise LoadError(f"{file} was not written by entrim: hand over a folder of save()")
    if manifest["format"] > FORMAT:
        raise LoadError(
            f"{file} has format {manifest['format']}, this entrim reads up to {FORMAT}: update "
            "entrim"
        )
    if _seal(manifest) != manifest:
        raise LoadError(f"{file} was changed, its checksum is another: copy it or save again")
    return manifest


def _seal(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest with the checksum of all its other entries."""
    content = {key: value for key, value in manifest.items() if key != "sha256"}
    text = json.dumps(content, sort_keys=True)
    return {**content, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def _lines(manifest: Mapping[str, Any]) -> str:
    """Return the manifest as JSON with one line for every entry, so that it can be read."""
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in manifest.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _weights_file(digest: str) -> str:
    return f"weights-{digest[:16]}.safetensors"


def is_free(place: Path) -> bool:
    """Whether the folder holds nothing but what an interrupted run or first save leaves behind."""
    names = [entry.name for entry in place.iterdir()] if place.is_dir() else []
    return all(_OURS.fullmatch(name) or name == UNFINISHED for name in names)


def _check_foreign(place: Path) -> None:
    """Refuse a folder that holds things but no save."""
    if place.exists() and not place.is_dir():
        raise SaveError(f"{place} is not a folder: choose another name")
    if is_free(place):
        return
    try:
        _manifest(place)
    except LoadError as error:
        raise SaveError(
            f"{place} holds something else than a network saved by this entrim ({error}): choose "
            "another folder, or empty it"
        ) from error


def _sweep(place: Path) -> None:
    """Remove what interrupted saves and the save before left behind."""
    keep = {_LOCK, CHECKPOINT}
    if (place / MANIFEST).exists():
        keep.add(_weights_file(_manifest(place)["weights"]["sha256"]))
    for entry in list(place.iterdir()):
        if _OURS.fullmatch(entry.name) and entry.name not in keep:
            entry.unlink(missing_ok=True)


def alone(place: Path) -> AbstractContextManager[None]:
    """Wait until no other process writes into `place`; a killed one does not keep the others out.

    Where files cannot be locked (Windows, some network file systems), one process must save alone.
    """
    return atomic.exclusive_lock(place / _LOCK)
