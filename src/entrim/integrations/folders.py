"""The folders that other libraries load."""

from pathlib import Path

from entrim.errors import SaveError


def check_new_folder(place: Path) -> None:
    """Raise a SaveError unless `place` is missing or an empty folder."""
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise SaveError(f"{place} is not an empty folder: name a new one")
