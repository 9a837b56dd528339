"""Moments in, sparse weights out. Never sees a network."""

from entrim.solver.path import solve_for, solve_path
from entrim.solver.refit import Refit, refit
from entrim.solver.select import select
from entrim.solver.solution import JointSolution, Outcome, Solution, Status
from entrim.solver.solve import solve

__all__ = [
    "JointSolution",
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
