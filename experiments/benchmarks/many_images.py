"""Memory and disk space of a run on thousands of images of 224 x 224 from a DataLoader.

`python -m experiments.benchmarks.many_images 5000` prints one line of JSON. The network is small,
so that the run is short; its first activations are half as large as those of ResNet-50. Weights and
images are random.
"""

import json
import resource
import sys
import time
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import entrim
from entrim.calibration.tensor_store import Scratch
from entrim.callbacks import ProgressEvent

SIDE, COARSE, CLASSES, SAMPLE = 224, 28, 100, 200
"""Height of an image and of its random pattern, outputs, and images on which a pass is timed."""
CHANNELS = (32, 48, 96, 192)


class Patterns(Dataset[Tensor]):
    """Smooth random images, generated when they are read."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Tensor:
        generator = torch.Generator().manual_seed(number)
        pattern = torch.randn(1, 3, COARSE, COARSE, generator=generator)
        return functional.interpolate(pattern, size=SIDE, mode="bilinear")[0]


def build_network() -> nn.Module:
    """Return a plain network of four convolutions of stride 2, in eval mode."""
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for inputs, outputs in zip((3, *CHANNELS), CHANNELS, strict=False):
            conv = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
            layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU()]
        last = nn.Linear(CHANNELS[-1], CLASSES)
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), last).eval()


class DiskMeter(entrim.Callback):
    """Records the largest number of bytes on disk after any step."""

    scratch: Scratch | None = None
    peak = 0

    def on_step(self, event: ProgressEvent) -> None:
        """Compare the present number of bytes with the largest."""
        if self.scratch is not None:
            self.peak = max(self.peak, self.scratch.used)


def pass_seconds(model: nn.Module, count: int) -> float:
    """Return the processor seconds of a forward pass of `count` images, from some of them."""
    images = torch.stack([Patterns(count)[number] for number in range(SAMPLE)])
    with torch.no_grad():
        model(images[:1])
        begin = time.process_time()
        for batch in images.split(50):
            model(batch)
    return (time.process_time() - begin) * count / SAMPLE


def measure(count: int) -> dict[str, Any]:
    """Return the costs of a run that halves all widths, with default options."""
    torch.set_num_threads(1)
    model = build_network()
    unit = pass_seconds(model, count)
    meter = DiskMeter()
    begin, cpu = time.perf_counter(), time.process_time()
    loader = DataLoader(Patterns(count), batch_size=50)
    with warnings.catch_warnings(), entrim.Pruner(model, loader, callbacks=[meter]) as pruner:
        warnings.simplefilter("ignore")
        meter.scratch = pruner.scratch
        result = pruner.prune(entrim.Widths(0.5))
    seconds, used = time.perf_counter() - begin, time.process_time() - cpu
    return {
        "GiB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "disk GiB": round(meter.peak / 2**30, 2),
        "pass cpu seconds": round(unit, 1),
        "cpu seconds": round(used, 1),
        "cpu passes": round(used / unit, 1),
        "seconds": round(seconds, 1),
        "stages": {stage: round(value, 1) for stage, value in result.record.seconds.items()},
        "notes": [note for note in result.record.notes if "limit" in note],
    }


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
