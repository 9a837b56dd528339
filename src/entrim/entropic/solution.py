"""Results of a solve, and the status with which it ended."""

from dataclasses import dataclass, field
from enum import Enum

from jaxtyping import Float, Int
from torch import Tensor


class Outcome(Enum):
    """How a solve ended; the value is the message for the user."""

    CONVERGED = "converged: the optimality residual is at most tol"
    OUT_OF_SOLVES = "stopped at max_solves above tol: raise max_solves, or tol"
    SLOW = "stopped as requested: a step decreased F by less than min_decrease"
    STALLED = "stopped above tol: F no longer decreases in double precision"


@dataclass(frozen=True, slots=True)
class Status:
    """The outcome of a solve, with notes on the problem.

    Attributes
    ----------
    outcome : Outcome
        How the solve ended.
    notes : tuple of str
        Notes, such as the number of dead channels.
    """

    outcome: Outcome
    notes: tuple[str, ...] = ()

    @property
    def converged(self) -> bool:
        """Whether the optimality residual is at most tol."""
        return self.outcome is Outcome.CONVERGED

    def __str__(self) -> str:
        return "; ".join((self.outcome.value, *self.notes))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """The importance of every channel of a group, and the course of the solve."""

    w: Float[Tensor, " D"]
    """On the simplex; exactly 0 for removed channels."""
    kept: Int[Tensor, " k"]
    """Indices of the kept channels, in ascending order."""
    loss: float
    """F at (w, L), before any refit."""
    mse: float
    """The last term of F: the mean squared error."""
    optimality_residual: float
    """First-order optimality residual; at most tol if the solve converged."""
    eps_l2: float
    """Strength of the ridge; `solve_k` searches for it."""
    status: Status
    trace: tuple[float, ...] = field(repr=False)
    """F after every accepted step; it never increases."""
    widths: tuple[int, ...] = field(repr=False)
    """Number of channels in each ridge solve, including rejected steps."""

    @property
    def ridge_solves(self) -> int:
        """Number of ridge solves."""
        return len(self.widths)

    @property
    def full_size_solves(self) -> float:
        """Cost as a multiple of a ridge solve with all channels: sum of (active / all)^3."""
        return sum((width / len(self.w)) ** 3 for width in self.widths)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution(Choice):
    """The solution of one layer: importances, kept channels and weights."""

    weight: Float[Tensor, "M columns"]
    """Weights on the kept channels, in channel-major order: `block` adjacent columns each."""
    bias: Float[Tensor, " M"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JointSolution(Choice):
    """One selection for several consumers; `loss` and `mse` are means over `parts`."""

    parts: tuple[Solution, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The weights of one consumer on the kept channels."""

    kept: Int[Tensor, " k"]
    weight: Float[Tensor, "M columns"]
    bias: Float[Tensor, " M"]
