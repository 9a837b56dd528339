"""ONNX exports of the pre-trained networks of the assets, with their images."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from entrim.export.formats import to_onnx
from experiments.benchmarks.onnx_models import Run
from experiments.datasets import imagenet_samples, load_cifar10
from experiments.models import PRETRAINED, load_pretrained
from experiments.storage import cache_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedNetwork:
    """The ONNX export of a pre-trained network, with the labels of its held-out images."""

    name: str
    calibration: int = 500
    holdout_images: int = 5000
    sensitivity: None = None
    sensitivity_images: None = None

    def file(self) -> Path:
        """Return the file in the cache, exported if it is missing."""
        place = cache_folder() / "onnx" / f"{self.name}.onnx"
        if not place.exists():
            place.parent.mkdir(exist_ok=True)
            to_onnx(load_pretrained(self.name), self.images(8, False)).write(place)
        return place

    def images(self, count: int, holdout_images: bool) -> Tensor:
        """Return training images, or the last test images, in the order of `labels`."""
        return self._data(count, holdout_images)[0]

    def _data(self, count: int, holdout_images: bool) -> tuple[Tensor, Tensor]:
        if self.name.startswith("imagenet"):
            data = imagenet_samples(list(range(int(holdout_images), 1000, 2))[:count])
        elif holdout_images:
            data = load_cifar10("test")[-count:]
        else:
            train = load_cifar10("train")
            drawn = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
            data = train[drawn[:count]]
        return data.normalize(PRETRAINED[self.name].normalization), data.labels

    def agreement(self, pruned: Run, original: Run, images: Tensor) -> dict[str, float]:
        """Return the share of images with the same class, and both accuracies."""
        labels = self._data(len(images), True)[1]
        found, expected = (
            torch.cat([run(x) for x in images.split(100)]).argmax(1) for run in (pruned, original)
        )
        return {
            "same class": float((found == expected).double().mean()),
            "correct": float((found == labels).double().mean()),
            "correct before": float((expected == labels).double().mean()),
        }


NETWORKS = {
    name: ExportedNetwork(name=name)
    for name in ("cifar10_resnet20", "cifar10_resnet56", "cifar10_vgg16")
} | {
    "imagenet_resnet50": ExportedNetwork(
        name="imagenet_resnet50", calibration=200, holdout_images=300
    )
}
