"""The accuracy of ResNet-20 as ONNX and in eight bits, original and pruned to half its MACs.

`python -m experiments bench export` measures what is missing in its ledger, then writes the table.
Needs ENTRIM_ASSETS.
"""

import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import entrim
from entrim.export.formats import Exported, to_int8, to_onnx
from entrim.export.parity import Parity
from experiments.benchmarks.cifar import REPORT, BenchmarkModel, interval
from experiments.benchmarks.record import Ledger, has_weights, table, write

NAME = "cifar10_resnet20"
BUDGET = 0.5
COUNTS = (500, 100, 30)
"""Calibration images for int8."""
HEADER = ("network", "file", "bytes", "relative error", "same class", "accuracy, %", "± (95 %)")
Outputs = tuple[Tensor, ...]


@cache
def benchmark_model() -> BenchmarkModel:
    """Return the network with 500 training images, and the test images."""
    return BenchmarkModel.of(NAME)


def prune_to_half() -> nn.Module:
    """Return the network pruned to half its MACs, not trained."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tested, budget = benchmark_model(), entrim.Budget(macs=BUDGET)
        return entrim.sparsify(tested.model, tested.images, budget).model


def measure_files(model: nn.Module) -> dict[str, Any]:
    """Return size and accuracy of each file of `model`."""
    tests, images = benchmark_model().test_images[REPORT], benchmark_model().images
    intact = _outputs(model, tests)
    plain = to_onnx(model, images)
    single = plain.outputs(tests)
    found = {"PyTorch": {"accuracy": _accuracy(intact)}}
    found["ONNX, float32"] = _row(plain, single, intact)
    for count in COUNTS:
        with warnings.catch_warnings():  # 30 images are few, on purpose
            warnings.simplefilter("ignore", UserWarning)
            eight = to_int8(plain, images[:count])
        found[f"ONNX, int8 from {count} images"] = _row(eight, eight.outputs(tests), single)
    return found


@torch.no_grad()
def _outputs(model: nn.Module, images: Tensor) -> Outputs:
    return (torch.cat([model(batch) for batch in images.split(500)]),)


def _row(exported: Exported, outputs: Outputs, reference: Outputs) -> dict[str, Any]:
    parity = Parity.of(outputs, reference)
    return {
        "bytes": len(exported.content),
        "relative": parity.relative,
        "same": f"{parity.same} of {parity.images}",
        "accuracy": _accuracy(outputs),
    }


def _accuracy(outputs: Outputs) -> float:
    labels = benchmark_model().test_labels[REPORT]
    return 100 * float((outputs[0].argmax(1) == labels).double().mean())


def main() -> None:
    """Measure both networks, and write the table."""
    if not has_weights():
        return
    ledger = Ledger.open("export")
    points = {
        "whole": ledger.point(f"{NAME} whole", lambda: measure_files(benchmark_model().model)),
        "half the MACs": ledger.point(
            f"{NAME} macs {BUDGET}", lambda: measure_files(prune_to_half())
        ),
    }
    columns = ("bytes", "relative", "same", "accuracy")
    rows = [
        [name, file, *(row.get(key, "–") for key in columns), interval(row["accuracy"])]
        for name, point in points.items()
        for file, row in point.items()
        if file != "key"
    ]
    text = (
        "CIFAR-10 test images 5,000 to 9,999; nothing trained after pruning. ONNX in float32 is "
        "compared with PyTorch, int8 with ONNX in float32."
    )
    print(write("Export", "python -m experiments bench export", [text, table(HEADER, rows)]))
