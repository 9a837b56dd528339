"""The checkpoint store: finished units of an interrupted run, so that it continues after them.

A unit is the result of one piece of work: the selection in a group, its sensitivity, the new
weights of a layer. Each is a safetensors file of its own, replaced in one step, with a checksum and
the run that it belongs to. A unit that does not match is computed again.
"""

import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from entrim.errors import CheckpointError, EntrimError, OtherRunError, SaveError
from entrim.storage import atomic

T = TypeVar("T")
_HEAD = b"entrim checkpoint 1\n"
_SEAL = 64
"""The hexadecimal digits of the checksum behind the head."""


def write_checkpoint(file: Path, identity: Mapping[str, str], state: Mapping[str, Any]) -> None:
    """Put `state`, tensors and plain values, into `file` in one step."""
    stream = io.BytesIO()
    torch.save({"identity": dict(identity), "state": dict(state)}, stream)
    content = stream.getvalue()
    seal = hashlib.sha256(content).hexdigest().encode()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(file, _HEAD + seal + content)
    except OSError as error:
        raise SaveError(
            f"the checkpoint {file} cannot be written ({error}): make room or choose another "
            "place; one that was there before is intact"
        ) from error


def read_checkpoint(file: Path, identity: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the state in `file`, None where there is no such file.

    A file that is damaged, or that another run wrote, is refused: it is never overwritten.
    """
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint {file} cannot be read ({error}): choose another file"
        ) from error
    if not content.startswith(_HEAD):
        raise CheckpointError(
            f"{file} is no checkpoint of this entrim: choose a file that does not exist yet"
        )
    seal, content = content[len(_HEAD) : len(_HEAD) + _SEAL], content[len(_HEAD) + _SEAL :]
    if hashlib.sha256(content).hexdigest().encode() != seal:
        raise CheckpointError(
            f"the checkpoint {file} was cut short or changed: remove it to start again"
        )
    found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    check_identity(f"the checkpoint {file}", found["identity"], identity)
    return found["state"]


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """Return a checksum of the types, shapes and values of `tensors`, in this order."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check_identity(what: str, found: Mapping[str, str], expected: Mapping[str, str]) -> None:
    """Refuse `what` another run has written: the identities name the difference."""
    names = [*expected, *(name for name in found if name not in expected)]
    odd = [name for name in names if found.get(name) != expected.get(name)]
    if odd:
        raise OtherRunError(
            f"{what} belongs to another run ({', '.join(odd)} differ): go on as in that run, "
            "choose another place, or remove this one"
        )


UNFINISHED = ".unfinished"
"""The name of the journal inside the folder that a run will be saved in."""
_RUN = "run.json"
_LOCK = ".entrim.lock"
_UNIT = re.compile(r"[0-9a-f]{32}\.safetensors")
_ASIDE = "aside-"
_OURS = re.compile(rf"{_UNIT.pattern}|\.entrim-[0-9a-f]{{32}}\.part|{_ASIDE}.+|{_RUN}|{_LOCK}")


@dataclass(slots=True, kw_only=True)
class CheckpointStore:
    """The units of one run in a folder of their own; without a folder nothing is kept."""

    folder: Path | None = None
    discard: bool = False
    """Whether the units of another run give way; else they are refused."""
    run: str = ""
    """What tells this run from others, known once the journal is open."""
    types: Mapping[str, type] = field(default_factory=dict)
    """Dataclasses that units may contain, by name."""
    restored: set[str] = field(default_factory=set)
    """Keys of the units that were found on disk."""

    @contextmanager
    def open(self, identity: Mapping[str, str]) -> Iterator[int]:
        """Keep the units of the run of that identity; yield how many of its units there are.

        A run that is refused leaves no journal behind, since it would be refused again.
        """
        self.run = hashlib.sha256(json.dumps(dict(identity)).encode()).hexdigest()
        if self.folder is None:
            yield 0
            return
        with ExitStack() as stack:
            stack.enter_context(_exclusive(self.folder))
            stack.callback(self._remove_empty)
            self._begin(self.folder, identity)
            try:
                yield len(self._units())
            except SaveError:
                raise
            except EntrimError:
                self.remove()
                raise

    def get_or_compute(self, key: str, compute: Callable[[], T]) -> T:
        """Return the unit under `key` if it is on disk, else compute and keep it."""
        found = self.get(key)
        if found is None:
            found = compute()
            self.put(key, found)
        return found

    def has(self, key: str) -> bool:
        """Whether there is a unit under `key`."""
        return self.get(key) is not None

    def get(self, key: str) -> Any:
        """Return the unit under `key`; None where it is missing, damaged, or of another run."""
        if self.folder is None:
            return None
        try:
            with safe_open(self._file(key), "pt") as stored:
                head = stored.metadata()
                tensors = {name: stored.get_tensor(name).clone() for name in stored.keys()}  # noqa: SIM118
            if head["seal"] != self._seal(key, head["values"], tensors):
                return None
            unit = _decode(json.loads(head["values"]), tensors, self.types)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError):
            return None
        self.restored.add(key)
        return unit

    def put(self, key: str, unit: Any) -> None:
        """Write a unit in one step: plain values, tensors, and dataclasses of `types`."""
        if self.folder is None:
            return
        tensors: dict[str, Tensor] = {}
        values = json.dumps(_encode(unit, tensors))
        head = {"values": values, "seal": self._seal(key, values, tensors)}
        with _writing(self.folder):
            atomic.write(self._file(key), safetensors.torch.save(tensors, head))

    def set_aside(self, name: str, content: bytes) -> Path:
        """Write a file of the result ahead of its place, and return where it waits."""
        assert self.folder is not None
        file = self.folder / f"{_ASIDE}{name}"
        with _writing(self.folder):
            self.folder.mkdir(exist_ok=True)
            atomic.write(file, content)
        return file

    def pending_file(self, name: str) -> Path | None:
        """Return where the file `name` of the result waits, if the run was saving its result."""
        file = None if self.folder is None else self.folder / f"{_ASIDE}{name}"
        return file if file is not None and file.is_file() else None

    def remove(self) -> None:
        """Forget everything; what cannot be removed is left."""
        if self.folder is None:
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
                check_identity(f"the journal {folder}", found, identity)
            for entry in _entries(folder):
                if entry.name != _LOCK:
                    entry.unlink()
        with _writing(folder):
            atomic.write(folder / _RUN, json.dumps(dict(identity), indent=2).encode())

    def _units(self) -> list[Path]:
        assert self.folder is not None
        return [entry for entry in _entries(self.folder) if _UNIT.fullmatch(entry.name)]

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
    """Return what is known of the run in the journal; None where that was lost.

    The units know their run themselves, so that without this file none is mistaken.
    """
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _encode(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return a unit as JSON holds it; its tensors are added to `tensors`."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = _plain(value)
        return {"tensor": name}
    if is_dataclass(value) and not isinstance(value, type):
        entries = {item.name: _encode(getattr(value, item.name), tensors) for item in fields(value)}
        return {"type": type(value).__name__, "fields": entries}
    if isinstance(value, Mapping):
        return {"dict": {key: _encode(entry, tensors) for key, entry in value.items()}}
    if isinstance(value, tuple):
        return {"tuple": [_encode(entry, tensors) for entry in value]}
    if isinstance(value, list):
        return [_encode(entry, tensors) for entry in value]
    return value


def _decode(data: Any, tensors: Mapping[str, Tensor], types: Mapping[str, type]) -> Any:
    """Return the unit that `_encode` wrote."""
    if isinstance(data, list):
        return [_decode(entry, tensors, types) for entry in data]
    if not isinstance(data, dict):
        return data
    if "tensor" in data:
        return tensors[data["tensor"]]
    if "tuple" in data:
        return tuple(_decode(data["tuple"], tensors, types))
    if "dict" in data:
        return {key: _decode(entry, tensors, types) for key, entry in data["dict"].items()}
    entries = data["fields"].items()
    return types[data["type"]](**{key: _decode(e, tensors, types) for key, e in entries})


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Keep other processes out of `folder`; one that holds something else is refused untouched."""
    foreign = [e.name for e in _entries(folder) if not _OURS.fullmatch(e.name)]
    if foreign or (folder.exists() and not folder.is_dir()):
        raise CheckpointError(
            f"{folder} holds something else than a journal: choose a folder that does not exist yet"
        )
    with ExitStack() as stack:
        try:
            with _writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(atomic.exclusive_lock(folder / _LOCK, wait=False))
        except BlockingIOError as error:
            raise CheckpointError(
                f"another process is at work with the journal {folder}: wait for it, or choose "
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
            f"the journal {folder} cannot be written ({error.strerror}): make room or choose "
            "another place, and start again; what is finished is kept"
        ) from error
