"""The inputs and residual outputs of a layer with more columns than rows."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from entrim.calibration.collect import in_double
from entrim.calibration.consumers import BoundConsumer
from entrim.calibration.row_collector import RowCollector
from entrim.entropic.observations import Observations


@dataclass(slots=True)
class ResidualRows:
    """All rows of the inputs and residual outputs of a layer, used like `ResidualMoments`."""

    reader: BoundConsumer
    inputs: RowCollector
    residuals: list[Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, reader: BoundConsumer) -> "ResidualRows":
        """Return an empty set of rows."""
        return cls(reader, RowCollector(reader.geometry))

    @property
    def count(self) -> int:
        """The number of rows."""
        return self.inputs.count

    def add(self, x: Tensor, residual: Tensor) -> None:
        """Add one batch of inputs and of residuals at the outputs."""
        if len(x) == 0:
            return
        self.inputs.add(in_double(x))
        rank = len(self.reader.geometry.kernel)
        self.residuals.append(in_double(residual.movedim(-1 - rank, -1).flatten(0, -2)))

    def add_rows(
        self, rows: Float[Tensor, "groups rows n"], residual: Float[Tensor, "rows M"]
    ) -> None:
        """Add patches of the inputs, and the residual at the same positions."""
        self.inputs.add_rows(in_double(rows))
        self.residuals.append(in_double(residual))

    def moments(self) -> list[Observations]:
        """Return the regression of the residual, one for each matrix of the layer."""
        targets = torch.cat(self.residuals).cpu().unflatten(1, (self.reader.geometry.groups, -1))
        return [
            Observations(inputs=rows, targets=targets[:, number])
            for number, rows in enumerate(self.inputs.rows().cpu())
        ]
