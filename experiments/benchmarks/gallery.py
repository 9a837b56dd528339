"""Five networks before and after pruning, with charts, for the gallery in the documents.

`python -m experiments bench gallery` prunes the networks that are missing in its ledger, draws
their charts into docs/pictures/gallery and writes the table; with names of networks only those.
Needs ENTRIM_ASSETS. Nothing is trained after pruning. The random channels have the same widths and
the same reconstruction.
"""

import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import entrim
import entrim.onnx
from entrim.cli import demo
from entrim.export.formats import to_onnx
from experiments.benchmarks.cifar import REPORT, BenchmarkModel, accuracy
from experiments.benchmarks.record import Ledger, has_weights, table, write
from experiments.datasets import load_mnist
from experiments.models import LeNet
from experiments.normalization import MNIST

PICTURES = Path(__file__).parents[2] / "docs/pictures/gallery"
IMAGES, FEWER = 200, 100
"""Unlabeled images of a network, and of a large one."""
TRAINING = 20_000
"""Labeled images that LeNet is trained on."""


@dataclass(frozen=True, slots=True, eq=False)
class Exhibit:
    """A trained network with unlabeled images, and labeled images that it has not seen."""

    model: nn.Module
    images: Tensor
    test_images: Tensor
    test_labels: Tensor
    tested_on: str

    def accuracy(self, model: nn.Module) -> float:
        """Return the accuracy in percent on the test images."""
        return accuracy(model, self.test_images, self.test_labels, batch=100)


def digits() -> Exhibit:
    """Return the network of `entrim demo`, trained on the digits of scikit-learn."""
    torch.manual_seed(0)
    x, y = demo.digits()
    model = demo.network()
    demo.train(model, x[: demo.TRAINING], y[: demo.TRAINING])
    test = x[demo.TRAINING :], y[demo.TRAINING :]
    return Exhibit(model, x[: demo.CALIBRATION], *test, f"{len(test[0])} digits")


def cifar(name: str, images: int = IMAGES) -> Exhibit:
    """Return a network with training images and test images of CIFAR-10."""
    known = BenchmarkModel.of(name, images)
    test = known.test_images[REPORT], known.test_labels[REPORT]
    return Exhibit(known.model, known.images, *test, "CIFAR-10 test images 5,000-9,999")


def lenet() -> Exhibit:
    """Return LeNet, trained briefly on MNIST."""
    train, test = (load_mnist(part) for part in ("train", "test"))
    torch.manual_seed(0)
    model, x = LeNet(), train[:TRAINING].normalize(MNIST)
    demo.train(model, x, train.labels[:TRAINING], epochs=3, rate=1e-3)
    return Exhibit(model, x[:IMAGES], test.normalize(MNIST), test.labels, "MNIST test images")


def onnx() -> Exhibit:
    """Return ResNet-56 as an ONNX file, imported without the code of the network."""
    source = cifar("cifar10_resnet56")
    with tempfile.TemporaryDirectory() as folder:
        to_onnx(source.model, source.images[:64]).write(file := Path(folder, "resnet56.onnx"))
        model = entrim.onnx.load(file)
    return Exhibit(model, source.images, source.test_images, source.test_labels, source.tested_on)


EXHIBITS: dict[str, tuple[str, Callable[[], Exhibit], entrim.Budget]] = {
    "digits": ("the network of `entrim demo`", digits, entrim.Budget(params=0.05)),
    "lenet": ("LeNet", lenet, entrim.Budget(params=0.1)),
    "resnet20": ("ResNet-20", lambda: cifar("cifar10_resnet20"), entrim.Budget(macs=0.5)),
    "vgg16": ("VGG-16", lambda: cifar("cifar10_vgg16", FEWER), entrim.Budget(params=0.1)),
    "onnx": ("ResNet-56 as an ONNX file", onnx, entrim.Budget(macs=0.5)),
}
"""The title, the network and the budget by name."""


def measure(name: str) -> dict[str, Any]:
    """Prune a network, draw its charts, and return its figures."""
    _, build, budget = EXHIBITS[name]
    exhibit = build()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = entrim.sparsify(exhibit.model, exhibit.images, budget)
        widths = {group.name: len(group.kept) for group in result.record.groups}
        random = entrim.sparsify(
            exhibit.model, exhibit.images, entrim.Widths(widths), selector="random"
        )
    PICTURES.mkdir(exist_ok=True)
    for chart in ("network", "macs"):
        result.plot(chart).save(PICTURES / f"{name}-{chart}.svg")
    record = result.record
    assert record.holdout is not None
    assert record.holdout.agreement is not None
    return {
        "tested on": exhibit.tested_on,
        "images": len(exhibit.images),
        "params": [record.before.params, record.after.params],
        "macs": [record.before.macs, record.after.macs],
        "accuracy": [exhibit.accuracy(net) for net in (exhibit.model, result.model, random.model)],
        "agreement": [record.holdout.agreement.value, record.holdout.images],
        "seconds": sum(record.seconds.values()),
    }


def main(parts: Sequence[str]) -> None:
    """Measure what is missing, and write the table of all known networks."""
    if not has_weights():
        return
    ledger = Ledger.open("gallery")
    for name in parts or EXHIBITS:
        ledger.point(name, lambda name=name: measure(name))
    points = ledger.points()
    rows = []
    for name, (title, _, _) in EXHIBITS.items():
        if (point := points.get(name)) is not None:
            (full, small), (macs, fewer) = point["params"], point["macs"]
            before, after, random = point["accuracy"]
            sizes = [f"{full:,}", f"{small:,}", f"{macs:,}", f"{fewer:,}"]
            rows.append([title, *sizes, before, after, random, point["tested on"], point["images"]])
    header = (
        *("network", "parameters", "after", "MACs", "after", "accuracy, %", "after"),
        *("random channels", "tested on", "images"),
    )
    print(write("gallery", "python -m experiments bench gallery", [table(header, rows)]))
