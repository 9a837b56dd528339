"""From the files that a source delivers to labels and pixels, one byte each, labels first.

Every source of a dataset decodes to the same bytes, so one checksum holds for all of them.
"""

import gzip
import json
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from entrim.errors import MissingExtraError

Content = UInt8[np.ndarray, " bytes"]
_RECORD, _BATCH = 1 + 3 * 32 * 32, 10_000


def idx(folder: Path, part: str) -> Content:
    """Return the content of two idx files, plain or gzipped: MNIST's own format."""
    prefix = "train" if part == "train" else "t10k"
    labels, pixels = (
        _idx_body(_plain(folder, f"{prefix}-{name}-ubyte"), dims)
        for name, dims in (("labels-idx1", 1), ("images-idx3", 3))
    )
    return np.concatenate([labels, pixels])


def records(folder: Path, part: str) -> Content:
    """Return the content of CIFAR-10's binary batches: records of a label and three planes."""
    batches = [np.fromfile(folder / f"{name}.bin", np.uint8) for name in _batches(part)]
    rows = np.concatenate(batches).reshape(-1, _RECORD)
    return np.concatenate([rows[:, 0], rows[:, 1:].ravel()])


def sprites(folder: Path, part: str) -> Content:
    """Return the content of PNGs that hold one 32 x 32 image in every row, and JSON labels.

    The names of the label files are spelt as the package spells them.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("reading PNG files", "pillow", "experiments") from error

    pixels = []
    for name in _batches(part):
        with Image.open(folder / f"{name}.png") as sprite:
            rows = np.asarray(sprite.convert("RGB")).reshape(_BATCH, 32, 32, 3)
        pixels.append(rows.transpose(0, 3, 1, 2).ravel())
    labels = json.loads((folder / f"{part}_lables.json").read_bytes())
    return np.concatenate([np.array(labels, np.uint8), *pixels])


def _batches(part: str) -> list[str]:
    return [f"data_batch_{n}" for n in range(1, 6)] if part == "train" else ["test_batch"]


def _plain(folder: Path, name: str) -> bytes:
    packed = folder / f"{name}.gz"
    return gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / name).read_bytes()


def _idx_body(content: bytes, dims: int) -> Content:
    """Return what follows the header: two zeros, the type (8: bytes), a length a dimension."""
    if content[:4] != bytes([0, 0, 8, dims]):
        raise ValueError(f"this is no idx file of bytes in {dims} dimensions")
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dims)
