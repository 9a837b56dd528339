"""Files of the experiments: the cache and the assets."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path

from torch import nn

from entrim.errors import DataError
from entrim.storage.checkpoint import fingerprint

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
            f"{name} is looked for in the folder of the environment variable ENTRIM_ASSETS, which "
            f"is unset: set it to a folder that contains {folder}/{name}"
        )
    path = Path(root, folder, name)
    if not path.exists():
        raise DataError(f"{path} is missing: put it there, or set ENTRIM_ASSETS to another folder")
    return path


def model_fingerprint(model: nn.Module) -> str:
    """Return the checksum of all parameters and buffers, shared ones once."""
    pairs = chain(model.named_parameters(), model.named_buffers())
    return fingerprint(tensor for _, tensor in pairs)
