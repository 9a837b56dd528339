"""What a solve hands back, and the sentence that says how it ended."""

from dataclasses import dataclass, field
from enum import Enum

from jaxtyping import Float, Int
from torch import Tensor


class Outcome(Enum):
    """How the descent ended; the value is the sentence for the user."""

    CONVERGED = "converged: the optimality residual is at most tol"
    OUT_OF_SOLVES = "stopped at max_solves above tol: raise max_solves, or tol"
    SLOW = "stopped as asked: a step lowered F by less than min_decrease"
    STALLED = "stopped above tol: F no longer falls in double precision"


@dataclass(frozen=True, slots=True)
class Status:
    """The outcome, and what the user should know about the problem that was solved."""

    outcome: Outcome
    notes: tuple[str, ...] = ()

    @property
    def converged(self) -> bool:
        """Whether the certificate is at most tol."""
        return self.outcome is Outcome.CONVERGED

    def __str__(self) -> str:
        return "; ".join((self.outcome.value, *self.notes))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """The importance of every channel of a group, and how it was found."""

    w: Float[Tensor, " D"]
    """On the simplex; exactly 0 for the channels that go."""
    kept: Int[Tensor, " k"]
    """The channels that stay, ascending."""
    loss: float
    """F at (w, L), before any refit."""
    mse: float
    """The last term of F: the mean squared error."""
    optimality_residual: float
    """The first-order optimality residual; at most tol when the status says converged."""
    status: Status
    trace: tuple[float, ...] = field(repr=False)
    """F after every accepted step; it never rises."""
    widths: tuple[int, ...] = field(repr=False)
    """The number of channels in each ridge solve, rejected trials included."""

    @property
    def ridge_solves(self) -> int:
        """How often a ridge system was solved."""
        return len(self.widths)

    @property
    def full_size_solves(self) -> float:
        """The ridge solves as multiples of one with all channels: sum of (active / all)^3."""
        return sum((width / len(self.w)) ** 3 for width in self.widths)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution(Choice):
    """One layer's choice with the weights it needs on the channels that stay."""

    weight: Float[Tensor, "M columns"]
    """Channel-major: the `block` columns of each kept channel side by side."""
    bias: Float[Tensor, " M"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JointSolution(Choice):
    """One choice shared by several consumers; `loss` and `mse` are the means over `parts`."""

    parts: tuple[Solution, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The weights of one consumer on the channels that stay."""

    kept: Int[Tensor, " k"]
    weight: Float[Tensor, "M columns"]
    bias: Float[Tensor, " M"]
