"""The checkpoint store: finished units of a run. An interrupted run continues after them.

A unit is the result of one piece of work: the selection in a group, its sensitivity, the new
weights of a layer, the state after an epoch. Each is a safetensors file, replaced atomically, with
a checksum over its content, its key and the identity of the run. A unit that is damaged or belongs
to another run is computed again.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.utils import _pytree as pytree

from entrim.calibration.collect import Pass
from entrim.calibration.data import CalibrationData
from entrim.distributed.world import World
from entrim.errors import (
    CheckpointError,
    DistributedError,
    EntrimError,
    OtherRunError,
    SaveError,
)
from entrim.graph.eager import ExampleInputs
from entrim.storage import atomic

T = TypeVar("T")
VERSIONS = ("entrim", "torch")
"""Packages whose versions identify a run."""


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """Return a checksum of the types, shapes and values of `tensors`, in this order."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def identity_of(
    forward: Pass,
    images: CalibrationData,
    example_inputs: ExampleInputs,
    options: Sequence[Any],
    seed: int | None,
) -> dict[str, str]:
    """Return digests of everything except the target on which the results of a run depend."""
    code = dict.fromkeys(program.module.code for program in forward.programs)
    network = (*code, *forward.tensors, str({t.device.type for t in forward.tensors.values()}))
    shown = [images.shapes(), dict(images.fixed), example_inputs]
    tensors = [leaf for leaf in pytree.tree_leaves(shown) if isinstance(leaf, Tensor)]
    shapes = repr(pytree.tree_map_only(Tensor, lambda tensor: tuple(tensor.shape), shown))
    return {
        "network": f"{_digest(*network)} {fingerprint(forward.tensors.values())}",
        "images": f"{_digest(shapes)} {images.checksum()} {fingerprint(tensors)}",
        "settings": json.dumps(options),
        "seed": str(seed),
        "versions": str({name: version(name) for name in VERSIONS}),
    }


def _digest(*texts: str) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


UNFINISHED = ".unfinished"
"""The checkpoint folder of an unfinished run, inside the folder that the run will be saved in."""
_RUN = "run.json"
_LOCK = ".entrim.lock"
_UNIT = re.compile(r"[0-9a-f]{32}\.safetensors")
_ASIDE = "aside-"
_OURS = re.compile(rf"{_UNIT.pattern}|\.entrim-[0-9a-f]{{32}}\.part|{_ASIDE}.+|{_RUN}|{_LOCK}")


