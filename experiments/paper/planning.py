"""How long a plan will take on this machine."""

import time

import torch
from torch import nn
from torch.nn import functional as F

from experiments.models import ZOO

_BATCH = 32


def seconds_per_image(network: str, steps: int = 2) -> float:
    """Return what learning from one image takes here and now, measured on random images."""
    entry = ZOO[network]
    model: nn.Module = entry.model().train()
    images, labels = entry.images(_BATCH), torch.zeros(_BATCH, dtype=torch.long)
    seconds = []
    for _ in range(steps):
        begun = time.perf_counter()
        with torch.enable_grad():
            F.cross_entropy(model(images), labels).backward()
        seconds.append(time.perf_counter() - begun)
    return min(seconds) / _BATCH


def about(seconds: float) -> str:
    """Return a time as a plan tells it."""
    span = f"{seconds:.0f} seconds"
    for unit, size in (("minutes", 60), ("hours", 3600), ("days", 86_400)):
        if seconds >= 2 * size:
            span = f"{seconds / size:.0f} {unit}"
    threads = torch.get_num_threads()
    return f"about {span} here on {threads} thread{'s' * (threads > 1)}"
