"""How many times faster one network is than another, timed in turns.

Whatever else a machine does then hits both; timed one after the other, it may hit one.
"""

import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn

_WARM_UP = 3
_TURNS = 31


@torch.no_grad()
def faster(big: nn.Module, small: nn.Module, images: Tensor) -> dict[str, Any]:
    """Return the median over the turns of time by time, and their interquartile range.

    Both networks are in eval mode.
    """
    ratios = [_seconds(big, images) / _seconds(small, images) for _ in range(_WARM_UP + _TURNS)]
    low, median, high = statistics.quantiles(ratios[_WARM_UP:], n=4, method="inclusive")
    return {"speedup": median, "spread": high - low, "batch": len(images), "turns": _TURNS}


def _seconds(model: nn.Module, images: Tensor) -> float:
    begin = time.perf_counter()
    model(images)
    return time.perf_counter() - begin
