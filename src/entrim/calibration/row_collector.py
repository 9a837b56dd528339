"""Collect the input patches of a layer, for layers with more columns than rows."""

import torch
from jaxtyping import Float
from torch import Tensor

from entrim.calibration.conv_geometry import Geometry
from entrim.calibration.patch_gram import patches


class RowCollector:
    """All rows of a layer, batch by batch; used like a `PatchGram`."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry, self.count = geometry, 0
        self._parts: list[Tensor] = []

    def add(self, x: Tensor) -> None:
        """Add a batch of layer inputs (N, D, *spatial), or (N, ..., D) of a linear layer."""
        self.add_rows(patches(x.detach(), self.geometry))

    def add_rows(self, rows: Float[Tensor, "groups rows n"]) -> None:
        """Add patches, as `patches` returns them."""
        self._parts.append(rows)
        self.count += rows.shape[1]

    def rows(self) -> Float[Tensor, "groups T n"]:
        """Return all rows."""
        return torch.cat(self._parts, 1)
