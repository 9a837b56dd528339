"""Measured times: the speedup of a pruned network, and the duration of a planned training."""

import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.models import ZOO

_WARM_UP = 3
_REPEATS = 31
_BATCH = 32


@torch.no_grad()
def measure_speedup(big: nn.Module, small: nn.Module, images: Tensor) -> dict[str, Any]:
    """Return the median ratio of the times of two networks, and its interquartile range.

    Both networks are in eval mode. Their runs are interleaved, so that other load on the machine
    affects both.
    """
    ratios = [_seconds(big, images) / _seconds(small, images) for _ in range(_WARM_UP + _REPEATS)]
    low, median, high = statistics.quantiles(ratios[_WARM_UP:], n=4, method="inclusive")
    return {
        "speedup": median,
        "deviation": high - low,
        "batch": len(images),
        "repeats": _REPEATS,
    }


def _seconds(model: nn.Module, images: Tensor) -> float:
    begin = time.perf_counter()
    model(images)
    return time.perf_counter() - begin


def measure_seconds_per_image(network: str, steps: int = 2) -> float:
    """Return the time to train on one image on this machine, measured on random images."""
    entry = ZOO[network]
    model: nn.Module = entry.model().train()
    images, labels = entry.images(_BATCH), torch.zeros(_BATCH, dtype=torch.long)
    seconds = []
    for _ in range(steps):
        begin = time.perf_counter()
        with torch.enable_grad():
            F.cross_entropy(model(images), labels).backward()
        seconds.append(time.perf_counter() - begin)
    return min(seconds) / _BATCH


def describe_duration(seconds: float) -> str:
    """Return a duration in the unit that fits, with the number of threads."""
    text = f"{seconds:.0f} seconds"
    for unit, size in (("minutes", 60), ("hours", 3600), ("days", 86_400)):
        if seconds >= 2 * size:
            text = f"{seconds / size:.0f} {unit}"
    threads = torch.get_num_threads()
    return f"about {text} here on {threads} thread{'s' * (threads > 1)}"
