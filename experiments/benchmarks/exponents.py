"""How the time of collecting and solving one layer grows with its sizes, as fitted exponents."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import entrim
from entrim.calibration.collect import rows_for
from entrim.calibration.patch_gram import Geometry, PatchGram, in_double, patches
from entrim.entropic.moments import Moments
from entrim.selection.elimination import elimination_order
from experiments.benchmarks.record import table

SIDE, FACTORS, BATCH, REPEATS = 14, 48, 50, 3
WORKS = {
    "collect, all positions": "the Gram matrix of all patches",
    "collect, sampled": "the Gram matrix of as many patches as a layer needs",
    "rank": "backward elimination of all channels",
    "solve": "the entropic problem with the default penalty",
    "refit": "least squares on half of the channels",
}


@dataclass(frozen=True, slots=True)
class LayerShape:
    """A convolution with stride 1 on maps of 14 x 14, and its number of images."""

    channels: int = 32
    kernel: int = 3
    outputs: int = 128
    images: int = 500

    @property
    def geometry(self) -> Geometry:
        """The geometry of the convolution, padded to keep the size of the map."""
        pad = self.kernel // 2
        return Geometry(
            kernel=(self.kernel,) * 2, stride=(1, 1), dilation=(1, 1), padding=((pad, pad),) * 2
        )

    @property
    def columns(self) -> int:
        """Number of columns of the regression."""
        return self.channels * self.kernel**2

    def maps(self) -> Tensor:
        """Return rectified mixtures of a few smooth factors with some noise."""
        g = torch.Generator().manual_seed(0)
        coarse = torch.randn(self.images, FACTORS, 4, 4, generator=g)
        smooth = F.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear", align_corners=True)
        mixing = torch.randn(self.channels, FACTORS, generator=g) / FACTORS**0.5
        own = 0.3 * torch.randn(self.images, self.channels, SIDE, SIDE, generator=g)
        return torch.relu(torch.einsum("dk,nkhw->ndhw", mixing, smooth) + own - 0.2)

    def collect(self, maps: Tensor) -> PatchGram:
        """Return the sums over all positions."""
        sums = PatchGram(self.geometry, self.channels)
        for batch in maps.split(BATCH):
            sums.add(in_double(batch))
        _ = sums.gram_sum
        return sums

    def collect_sampled(self, maps: Tensor) -> PatchGram:
        """Return the sums over random positions, as many as the automatic number."""
        sums = PatchGram(self.geometry, self.channels)
        drawn = min(SIDE**2, -(-rows_for(self.columns) // self.images))
        for batch in maps.split(BATCH):
            positions = torch.rand(len(batch), SIDE**2).topk(drawn, 1).indices
            sums.add_rows(in_double(patches(batch, self.geometry, positions)))
        _ = sums.gram_sum
        return sums

    def moments(self, sums: PatchGram) -> Moments:
        """Return the moments with the outputs of random weights, scaled to unit variance."""
        g = torch.Generator().manual_seed(1)
        importance = torch.rand(self.channels, generator=g).pow(3)
        weight = torch.randn(self.columns, self.outputs, generator=g, dtype=torch.float64)
        weight *= importance.repeat_interleave(self.kernel**2)[:, None]
        gram, weight = sums.gram_sum[0], torch.cat([torch.zeros_like(weight[:1]), weight])
        mean = gram[0] @ weight / sums.count
        power = float((weight * (gram @ weight)).sum()) / sums.count / self.outputs
        weight /= max(power - float(mean.square().mean()), 1e-12) ** 0.5
        cross = gram @ weight
        return Moments(
            count=sums.count,
            gram_sum=gram,
            cross_sum=cross,
            target_sum_sq=float((weight * cross).sum()),
            block=self.kernel**2,
        )

    def measure(self) -> dict[str, float]:
        """Return the processor seconds of each work."""
        maps = self.maps()
        moments = self.moments(self.collect(maps))
        works: Mapping[str, Callable[[], object]] = {
            "collect, all positions": lambda: self.collect(maps),
            "collect, sampled": lambda: self.collect_sampled(maps),
            "rank": lambda: elimination_order([moments]),
            "solve": lambda: entrim.solve(moments),
            "refit": lambda: entrim.refit(moments, list(range(self.channels // 2))),
        }
        assert works.keys() == WORKS.keys()
        return {name: round(_cpu_seconds(work), 4) for name, work in works.items()}


SWEEPS: Mapping[str, tuple[str, Sequence[int]]] = {
    "images": ("images", (125, 250, 500, 1000, 2000)),
    "channels": ("channels D", (16, 32, 64, 128)),
    "kernel": ("kernel k", (1, 3, 5)),
    "outputs": ("outputs M", (32, 128, 512, 2048)),
}


def measure_sweep(size: str) -> dict[str, Any]:
    """Return the seconds of each work for every value of one size, with the others as usual."""
    return {
        str(value): replace(LayerShape(), **{size: value}).measure() for value in SWEEPS[size][1]
    }


def fit_exponent(sizes: Sequence[int | float], seconds: Sequence[int | float]) -> float:
    """Return the slope of the least-squares line through the logarithms.

    >>> fit_exponent([1, 2, 4], [3, 12, 48])
    2.0
    """
    logs = [torch.tensor(values, dtype=torch.float64).log() for values in (sizes, seconds)]
    return round(statistics.linear_regression(*(one.tolist() for one in logs)).slope, 6)


def exponent_table(points: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the seconds at the ends of every sweep, and the fitted exponents, by work."""
    rows = []
    for work, meaning in WORKS.items():
        cells = []
        for size, (_, values) in SWEEPS.items():
            seconds = [points[size][str(value)][work] for value in values]
            slope = fit_exponent(values, seconds)
            cells.append(f"{slope:.2f} ({seconds[0]:.3g} to {seconds[-1]:.3g} s)")
        rows.append((work, meaning, *cells))
    ranges = [f"{name}, {values[0]} to {values[-1]}" for name, values in SWEEPS.values()]
    return table(("work", "what is timed", *ranges), rows)


def _cpu_seconds(work: Callable[[], object]) -> float:
    """Return the median of the processor seconds of a few runs."""
    seconds = []
    for _ in range(REPEATS):
        begin = time.process_time()
        work()
        seconds.append(time.process_time() - begin)
    return statistics.median(seconds)
