"""Where a file is to be written: looked at before the work, not after it."""

import tempfile
from pathlib import Path

from entrim.errors import CommandError


def refuse_unwritable(place: Path) -> None:
    """Refuse a file that could not be written."""
    if place.is_dir():
        raise CommandError(f"{place} is a folder: name a file")
    folder = place.parent
    if not folder.is_dir():
        raise CommandError(f"there is no folder {folder}: make it, or name another file")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CommandError(
            f"{folder} cannot be written ({error.strerror}): name a file elsewhere"
        ) from error
