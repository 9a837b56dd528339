"""Collecting second moments of patches: by shifts of the feature map, against unfolding."""

import multiprocessing
from collections.abc import Iterator
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from entrim.calibration.patch_gram import Geometry, PatchGram
from experiments.benchmarks.record import check_line, measure_time, table
from experiments.benchmarks.wide_layer import peak_memory

LAYERS = (
    *((64, 32), (64, 16), (128, 16), (128, 8), (256, 8), (256, 8)),
    *((256, 4), (512, 4), (512, 4), (512, 2), (512, 2), (512, 2)),
)
"""Input channels and side of the map: conv1 to conv12 of VGG-16 on images of 32 x 32."""
IMAGES, FEW_IMAGES, BATCH = 500, 100, 50
PROCESSES = 3
GEOMETRY = Geometry(kernel=(3, 3), stride=(1, 1), dilation=(1, 1), padding=((1, 1), (1, 1)))


class UnfoldedGram:
    """The Gram by patches: float32 products of each batch, float64 sums."""

    def __init__(self, channels: int) -> None:
        self.gram_sum = torch.zeros(1, 9 * channels + 1, 9 * channels + 1, dtype=torch.float64)

    def add(self, x: Tensor) -> None:
        rows = F.unfold(x, 3, padding=1).transpose(1, 2).flatten(0, 1)
        z = F.pad(rows, (1, 0), value=1.0)
        self.gram_sum += z.T @ z


def create_sum(method: str, channels: int) -> UnfoldedGram | PatchGram:
    """Return an empty sum."""
    return UnfoldedGram(channels) if method == "unfolding" else PatchGram(GEOMETRY, channels, "cpu")


def batches(channels: int, side: int, images: int) -> Iterator[Tensor]:
    """Yield rectified noise in batches, generated one by one."""
    g = torch.Generator().manual_seed(0)
    for _ in range(images // BATCH):
        yield torch.relu(torch.randn(BATCH, channels, side, side, generator=g))


def compare(channels: int, side: int) -> tuple[float, float, float]:
    """Return the seconds by unfolding and by shifts, and the largest difference.

    Interleaved by batches, so that other load on the machine affects both.
    """
    both = create_sum("unfolding", channels), create_sum("shifts", channels)
    seconds = [0.0, 0.0]
    for x in batches(channels, side, IMAGES):
        for i, one in enumerate(both):
            seconds[i] += measure_time(lambda one=one, x=x: one.add(x))[1]
    sums = []
    for i, one in enumerate(both):
        total, reading = measure_time(lambda one=one: one.gram_sum[0])
        sums.append(total)
        seconds[i] += reading
    size = sums[0].diagonal().sqrt()
    apart = float(((sums[1] - sums[0]).abs() / (size[:, None] * size)).max())
    return seconds[0], seconds[1], apart


def peak_of_tensors(method: str, channels: int, side: int, images: int) -> int:
    """Return the peak memory of tensors in bytes, as PyTorch's profiler counts it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        _collect(method, channels, side, images)
    results = profiled.profiler and profiled.profiler.kineto_results
    assert results, "the profiler recorded nothing"
    changes: list[Any] = [event for event in results.events() if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    return max(accumulate(event.nbytes() for event in changes))


def peaks_of_process(method: str, channels: int, side: int, images: int) -> list[float]:
    """Return by how many MB each of a few new processes grew while collecting."""
    spawn, grown = multiprocessing.get_context("spawn"), []
    for _ in range(PROCESSES):
        with spawn.Pool(1) as process:
            grown.append(process.apply(_memory_growth, (method, channels, side, images)) / 1e6)
    return grown


def _memory_growth(method: str, channels: int, side: int, images: int) -> int:
    torch.set_num_threads(1)
    _collect(method, 16, side, BATCH)
    return peak_memory(partial(_collect, method, channels, side, images))


def _collect(method: str, channels: int, side: int, images: int) -> Tensor:
    gram = create_sum(method, channels)
    for x in batches(channels, side, images):
        gram.add(x)
    return gram.gram_sum


def collecting() -> str:
    """Measure both by layer: seconds, difference, and memory by the number of images."""
    _collect("shifts", 16, 4, BATCH)
    rows = []
    for number, (channels, side) in enumerate(LAYERS, start=1):
        slow, fast, apart = compare(channels, side)
        shape = f"{channels} x {side} x {side}"
        rows.append([f"conv{number}", shape, slow, fast, slow / fast, apart])
    slow, fast = (sum(row[i] for row in rows) for i in (2, 3))
    apart = max(row[5] for row in rows)
    rows.append(["sum", "", slow, fast, slow / fast, apart])
    header = ["layer", "inputs", "s by unfolding", "s by shifts", "faster", "largest difference"]
    return "\n\n".join(
        [
            f"## Collecting moments over conv1-conv12 of VGG-16, {IMAGES} images\n\nRectified "
            f"noise in batches of {BATCH}, interleaved; float32 products "
            f"and float64 sums on both sides, {torch.get_num_threads()} threads. An entry's "
            "difference is relative to the root of its two diagonal entries.",
            table(header, rows),
            check_line(f"at least 2.5 times faster in sum ({slow / fast:.1f})", slow / fast >= 2.5)
            + "\n"
            + check_line(f"both agree to 1e-6 ({apart:.1e})", apart <= 1e-6),
            _memory(),
        ]
    )


def _memory() -> str:
    rows, few_many = [], []
    for number in (1, 8):
        layer = LAYERS[number - 1]
        for method, images in (("shifts", FEW_IMAGES), ("shifts", IMAGES), ("unfolding", IMAGES)):
            tensors = peak_of_tensors(method, *layer, images)
            grown = peaks_of_process(method, *layer, images)
            span = f"{min(grown):.0f}-{max(grown):.0f}"
            rows.append([f"conv{number}", method, images, tensors / 1e6, span])
            few_many.append(tensors)
    same = all(few_many[i + 1] <= 1.001 * few_many[i] for i in (0, 3))
    header = ["layer", "method", "images", "MB of tensors", "MB of the process"]
    return "\n\n".join(
        [
            "Peak memory, batch and Gram included: what tensors held by PyTorch's profiler, "
            "and how far the resident size of a new process on one thread rose (VmHWM, Linux), "
            f"least and most of {PROCESSES} processes, which differ by what the allocator keeps.",
            table(header, rows),
            check_line(f"tensors hold as much for {IMAGES} images as for {FEW_IMAGES}", same),
        ]
    )
