"""The number of images and of positions in each: accuracy, kept channels, seconds."""

from typing import Any

from entrim import Calibration, Widths
from experiments.benchmarks.cifar import BenchmarkModel
from experiments.benchmarks.curves import INNER
from experiments.benchmarks.record import Ledger

NAME = "cifar10_resnet20"
COUNTS = (25, 50, 100, 250, 500, 1000, 2500, 10000)
POSITIONS = (4, 16, 64)


def measure_images(ledger: Ledger) -> None:
    """Measure the default at half the channels by the number of images, then of positions."""
    for count in COUNTS:
        ledger.point(f"{NAME} images {count}", lambda n=count: _prune_half(n))
    for positions in POSITIONS:
        calibration = Calibration(n_positions=positions)
        ledger.point(
            f"{NAME} positions {positions}",
            lambda c=calibration: _prune_half(500, calibration=c),
        )


def _prune_half(count: int, **options: Any) -> dict[str, Any]:
    return BenchmarkModel.of(NAME, count).prune(include=INNER, budget=Widths(0.5), **options)