@dataclass(slots=True, kw_only=True)
class CheckpointStore:
    """The units of one run in a folder of their own; without a folder, nothing is stored."""

    folder: Path | None = None
    discard: bool = False
    """Discard the units of another run instead of raising `OtherRunError`."""
    read_only: bool = False
    """Return stored units, and write nothing to the folder."""
    run: str = ""
    """The checksum of the identity of this run, set by `open`."""
    types: Mapping[str, type] = field(default_factory=dict)
    """Dataclasses that units may contain, by name."""
    restored: set[str] = field(default_factory=set)
    """Keys of the units that were found on disk."""
    world: World = field(default_factory=World)
    """The ranks of the run: the first one reads and writes the folder, the others get its units."""

    @classmethod
    def at(cls, folder: "str | os.PathLike[str] | CheckpointStore | None") -> "CheckpointStore":
        """Return the store in a folder; a store is returned as it is, None stores nothing."""
        if isinstance(folder, CheckpointStore):
            return folder
        return cls(folder=None if folder is None else Path(folder))

    @contextmanager
    def open(self, identity: Mapping[str, str]) -> Iterator[int]:
        """Lock the folder for the run with this identity, and yield the number of stored units.

        If the run raises an `EntrimError`, the folder is removed: the same call would fail again.
        """
        self.run = hashlib.sha256(json.dumps(dict(identity)).encode()).hexdigest()
        if self.folder is None or self.read_only:
            yield len(self._units())
            return
        with ExitStack() as stack:
            finished = self.world.from_root(partial(self._enter, stack, self.folder, identity))
            try:
                yield finished
            except (SaveError, DistributedError):
                raise
            except EntrimError:
                self.remove()
                raise

    def _enter(self, stack: ExitStack, folder: Path, identity: Mapping[str, str]) -> int:
        stack.enter_context(_exclusive(folder))
        stack.callback(self._remove_empty)
        self._begin(folder, identity)
        return len(self._units())

    def get_or_compute(self, key: str, compute: Callable[[], T]) -> T:
        """Return the unit under `key` if it is stored, else compute and store it.

        Every rank computes it, and the result of the first one is returned on all of them.
        """
        found = self.get(key)
        if found is None:
            computed = compute()
            found = self.world.from_root(lambda: computed)
            self.put(key, found)
        return found

    def has(self, key: str) -> bool:
        """Return whether a unit is stored under `key`."""
        return self.get(key) is not None

    def get(self, key: str) -> Any:
        """Return the unit under `key`; None if it is missing, damaged, or of another run."""
        if self.folder is None:
            return None
        unit = self.world.from_root(partial(self._read, key))
        if unit is not None:
            self.restored.add(key)
        return unit

    def _read(self, key: str) -> Any:
        try:
            with safe_open(self._file(key), "pt") as stored:
                head = stored.metadata()
                tensors = {name: stored.get_tensor(name).clone() for name in stored.keys()}  # noqa: SIM118
            if head["seal"] != self._seal(key, head["values"], tensors):
                return None
            return _decode(json.loads(head["values"]), tensors, self.types)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError):
            return None

    def put(self, key: str, unit: Any) -> None:
        """Store a unit atomically: plain values, tensors, and dataclasses of `types`."""
        if self.folder is None or self.read_only or not self.world.is_root:
            return
        tensors: dict[str, Tensor] = {}
        values = json.dumps(_encode(unit, tensors))
        head = {"values": values, "seal": self._seal(key, values, tensors)}
        with _writing(self.folder):
            atomic.write(self._file(key), safetensors.torch.save(tensors, head))

    def set_aside(self, name: str, content: bytes) -> Path:
        """Write a file of the result to the checkpoint folder, and return its path."""
        assert self.folder is not None
        file = self.folder / f"{_ASIDE}{name}"
        with _writing(self.folder):
            self.folder.mkdir(exist_ok=True)
            atomic.write(file, content)
        return file

    def pending_file(self, name: str) -> Path | None:
        """Return the path that `set_aside` wrote for `name`, if the file exists."""
        file = None if self.folder is None else self.folder / f"{_ASIDE}{name}"
        return file if file is not None and file.is_file() else None

    def remove(self) -> None:
        """Remove the folder, as far as possible; foreign files are kept."""
        if self.folder is None or not self.world.is_root:
            return
        with suppress(OSError):
            for entry in _entries(self.folder):
                if _OURS.fullmatch(entry.name):
                    entry.unlink(missing_ok=True)
            self.folder.rmdir()

    def _begin(self, folder: Path, identity: Mapping[str, str]) -> None:
        found = _identity(folder / _RUN)
        if found is not None and found != dict(identity):
            if not self.discard:
                names = [n for n in {**identity, **found} if found.get(n) != identity.get(n)]
                raise OtherRunError(
                    f"the checkpoint folder {folder} belongs to another run ({', '.join(names)} "
                    "differ): repeat the call of that run, choose another folder, or remove this "
                    "one"
                )
            for entry in _entries(folder):
                if entry.name != _LOCK:
                    entry.unlink()
        with _writing(folder):
            atomic.write(folder / _RUN, json.dumps(dict(identity), indent=2).encode())

    def _units(self) -> list[Path]:
        entries = [] if self.folder is None else _entries(self.folder)
        return [entry for entry in entries if _UNIT.fullmatch(entry.name)]

    def _remove_empty(self) -> None:
        if not self._units():
            self.remove()

    def _file(self, key: str) -> Path:
        assert self.folder is not None
        digest = hashlib.sha256(key.encode()).hexdigest()[:32]
        return self.folder / f"{digest}.safetensors"

    def _seal(self, key: str, values: str, tensors: Mapping[str, Tensor]) -> str:
        ordered = sorted(tensors)
        content = json.dumps([self.run, key, values, ordered])
        digest = fingerprint(tensors[name] for name in ordered)
        return hashlib.sha256(f"{content}{digest}".encode()).hexdigest()


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _identity(file: Path) -> dict[str, str] | None:
    """Return the identity of the run in the folder; None if the file is missing or damaged.

    The checksum of every unit covers the identity, so no unit of another run is used without it.
    """
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _encode(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return a unit as JSON data, and add its tensors to `tensors`."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = _plain(value)
        return {"tensor": name}
    if is_dataclass(value) and not isinstance(value, type):
        entries = {item.name: _encode(getattr(value, item.name), tensors) for item in fields(value)}
        return {"type": type(value).__name__, "fields": entries}
    if isinstance(value, Mapping):
        return {"dict": [[key, _encode(entry, tensors)] for key, entry in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_encode(entry, tensors) for entry in value]}
    if isinstance(value, list):
        return [_encode(entry, tensors) for entry in value]
    return value


def _decode(data: Any, tensors: Mapping[str, Tensor], types: Mapping[str, type]) -> Any:
    """Return the unit that `_encode` encoded."""
    if isinstance(data, list):
        return [_decode(entry, tensors, types) for entry in data]
    if not isinstance(data, dict):
        return data
    if "tensor" in data:
        return tensors[data["tensor"]]
    if "tuple" in data:
        return tuple(_decode(data["tuple"], tensors, types))
    if "dict" in data:
        return {key: _decode(entry, tensors, types) for key, entry in data["dict"]}
    entries = data["fields"].items()
    return types[data["type"]](**{key: _decode(e, tensors, types) for key, e in entries})


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Lock `folder` for this process; refuse a folder with foreign files without changing it."""
    foreign = [e.name for e in _entries(folder) if not _OURS.fullmatch(e.name)]
    if foreign or (folder.exists() and not folder.is_dir()):
        raise CheckpointError(
            f"{folder} is not a checkpoint folder: choose a folder that does not exist yet"
        )
    with ExitStack() as stack:
        try:
            with _writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(atomic.exclusive_lock(folder / _LOCK, wait=False))
        except BlockingIOError as error:
            raise CheckpointError(
                f"another process uses the checkpoint folder {folder}: wait for it, or choose "
                "another folder"
            ) from error
        yield


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except BlockingIOError:
        raise
    except OSError as error:
        raise SaveError(
            f"the checkpoint folder {folder} cannot be written ({error.strerror}): make room or "
            "choose another folder, and repeat the call; finished units are kept"
        ) from error
