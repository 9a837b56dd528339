"""The folder that keeps what is slow to make or to fetch."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from entrim.errors import DataError

_SCRATCH = ".scratch-"
_DAY = 24 * 60 * 60


def cache_folder() -> Path:
    """Return the folder, made when missing: `ENTRIM_DATA`, or `~/.cache/entrim`.

    >>> cache_folder().is_dir()
    True
    """
    folder = Path(os.environ.get("ENTRIM_DATA") or Path.home() / ".cache" / "entrim")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"the cache {folder} cannot be made ({error}): set ENTRIM_DATA to a folder for it"
        ) from error
    return folder


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a folder of this process alone, on the disk of the cache, and remove it afterwards.

    A file made here moves into the cache in one step. What killed processes left is removed after
    a day, when nobody can still be writing to it.
    """
    for old in cache_folder().glob(f"{_SCRATCH}*"):
        with suppress(FileNotFoundError):  # its process has just removed it
            if time.time() - old.stat().st_mtime > _DAY:
                shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=cache_folder()) as folder:
        yield Path(folder)
