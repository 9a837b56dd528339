"""Where tensors wait: in memory up to a limit, beyond it in a scratch folder on disk."""

import tempfile
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor


@dataclass(slots=True)
class TensorStore:
    """Keeps values under a key; a tensor that would exceed `limit` bytes is written to disk.

    The scratch folder is made when the first tensor needs it, and goes when the `with` ends.
    """

    limit: int
    held: int = 0
    values: dict[Hashable, Any] = field(default_factory=dict)
    folder: tempfile.TemporaryDirectory[str] | None = None
    written: int = 0

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
        """Forget all values and remove the scratch folder."""
        self.values.clear()
        self.held = 0
        if self.folder is not None:
            self.folder.cleanup()
            self.folder = None

    def put(self, key: Hashable, value: Any) -> None:
        """Keep `value`; anything but a tensor stays in memory and does not count."""
        self.drop(key)
        if isinstance(value, Tensor):
            if self.held + _size(value) > self.limit:
                value = self._write(value)
            else:
                self.held += _size(value)
        self.values[key] = value

    def get(self, key: Hashable) -> Any:
        """Return the value under `key`, read back from disk where it lies there."""
        value = self.values[key]
        return value.read() if isinstance(value, _Spilled) else value

    def drop(self, key: Hashable) -> None:
        """Forget the value under `key`, if any."""
        value = self.values.pop(key, None)
        if isinstance(value, Tensor):
            self.held -= _size(value)
        elif isinstance(value, _Spilled):
            value.file.unlink()

    def _write(self, tensor: Tensor) -> "_Spilled":
        if self.folder is None:
            self.folder = tempfile.TemporaryDirectory(prefix="entrim-")
        file = Path(self.folder.name, f"{self.written}.pt")
        self.written += 1
        torch.save(tensor.detach().cpu().clone(), file)
        return _Spilled(file, tensor.device)


@dataclass(frozen=True, slots=True)
class _Spilled:
    file: Path
    device: torch.device

    def read(self) -> Tensor:
        return torch.load(self.file, mmap=True, weights_only=True).to(self.device)


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
