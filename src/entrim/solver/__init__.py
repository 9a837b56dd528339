"""Moments in, sparse weights out. Never sees a network."""

from entrim.solver.answer import live_channels, solve
from entrim.solver.elimination import order_of_loss
from entrim.solver.least_squares import Refit, refit
from entrim.solver.path import solve_for, solve_path
from entrim.solver.selection import Selector, select
from entrim.solver.solution import JointSolution, Outcome, Solution, Status

__all__ = [
    "JointSolution",
    "Outcome",
    "Refit",
    "Selector",
    "Solution",
    "Status",
    "live_channels",
    "order_of_loss",
    "refit",
    "select",
    "solve",
    "solve_for",
    "solve_path",
]
