"""What ResNet-20 loses on its way to ONNX and to eight bits, whole and cut to half its MACs.

`python -m experiments bench export` measures everything that its ledger lacks, then writes the
table. Needs ENTRIM_ASSETS.
"""

import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import entrim
from entrim.export.formats import Exported, to_int8, to_onnx
from entrim.export.parity import Parity
from experiments.benchmarks.cifar import REPORT, Subject, interval
from experiments.benchmarks.ledger import Ledger, networks_at_hand
from experiments.benchmarks.record import table, write

NAME = "cifar10_resnet20"
BUDGET = 0.5
COUNTS = (500, 100, 30)
"""Images that int8 is calibrated on."""
HEADER = ("network", "file", "bytes", "relative error", "same class", "accuracy, %", "± (95 %)")
Outputs = tuple[Tensor, ...]


@cache
def subject() -> Subject:
    """Return the network with 500 training images, and the test images."""
    return Subject.of(NAME)


def half() -> nn.Module:
    """Return the network cut to half its MACs, nothing trained."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        budget = entrim.Budget(macs=BUDGET)
        return entrim.sparsify(subject().model, subject().images, budget=budget).model


def measured(model: nn.Module) -> dict[str, Any]:
    """Return what each file of `model` says to the test images that are reported on."""
    tests, images = subject().tests[REPORT], subject().images
    intact = _outputs(model, tests)
    plain = to_onnx(model, images)
    said = plain.outputs(tests)
    found = {"PyTorch": {"accuracy": _percent(intact)}}
    found["ONNX, float32"] = _row(plain, said, intact)
    for count in COUNTS:
        with warnings.catch_warnings():  # 30 images are few, on purpose
            warnings.simplefilter("ignore", UserWarning)
            eight = to_int8(plain, images[:count])
        found[f"ONNX, int8 from {count} images"] = _row(eight, eight.outputs(tests), said)
    return found


@torch.no_grad()
def _outputs(model: nn.Module, images: Tensor) -> Outputs:
    return (torch.cat([model(batch) for batch in images.split(500)]),)


def _row(made: Exported, said: Outputs, wanted: Outputs) -> dict[str, Any]:
    parity = Parity.of(said, wanted)
    return {
        "bytes": len(made.content),
        "relative": parity.relative,
        "same": f"{parity.same} of {parity.images}",
        "accuracy": _percent(said),
    }


def _percent(said: Outputs) -> float:
    return 100 * float((said[0].argmax(1) == subject().labels[REPORT]).double().mean())


def main() -> None:
    """Measure both networks, and write the table."""
    if not networks_at_hand():
        return
    ledger = Ledger.called("export")
    points = {
        "whole": ledger.point(f"{NAME} whole", lambda: measured(subject().model)),
        "half the MACs": ledger.point(f"{NAME} macs {BUDGET}", lambda: measured(half())),
    }
    columns = ("bytes", "relative", "same", "accuracy")
    rows = [
        [name, file, *(row.get(key, "–") for key in columns), interval(row["accuracy"])]
        for name, point in points.items()
        for file, row in point.items()
        if file != "key"
    ]
    text = (
        "CIFAR-10 test images 5,000 to 9,999; nothing trained after the cut. ONNX in float32 is "
        "compared with PyTorch, int8 with ONNX in float32."
    )
    print(write("Export", "python -m experiments bench export", [text, table(HEADER, rows)]))
