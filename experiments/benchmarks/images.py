"""How many images, and how many positions of each: accuracy, kept sets and seconds on ResNet-20."""

from typing import Any

import torch

from experiments.benchmarks.cifar import Subject
from experiments.benchmarks.curves import INNER
from experiments.benchmarks.ledger import Ledger

NAME = "cifar10_resnet20"
COUNTS = (25, 50, 100, 250, 500, 1000, 2500, 10000)
POSITIONS = (4, 16, 64)


def measure_images(ledger: Ledger) -> None:
    """Measure the default at half the channels for growing numbers of images, then positions."""
    for count in COUNTS:
        ledger.point(f"{NAME} images {count}", lambda n=count: _half(n))
    for positions in POSITIONS:
        ledger.point(f"{NAME} positions {positions}", lambda p=positions: _half(500, positions=p))


def _half(count: int, **options: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    return Subject.of(NAME, count).sparsified(
        layers=INNER, widths={INNER: 0.5}, generator=generator, **options
    )
