"""A dataset of five images, and how it is loaded."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from experiments import datasets
from experiments.datasets import Collection, Download, FetchEvent, Installed, Source

COUNTS = {"train": 3, "test": 2}
RNG = np.random.default_rng(0)
LABELS = {part: RNG.integers(0, 10, n).astype(np.uint8) for part, n in COUNTS.items()}
PIXELS = {part: RNG.integers(0, 256, (n, 1, 2, 5), np.uint8) for part, n in COUNTS.items()}
NAMES = tuple(f"{p}-{k}-ubyte" for p in ("train", "t10k") for k in ("labels-idx1", "images-idx3"))
NOWHERE = Source(Download("http://127.0.0.1:9/", NAMES), datasets.decode_idx)
"""A port on which nobody listens."""


def tiny_collection(*sources: Source) -> Collection:
    content = {p: LABELS[p].tobytes() + PIXELS[p].tobytes() for p in COUNTS}
    return Collection(
        name="tiny",
        image=(1, 2, 5),
        counts=COUNTS,
        sha256={part: hashlib.sha256(content[part]).hexdigest() for part in COUNTS},
        sources=sources,
    )


def installed_source(files: Path) -> Source:
    return Source(Installed(str(files), "dataset-tiny"), datasets.decode_idx)


def check(dataset: Collection, report: Callable[[FetchEvent], None] | None = None) -> None:
    for part in COUNTS:
        loaded = dataset.load(part, report)
        assert loaded.images.equal(torch.from_numpy(PIXELS[part]))
        assert loaded.labels.equal(torch.from_numpy(LABELS[part]).long())
