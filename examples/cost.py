"""A cost of your own: the energy of a network, from a table of measurements.

A cost is a function of the width of every group. It must not increase when a group becomes
narrower. The table here has one entry for every 8 channels, so the budget uses widths that
are multiples of 8 (`round_to`): within a step of the table, a narrower group would save nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

import entrim

MICROJOULES = {  # made up; yours come from a power meter
    "0": {8: 10.0, 16: 18.0, 24: 25.0, 32: 31.0},
    "2": {8: 25.0, 16: 44.0, 24: 60.0, 32: 75.0},
    "4": {8: 8.0, 16: 15.0, 24: 21.0, 32: 26.0},
}
"""Measured energy of every layer, by the number of its channels."""


@dataclass(frozen=True)
class EnergyTable:
    """The energy of one image in microjoules."""

    table: Mapping[str, Mapping[int, float]]

    def __call__(self, widths: Mapping[str, int]) -> float:
        """Return the energy at these widths; widths between two entries cost the upper one."""
        return sum(
            min(energy for width, energy in entries.items() if width >= widths[group])
            for group, entries in self.table.items()
        )


def main() -> None:
    """Prune to 70 % of the energy, to half of the parameters, and to both."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    ).eval()
    images = torch.randn(200, 3, 12, 12)
    energy = EnergyTable(MICROJOULES)
    full = energy({"0": 32, "2": 32, "4": 32})
    print(f"original: {full:.0f} uJ")
    costs = {"energy": (energy, 0.7 * full)}
    budgets = {
        "energy": entrim.Budget(costs=costs, round_to=8),
        "parameters": entrim.Budget(params=0.5, round_to=8),
        "both": entrim.Budget(params=0.5, costs=costs, round_to=8),
    }
    with entrim.Pruner(model, images) as pruner:  # statistics are collected once
        for name, budget in budgets.items():
            record = pruner.prune(budget).record
            widths = {group.name: len(group.kept) for group in record.groups}
            share = record.after.params / record.before.params
            print(f"{name}: {energy(widths):.0f} uJ, {share:.0%} of the parameters, {widths}")


if __name__ == "__main__":
    main()
