"""Batches of your own: convert those of a data loader to the inputs of the network.

By default the first entry of a tuple is the images, and a dict is passed on as keyword arguments.
For anything else `Calibration(batch_to_inputs=...)` takes a function of one batch that returns a
tensor, or a dict of keyword arguments of the network.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import entrim


class MaskedNet(nn.Module):
    """A classifier of images of which only some pixels are valid."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.classes = nn.Linear(32, 10)

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        """Return the logits of ten classes."""
        x = self.conv2(self.conv1(image * mask).relu()).relu()
        return self.classes(x.mean((2, 3)))


class Photos(Dataset[dict[str, Any]]):
    """Samples with more than the network needs, and under other names."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.pixels = torch.randn(count, 3, 12, 12, generator=generator)
        self.valid = (torch.rand(count, 1, 12, 12, generator=generator) > 0.2).float()

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "file": f"{index}.png",
            "pixels": self.pixels[index],
            "valid": self.valid[index],
            "label": index % 10,
        }


def from_dict(batch: dict[str, Any]) -> dict[str, Tensor]:
    """Return the arguments of the network from a batch of `Photos`."""
    return {"image": batch["pixels"], "mask": batch["valid"]}


def from_tuple(batch: tuple[Any, ...]) -> dict[str, Tensor]:
    """Return the arguments of the network from a batch of (file, pixels, valid, label)."""
    _, pixels, valid, _ = batch
    return {"image": pixels, "mask": valid}


def as_tuples(samples: list[dict[str, Any]]) -> tuple[Any, ...]:
    """Collate samples to one tuple, as many data loaders do."""
    columns = zip(*(sample.values() for sample in samples), strict=True)
    return tuple(torch.stack(c) if isinstance(c[0], Tensor) else list(c) for c in columns)


def main() -> None:
    """Prune with batches that are dicts, and with the same images as tuples."""
    torch.manual_seed(0)
    model, photos = MaskedNet().eval(), Photos(200)
    results = []
    for name, loader, convert in (
        ("dicts", DataLoader(photos, batch_size=50), from_dict),
        ("tuples", DataLoader(photos, batch_size=50, collate_fn=as_tuples), from_tuple),
    ):
        calibration = entrim.Calibration(batch_to_inputs=convert)
        results.append(
            entrim.sparsify(model, loader, entrim.Budget(params=0.5), calibration=calibration)
        )
        record = results[-1].record
        print(f"{name}: {record.images} images, {record.before.params} -> {record.after.params}")
    same = results[0].plan.kept == results[1].plan.kept
    print("the same channels are kept:", same)


if __name__ == "__main__":
    main()
