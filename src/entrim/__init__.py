"""Make a pre-trained CNN physically smaller, from a few hundred unlabelled images."""

from importlib.metadata import version

from entrim.errors import EntrimError
from entrim.moments import Moments
from entrim.solver import (
    JointSolution,
    Outcome,
    Refit,
    Solution,
    Status,
    refit,
    select,
    solve,
    solve_for,
    solve_path,
)

__version__ = version("entrim")
__all__ = [
    "EntrimError",
    "JointSolution",
    "Moments",
    "Outcome",
    "Refit",
    "Solution",
    "Status",
    "refit",
    "select",
    "solve",
    "solve_for",
    "solve_path",
]
