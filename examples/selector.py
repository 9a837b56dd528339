"""A selector of your own: rank channels by the size of what they contribute.

A selector has `select(statistics, k)`. If it also has `rank(statistics)`, a budget uses its order
directly; without it, a budget finds the widths by backward elimination and then calls `select`.

The criterion here is that of Wanda (Sun et al., 2023) for whole channels: the squared weights of
the layers that consume a channel, times the second moments of what they read there.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import entrim


@dataclass(frozen=True)
class ContributionSelector:
    """Keeps the channels with the largest contribution to the layers that consume them."""

    def scores(self, statistics: entrim.GroupStatistics) -> Tensor:
        """Return one score per channel, summed over all consumers."""
        total = torch.zeros(statistics.channels, dtype=torch.float64)
        for moments, weight in zip(statistics.moments, statistics.weights, strict=True):
            power = moments.gram_sum.diagonal()[1:] / moments.count  # the first entry is constant 1
            columns = weight.double().square().sum(0) * power
            total += columns.view(-1, moments.block).sum(1)
        return total

    def select(self, statistics: entrim.GroupStatistics, k: int) -> Tensor:
        """Return the indices of `k` channels to keep."""
        return self.scores(statistics).topk(k).indices

    def rank(self, statistics: entrim.GroupStatistics) -> Tensor:
        """Return all channels, the one to remove first at the front."""
        return self.scores(statistics).argsort(stable=True)

    def __str__(self) -> str:
        return "contribution"  # shown in the record and in the report


def main() -> None:
    """Prune one network with three selectors, and compare the error of the outputs."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10)),
    ).eval()
    images = torch.randn(200, 3, 12, 12)
    selectors = {"contribution": ContributionSelector(), "default": "auto", "random": "random"}
    for name, selector in selectors.items():
        result = entrim.sparsify(model, images, entrim.Budget(params=0.4), selector=selector)
        widths = {group.name: len(group.kept) for group in result.record.groups}
        print(f"{name:<12}  widths {widths}  error of the outputs {result.record.error:.3f}")


if __name__ == "__main__":
    main()
