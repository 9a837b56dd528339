"""Files that are replaced atomically: a reader, or a killed writer, leaves the old or the new."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import lock_descriptor

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


def write(file: Path, content: bytes) -> None:
    """Replace `file` atomically with `content`, flushed to disk before returning.

    A killed write leaves a temporary file, which the next write of the same file overwrites. Only
    one process at a time may write a file.
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
    """Flush the directory entries of `place` to disk, on systems that support it."""
    if os.name != "posix":
        return
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def exclusive_lock(lock: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the file `lock` exclusively; the lock of a killed process is released.

    Without `wait`, raise BlockingIOError if another process holds it. The content of the file does
    not change, so a data file can be its own lock: `filelock.FileLock` would truncate it. On file
    systems without locks, nothing is locked, and only one process may run.
    """
    with lock.open("ab") as stream:
        try:
            locked = lock_descriptor(stream.fileno(), blocking=wait)
        except OSError:  # a file system without locks
            locked = True
        if not locked:
            raise BlockingIOError(f"{lock} is locked by another process: wait for it")
        yield


@contextmanager
def shared_lock(lock: Path) -> Iterator[None]:
    """Hold the file `lock` together with other shared locks; `exclusive_lock` is kept out.

    filelock has no shared locks on existing files. On Windows, nothing is locked.
    """
    with lock.open("ab") as stream:
        if fcntl is not None:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(stream, fcntl.LOCK_SH)
        yield
