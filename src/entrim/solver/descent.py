"""The loop that both methods share: try a w, keep it only if F does not rise, know when to stop."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from entrim.solver.objective import Objective, Point
from entrim.solver.solution import Outcome

THRESHOLD = 1e-6
"""A channel below this importance goes (the paper's value)."""

COPY = 1 - 1e-10
"""Channels this much alike are the same up to rounding: one of them is enough."""
NEAR_COPY = 0.99
"""Channels this much alike may share their weight on a saddle that the gradient cannot see."""


@dataclass(slots=True)
class Descent:
    """The way down so far. With `pinned`, no channel goes: w is held at the threshold instead."""

    point: Point
    tol: float
    max_solves: int
    pinned: bool = False
    fall: float = 0.0
    """Where a step lowers F by less than this, it is the last."""
    trace: list[float] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    stalled: bool = False
    compared: set[tuple[int, int]] = field(default_factory=set)

    @classmethod
    def start(
        cls,
        objective: Objective,
        w: Float[Tensor, " D"],
        *,
        tol: float,
        max_solves: int,
        pinned: bool = False,
        fall: float = 0.0,
    ) -> "Descent":
        """Solve the first ridge at `w`."""
        point = objective.at(w)
        return cls(point, tol, max_solves, pinned, fall, [point.loss], [len(w)])

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
    def slow(self) -> bool:
        """Whether the last step lowered F by less than it should."""
        return len(self.trace) > 1 and self.trace[-2] - self.trace[-1] < self.fall

    @property
    def cost(self) -> int:
        """What the ridge solves have cost so far, the cube of the channels in each."""
        return sum(width**3 for width in self.widths)

    @property
    def over(self) -> bool:
        """Whether there is nothing left to do."""
        return self.stalled or self.exhausted or self.slow or self.certificate <= self.tol

    @property
    def outcome(self) -> Outcome:
        """How it ended."""
        if self.certificate <= self.tol:
            return Outcome.CONVERGED
        if self.slow:
            return Outcome.SLOW
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

    def merge_near_copies(self) -> bool:
        """Give the weight of one near copy to the other where that lowers F; say whether it did.

        From a uniform start two channels that are almost alike share their weight, and where they
        do the gradient all but vanishes; only F itself tells that one of them is too many.
        """
        if self.pinned or self.outcome is not Outcome.CONVERGED:
            return False
        objective = self.point.objective
        likeness = objective.likeness().tril(-1)
        pairs = (likeness >= NEAR_COPY).nonzero()
        closest = likeness[pairs[:, 0], pairs[:, 1]].argsort(descending=True, stable=True)
        for j, i in pairs[closest].tolist():
            names = (int(objective.channels[i]), int(objective.channels[j]))
            if names in self.compared or self.exhausted:
                continue
            self.compared.add(names)
            w = self.point.w.clone()
            large, small = (i, j) if w[i] >= w[j] else (j, i)
            w[large] += w[small]
            w[small] = 0
            if self.try_step(w):
                return True
        return False

    def drop_least(self) -> bool:
        """Give up the channel of least weight where that lowers F; say whether it did.

        A minimum can keep a channel that F would rather not pay for: the entropy makes a wall in
        front of w = 0. Half of the solves are left for what follows.
        """
        if self.pinned or self.outcome is not Outcome.CONVERGED:
            return False
        if len(self.point.w) == 1 or 2 * len(self.widths) > self.max_solves:
            return False
        w = self.point.w.clone()
        w[w.argmin()] = 0
        return self.try_step(w / w.sum())

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
