"""The loop that both methods share: try a w, keep it only if F does not rise, know when to stop."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from entrim.solver.objective import Objective, Point
from entrim.solver.solution import Outcome

THRESHOLD = 1e-6
"""A channel below this importance goes (the paper's value)."""


@dataclass(slots=True)
class Descent:
    """The way down so far. With `pinned`, no channel goes: w is held at the threshold instead."""

    point: Point
    tol: float
    max_solves: int
    pinned: bool = False
    trace: list[float] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    stalled: bool = False

    @classmethod
    def start(
        cls,
        objective: Objective,
        w: Float[Tensor, " D"],
        *,
        tol: float,
        max_solves: int,
        pinned: bool = False,
    ) -> "Descent":
        """Solve the first ridge at `w`."""
        point = objective.at(w)
        return cls(point, tol, max_solves, pinned, [point.loss], [len(w)])

    @property
    def floor(self) -> float:
        """The smallest w that a step may propose."""
        return THRESHOLD if self.pinned else 0.0

    @property
    def certificate(self) -> float:
        """The optimality residual of the present point."""
        return self.point.certificate(self.floor)

    @property
    def exhausted(self) -> bool:
        """Whether every allowed ridge solve has been spent."""
        return len(self.widths) >= self.max_solves

    @property
    def over(self) -> bool:
        """Whether there is nothing left to do."""
        return self.stalled or self.exhausted or self.certificate <= self.tol

    @property
    def outcome(self) -> Outcome:
        """How it ended."""
        if self.certificate <= self.tol:
            return Outcome.CONVERGED
        return Outcome.STALLED if self.stalled else Outcome.OUT_OF_SOLVES

    def try_step(self, w: Float[Tensor, " D"]) -> bool:
        """Move to `w` without its vanishing channels if F does not rise; say whether it moved."""
        large = w >= THRESHOLD
        if self.pinned or bool(large.all()):
            return self._try(self.point.objective, w)
        rest = w[large]
        return self._try(self.point.objective.restrict(large.nonzero()[:, 0]), rest / rest.sum())

    def step(self, w: Float[Tensor, " D"]) -> None:
        """Move to `w`, with its vanishing channels where F would rise without them; else stall."""
        if self.try_step(w) or self.exhausted:
            return
        vanishing = bool((w < THRESHOLD).any()) and not self.pinned
        positive = (w > 0).nonzero()[:, 0]
        if vanishing and self._try(self.point.objective.restrict(positive), w[positive]):
            return
        self.stalled = True

    def _try(self, objective: Objective, w: Float[Tensor, " D"]) -> bool:
        point = objective.at(w)
        self.widths.append(len(w))
        if not point.loss <= self.point.loss:
            return False
        self.point = point
        self.trace.append(point.loss)
        return True


def uniform(size: int) -> Float[Tensor, " D"]:
    """Return the w of highest entropy, where every descent starts by default."""
    return torch.full((size,), 1 / size, dtype=torch.float64)
