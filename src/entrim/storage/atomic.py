"""Files that are replaced in one step: whoever reads, or is killed, sees the old or the new."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


def write(file: Path, content: bytes) -> None:
    """Put `content` into `file` in one step, and on the disk before returning.

    What a killed write leaves behind has a name of its own, which the next write of the same file
    takes again. One process at a time may write a file.
    """
    part = file.with_name(f".entrim-{hashlib.sha256(file.name.encode()).hexdigest()[:32]}.part")
    try:
        with part.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(file.parent)


def sync_folder(place: Path) -> None:
    """Put the names in `place` on the disk, where the system lets a folder be opened."""
    if os.name != "posix":
        return
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def exclusive_lock(lock: Path, *, wait: bool = True) -> Iterator[None]:
    """Wait until no other process holds the file `lock`; a killed one does not keep others out.

    Without `wait` a BlockingIOError says that one does. Where files cannot be locked (Windows, some
    network file systems), there must be one process only.
    """
    with lock.open("ab") as stream:
        if fcntl is not None:
            _lock(stream, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield


@contextmanager
def shared_lock(lock: Path) -> Iterator[None]:
    """Hold the file `lock` with others that do, and keep out who wants to be `alone` with it."""
    with lock.open("ab") as stream:
        if fcntl is not None:
            _lock(stream, fcntl.LOCK_SH)
        yield


def _lock(stream: IO[bytes], flags: int) -> None:
    assert fcntl is not None
    try:
        fcntl.flock(stream, flags)
    except BlockingIOError:
        raise
    except OSError:  # a file system without locks
        pass
