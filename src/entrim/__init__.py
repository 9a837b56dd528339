"""Make a pre-trained CNN physically smaller, from a few hundred unlabelled images."""

from importlib.metadata import version

from entrim.budget import Budget
from entrim.distilling import distill
from entrim.errors import EntrimError
from entrim.files import load, save
from entrim.graph import ChannelGraph
from entrim.moments import Moments
from entrim.network import Latency, Measurement, apply_plan, measure, trace
from entrim.pipeline import sparsify
from entrim.plan import Plan
from entrim.records import Record, Step
from entrim.searching import Searched, search
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
from entrim.sparsified import Sparsified
from entrim.trials import SearchRecord, Trial

__version__ = version("entrim")
__all__ = [
    "Budget",
    "ChannelGraph",
    "EntrimError",
    "JointSolution",
    "Latency",
    "Measurement",
    "Moments",
    "Outcome",
    "Plan",
    "Record",
    "Refit",
    "SearchRecord",
    "Searched",
    "Solution",
    "Sparsified",
    "Status",
    "Step",
    "Trial",
    "apply_plan",
    "distill",
    "load",
    "measure",
    "refit",
    "save",
    "search",
    "select",
    "solve",
    "solve_for",
    "solve_path",
    "sparsify",
    "trace",
]
