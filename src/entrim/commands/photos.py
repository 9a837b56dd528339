"""Image files of a folder, read by Pillow."""

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from entrim.errors import CommandError, MissingExtraError

_DEEP = 65535
"""The largest value of 16 bits; 257 of them are one of a byte."""


def image_files(path: Path) -> list[Path]:
    """Return the image files in a folder and the folders inside it, in order of their names."""
    return _sorted_out(path)[0]


def read_files(path: Path, files: Sequence[Path], colour: bool, resize: Any) -> np.ndarray:
    """Return (images, channels, height, width) between 0 and 255, bytes or finer.

    How many of the folder's files are none of images is told once.
    """
    _tell_left_out(path, len(_sorted_out(path)[1]))
    pixels = [_pixels(file, colour, resize) for file in files]
    shapes = sorted({array.shape[-2:] for array in pixels})
    if len(shapes) > 1:
        raise CommandError(
            f"the images in {path} have {len(shapes)} sizes, such as {shapes[0]} and {shapes[-1]}: "
            "pass --resize H,W"
        )
    return np.stack(pixels)


def _sorted_out(path: Path) -> tuple[list[Path], list[Path]]:
    """Return the image files and the others, told apart by their suffixes."""
    known = _suffixes()
    try:
        files = sorted(entry for entry in path.rglob("*") if entry.is_file())
    except OSError as error:
        raise CommandError(f"{path} cannot be read ({error}): mend its permissions") from error
    images = [file for file in files if file.suffix.lower() in known]
    if not images:
        raise CommandError(
            f"{path} holds no image file: name a folder with PNG, JPEG or other files that Pillow "
            "reads"
        )
    return images, [file for file in files if file.suffix.lower() not in known]


@cache
def _tell_left_out(path: Path, number: int) -> None:
    if number:
        files = f"{number} file{'s' * (number != 1)}"
        print(f"{path}: {files} without the suffix of an image left out", file=sys.stderr)


@cache
def _suffixes() -> frozenset[str]:
    """Return the suffixes of images that Pillow reads; some it writes only, or only recognises."""
    Image = _pillow()
    from PIL.ImageFile import StubImageFile

    known = Image.registered_extensions()
    opened = {kind for kind, (by, _) in Image.OPEN.items() if not _is(by, StubImageFile)}
    return frozenset(suffix for suffix, kind in known.items() if kind in opened | {"MPO"})  # a JPEG


def _is(found: Any, kind: type) -> bool:
    return isinstance(found, type) and issubclass(found, kind)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("reading image files", "pillow", "cli") from error
    return Image


def _pixels(file: Path, colour: bool, resize: Sequence[int] | None) -> np.ndarray:
    Image = _pillow()
    try:
        with Image.open(file) as opened:
            deep = opened.mode == "F" or opened.mode.startswith("I")
            picture = _levelled(opened, file) if deep else opened.convert("RGB" if colour else "L")
        if resize is not None:
            high, wide = resize[0], resize[-1]
            picture = picture.resize((wide, high), Image.Resampling.BILINEAR)
    except CommandError:
        raise
    except (OSError, ValueError, SyntaxError) as error:
        raise CommandError(f"{file} cannot be read ({error}): repair or remove it") from error
    array = np.asarray(picture)
    if array.ndim == 3:
        return np.ascontiguousarray(array.transpose(2, 0, 1))
    return np.repeat(array[None], 3 if colour else 1, 0)


def _levelled(picture: Any, file: Path) -> Any:
    """Return a grey picture of more than 8 bits as floats from 0 to 255, not clipped to bytes."""
    values = np.asarray(picture)
    low, high = values.min(), values.max()
    if picture.mode == "F" or low < 0 or high > _DEEP:
        raise CommandError(
            f"{file} holds {'floats' if picture.mode == 'F' else 'numbers'} from {low:g} to "
            f"{high:g}, and nothing tells which of them is white: save the images as .npy, scaled "
            "as in training"
        )
    return _pillow().fromarray((values / (_DEEP / 255)).astype(np.float32))
