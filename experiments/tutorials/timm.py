"""EfficientNet-Lite0 of timm, with trained weights, pruned and loaded again by timm alone."""

from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import entrim
from entrim.integrations.timm import save_timm
from experiments.datasets import imagenet_samples
from experiments.models import PRETRAINED, load_pretrained
from experiments.training import accuracy
from experiments.tutorials import copy_weights, read_folder

NAME, WEIGHTS = "tf_efficientnet_lite0", "imagenet_efficientnet_lite0"


def main(folder: Path) -> None:
    """Prune with 250 images, and print accuracies on 500 others."""
    timm: Any = import_module("timm")
    normalization = PRETRAINED[WEIGHTS].normalization
    fit, test = imagenet_samples(range(0, 1000, 4)), imagenet_samples(range(1, 1000, 2))
    model = copy_weights(timm.create_model(NAME), load_pretrained(WEIGHTS))

    result = entrim.sparsify(model, normalization(fit.images), entrim.Budget(macs=0.75))
    save_timm(result.model, model, folder / "small")

    text = (folder / "small/shapes.txt").read_text()
    loaded = timm.models.adapt_model_from_string(timm.create_model(NAME), text)
    timm.models.load_checkpoint(loaded, str(folder / "small/model.safetensors"))
    print(result.summary())
    with torch.no_grad():
        for name, network in {"original": model, "pruned": result.model, "loaded": loaded}.items():
            print(f"{name}: {accuracy(network.eval(), test, normalization):.1f} % of {len(test)}")


if __name__ == "__main__":
    main(read_folder(__doc__))
