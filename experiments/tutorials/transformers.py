"""ResNet-50 of transformers, with trained weights, pruned and loaded by `from_pretrained`."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import entrim
from entrim.integrations.transformers import save_transformers
from experiments.datasets import Dataset, imagenet_samples
from experiments.models import PRETRAINED, load_pretrained
from experiments.tutorials import read_folder

WEIGHTS = "imagenet_resnet50"
_RENAMES = {
    r"^layer(\d)\.(\d)\.(?:conv|bn)(\d)": r"resnet.encoder.stages.\1.layers.\2.layer.\3",
    r"^layer(\d)\.(\d)\.downsample\.[01]": r"resnet.encoder.stages.\1.layers.\2.shortcut",
    r"^(?:conv|bn)1": "resnet.embedder.embedder",
    r"^fc": "classifier.1",
}
SIDE = 144
"""Side of the images: smaller than in the training, so that the program is fast."""
_EPS = 1e-3 - 1e-5
"""Difference between the eps of BatchNorm in Keras and in transformers."""


def resnet50() -> Any:
    """Return the ResNet-50 of transformers, with strides as in Keras and trained weights."""
    transformers: Any = import_module("transformers")
    settings = transformers.ResNetConfig(num_labels=1000, downsample_in_bottleneck=True)
    model = transformers.ResNetForImageClassification(settings)
    state = {rename(name): value for name, value in load_pretrained(WEIGHTS).state_dict().items()}
    for name, value in state.items():
        if name.endswith("running_var"):
            value += _EPS
    model.load_state_dict(state)
    return model.eval()


def rename(name: str) -> str:
    """Return the name of a tensor in transformers, where stages and layers are counted from 0.

    >>> rename("layer1.0.bn2.weight")
    'resnet.encoder.stages.0.layers.0.layer.1.normalization.weight'
    """
    stem, leaf = name.rsplit(".", 1)
    is_norm = "bn" in stem or stem.endswith("downsample.1")
    kind = "" if stem == "fc" else ".normalization" if is_norm else ".convolution"
    for pattern, replacement in _RENAMES.items():
        stem = re.sub(pattern, replacement, stem)
    stem = re.sub(r"(stages|layer)\.(\d)", lambda m: f"{m[1]}.{int(m[2]) - 1}", stem)
    return f"{stem}{kind}.{leaf}"


def prepare(images: Tensor) -> Tensor:
    """Return images as inputs of the network."""
    pixels = PRETRAINED[WEIGHTS].normalization(images)
    return F.interpolate(pixels, (SIDE, SIDE), mode="bilinear", antialias=True)


@torch.no_grad()
def accuracy(model: nn.Module, data: Dataset) -> float:
    """Return the percentage of images that `model` classifies correctly."""
    pairs = zip(data.images.split(50), data.labels.split(50), strict=True)
    hits = sum(int((model(prepare(x)).logits.argmax(1) == y).sum()) for x, y in pairs)
    return 100 * hits / len(data)


def main(folder: Path) -> None:
    """Prune with 125 images, and print accuracies on 125 others."""
    transformers: Any = import_module("transformers")
    fit, test = (imagenet_samples(range(start, 1000, 8)) for start in (0, 1))
    model = resnet50()

    result = entrim.sparsify(model, prepare(fit.images), entrim.Budget(macs=0.8))
    save_transformers(result.model, folder / "small", record=result.record)
    automatic = transformers.AutoModelForImageClassification
    loaded = automatic.from_pretrained(folder / "small", trust_remote_code=True)

    print(result.summary())
    for name, network in {"original": model, "loaded": loaded}.items():
        print(f"{name}: {accuracy(network.eval(), test):.1f} % of {len(test)}")


if __name__ == "__main__":
    main(read_folder(__doc__))
