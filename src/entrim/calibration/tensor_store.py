"""Tensor store: tensors in memory up to a limit, beyond it in a scratch folder on disk."""

import math
import tempfile
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from entrim.errors import ScratchError

_MEMORY_FILESYSTEMS = ("tmpfs", "ramfs")
_MOUNTS = Path("/proc/self/mounts")


@dataclass(slots=True)
class Scratch:
    """The memory and disk space that all tensor stores of a run share.

    Tensors are written to disk when the stores together hold `memory_limit` bytes. A folder is
    created in `parent`, by default the temporary folder, when the first tensor is written. A parent
    on a file system in memory raises an error, because it would save no memory.
    """

    parent: Path | None = None
    limit: int | float = math.inf
    memory_limit: int | float = math.inf
    held: int = 0
    """Bytes that the stores hold in memory."""
    used: int = 0
    written: int = 0
    folder: tempfile.TemporaryDirectory[str] | None = None

    def write(self, tensor: Tensor) -> "SpilledTensor":
        """Write a tensor to disk."""
        size = tensor_bytes(tensor)
        if self.used + size > self.limit:
            raise ScratchError(
                f"tensors on disk would exceed scratch_limit={self.limit:,} bytes: raise it in "
                "Calibration(...), or pass fewer or smaller images, or smaller batches"
            )
        file = self._new_file()
        try:
            torch.save(tensor.detach().cpu().clone(), file)
        except (OSError, RuntimeError) as error:
            raise ScratchError(
                f"a tensor cannot be written to {file.parent} ({error}): free some space, or pass "
                "Calibration(scratch_dir=...)"
            ) from error
        self.used += size
        return SpilledTensor(file, tensor.device, size)

    def remove(self, spilled: "SpilledTensor") -> None:
        """Remove a tensor from disk; the folder is removed with the last one."""
        spilled.file.unlink(missing_ok=True)
        self.used -= spilled.size
        if self.used == 0:
            self.close()

    def _new_file(self) -> Path:
        if self.folder is None:
            parent = Path(tempfile.gettempdir()) if self.parent is None else self.parent
            if is_memory_backed(parent):
                raise ScratchError(
                    f"{parent} is on a file system in memory: pass Calibration(scratch_dir=...) "
                    "with a folder on disk, or raise memory_limit"
                )
            try:
                parent.mkdir(parents=True, exist_ok=True)
                self.folder = tempfile.TemporaryDirectory(prefix="entrim-", dir=parent)
            except OSError as error:
                raise ScratchError(
                    f"no scratch folder can be created in {parent} ({error.strerror}): pass "
                    "Calibration(scratch_dir=...)"
                ) from error
        self.written += 1
        return Path(self.folder.name, f"{self.written}.pt")

    def close(self) -> None:
        """Remove the scratch folder."""
        if self.folder is not None:
            self.folder.cleanup()
            self.folder = None
        self.used = 0


@dataclass(slots=True)
class TensorStore:
    """Stores values by key; tensors beyond `limit` bytes are written to disk.

    So are tensors beyond the memory limit of all stores that share `scratch`.
    """

    limit: int | float
    scratch: Scratch = field(default_factory=Scratch)
    held: int = 0
    values: dict[Hashable, Any] = field(default_factory=dict)
    passing: set[Hashable] = field(default_factory=set)
    """Keys of the tensors that are held only for a moment, and do not count."""

    def __enter__(self) -> "TensorStore":
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove all values."""
        for key in list(self.values):
            self.drop(key)

    def put(self, key: Hashable, value: Any, *, passing: bool = False) -> None:
        """Store `value`; only tensors count toward the limits, and only if they are not `passing`.

        A passing tensor is dropped soon: it stays in memory.
        """
        self.drop(key)
        if passing:
            self.passing.add(key)
        elif isinstance(value, Tensor):
            size, shared = tensor_bytes(value), self.scratch
            full = shared.held + size > shared.memory_limit
            if full or self.held + size > self.limit:
                value = shared.write(value)
            else:
                self.held += size
                shared.held += size
        self.values[key] = value

    def get(self, key: Hashable) -> Any:
        """Return the value under `key`; tensors on disk are memory-mapped."""
        value = self.values[key]
        return value.read() if isinstance(value, SpilledTensor) else value

    def drop(self, key: Hashable) -> None:
        """Remove the value under `key`, if any."""
        value = self.values.pop(key, None)
        if key in self.passing:
            self.passing.remove(key)
        elif isinstance(value, Tensor):
            self.held -= tensor_bytes(value)
            self.scratch.held -= tensor_bytes(value)
        elif isinstance(value, SpilledTensor):
            self.scratch.remove(value)


@dataclass(frozen=True, slots=True)
class SpilledTensor:
    """A tensor on disk."""

    file: Path
    device: torch.device
    size: int

    def read(self) -> Tensor:
        """Return the tensor on its device; memory-mapped on the CPU."""
        return torch.load(self.file, mmap=True, weights_only=True).to(self.device)


def tensor_bytes(tensor: Tensor) -> int:
    """Return the size of a tensor in bytes."""
    return tensor.numel() * tensor.element_size()


def is_memory_backed(folder: Path) -> bool:
    """Whether a folder is on a file system in memory; False if unknown."""
    try:
        lines = _MOUNTS.read_text().splitlines()
    except OSError:
        return False
    path, kinds = folder.resolve(), {}
    for line in lines:
        _, mount, kind, *_ = line.split(" ")
        kinds[Path(mount.replace("\\040", " "))] = kind
    nearest = [parent for parent in (path, *path.parents) if parent in kinds]
    return bool(nearest) and kinds[nearest[0]] in _MEMORY_FILESYSTEMS
