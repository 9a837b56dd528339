"""Make a pre-trained CNN physically smaller, from a few hundred unlabelled images."""

from importlib.metadata import version

from entrim.errors import EntrimError
from entrim.files import load, save
from entrim.graph import ChannelGraph
from entrim.moments import Moments
from entrim.network import Latency, Measurement, apply_plan, measure, trace
from entrim.plan import Plan
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
    "ChannelGraph",
    "EntrimError",
    "JointSolution",
    "Latency",
    "Measurement",
    "Moments",
    "Outcome",
    "Plan",
    "Refit",
    "Solution",
    "Status",
    "apply_plan",
    "load",
    "measure",
    "refit",
    "save",
    "select",
    "solve",
    "solve_for",
    "solve_path",
    "trace",
]
