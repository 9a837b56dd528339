"""Files of the experiments: the cache, atomic writing, locks, assets."""

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn

from entrim.errors import DataError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_SCRATCH = ".scratch-"
_DAY = 24 * 60 * 60


def cache_folder() -> Path:
    """Return the cache folder, created if missing: `ENTRIM_DATA`, or `~/.cache/entrim`.

    >>> cache_folder().is_dir()
    True
    """
    folder = Path(os.environ.get("ENTRIM_DATA") or Path.home() / ".cache" / "entrim")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"the cache {folder} cannot be created ({error}): set ENTRIM_DATA to a folder for it"
        ) from error
    return folder


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a folder of this process, on the disk of the cache, and remove it afterwards.

    A file written here can be moved into the cache in one step. Folders that killed processes left
    are removed after a day, when nobody can still be writing to them.
    """
    for old in cache_folder().glob(f"{_SCRATCH}*"):
        with suppress(FileNotFoundError):  # its process has just removed it
            if time.time() - old.stat().st_mtime > _DAY:
                shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=cache_folder()) as folder:
        yield Path(folder)


def asset(folder: str, name: str) -> Path:
    """Return the path of an existing asset: `folder/name` below `ENTRIM_ASSETS`."""
    root = os.environ.get("ENTRIM_ASSETS")
    if not root:
        raise DataError(
            f"{name} is looked for in the folder that the environment variable ENTRIM_ASSETS "
            f"names, and it is unset: set it to a folder that holds {folder}/{name}"
        )
    path = Path(root, folder, name)
    if not path.exists():
        raise DataError(f"{path} is missing: put it there, or point ENTRIM_ASSETS elsewhere")
    return path


def write(file: Path, content: bytes) -> None:
    """Replace `file` in one step, so that readers see the old or the new content.

    Only one process at a time may write a file.
    """
    part = file.with_name(f".{file.name}.part")
    try:
        with part.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextmanager
def lock_file(lock: Path, *, wait: bool = True) -> Iterator[None]:
    """Lock the file `lock` exclusively; without `wait`, BlockingIOError if another process has it.

    The lock of a killed process is released. Where files cannot be locked (Windows, some network
    file systems), only one process may run.
    """
    with lock.open("ab") as stream:
        if fcntl is not None:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise
            except OSError:  # a file system without locks
                pass
        yield


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """Return a checksum of the types, shapes and values of `tensors`, in this order."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def model_fingerprint(model: nn.Module) -> str:
    """Return the checksum of all parameters and buffers, shared ones once."""
    pairs = chain(model.named_parameters(), model.named_buffers())
    return fingerprint(tensor for _, tensor in pairs)
