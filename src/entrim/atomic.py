"""Files that are replaced in one step: whoever reads, or is killed, sees the old or the new."""

import hashlib
import os
from pathlib import Path


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
