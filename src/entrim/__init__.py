"""Make a pre-trained CNN physically smaller, from a few hundred unlabelled images."""

from importlib.metadata import version

from entrim.budget import Budget
from entrim.distillation.distill import distill
from entrim.entropic.least_squares import Refit, refit
from entrim.entropic.moments import Moments
from entrim.entropic.solution import JointSolution, Outcome, Solution, Status
from entrim.entropic.solve import solve, solve_for, solve_path
from entrim.errors import EntrimError
from entrim.graph.channel_graph import ChannelGraph
from entrim.hpo.search import Searched, search
from entrim.hpo.trial import SearchRecord, Trial
from entrim.pipeline import sparsify
from entrim.records import Record, Step
from entrim.selection.baselines import select
from entrim.sparsified import Sparsified
from entrim.storage.model_folder import load, save
from entrim.surgery.measure import Latency, Measurement, measure
from entrim.surgery.plan import Plan
from entrim.surgery.prune import apply_plan
from entrim.surgery.trace import trace

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
