"""Make a pre-trained CNN physically smaller, from a few hundred unlabeled images."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from entrim.callbacks import Callback, ProgressEvent
    from entrim.config import (
        Budget,
        Calibration,
        Cost,
        Distillation,
        EntropicPenalty,
        Reconstruction,
        Sensitivity,
        Widths,
        paper_preset,
    )
    from entrim.distillation.distill import distill
    from entrim.entropic.least_squares import Refit, refit
    from entrim.entropic.moments import Moments
    from entrim.entropic.solution import JointSolution, Outcome, Solution, Status
    from entrim.entropic.solve import solve, solve_k, solve_path
    from entrim.errors import EntrimError
    from entrim.federated.collect import collect
    from entrim.federated.network_moments import NetworkMoments, merge
    from entrim.graph.channel_graph import ChannelGraph
    from entrim.graph.tracer import register_rule
    from entrim.hpo.search import SearchResult, search
    from entrim.hpo.trial import SearchRecord, Trial
    from entrim.pipeline import Pruner, sparsify
    from entrim.planning.estimate import RunEstimate, StageEstimate
    from entrim.records import Record
    from entrim.results import SparsifyResult, compare
    from entrim.selection.base import GroupStatistics, Selector
    from entrim.selection.baselines import Scores, select
    from entrim.selection.entropic import EntropicSelector
    from entrim.storage.model_folder import load, save
    from entrim.surgery.measure import Latency, Measurement, measure
    from entrim.surgery.plan import Plan
    from entrim.surgery.prune import apply_plan
    from entrim.surgery.trace import trace

_HOMES = {
    "callbacks": ["Callback", "ProgressEvent"],
    "config": [
        "Budget",
        "Calibration",
        "Cost",
        "Distillation",
        "EntropicPenalty",
        "Reconstruction",
        "Sensitivity",
        "Widths",
        "paper_preset",
    ],
    "distillation.distill": ["distill"],
    "entropic.least_squares": ["Refit", "refit"],
    "entropic.moments": ["Moments"],
    "entropic.solution": ["JointSolution", "Outcome", "Solution", "Status"],
    "entropic.solve": ["solve", "solve_k", "solve_path"],
    "errors": ["EntrimError"],
    "federated.collect": ["collect"],
    "federated.network_moments": ["NetworkMoments", "merge"],
    "graph.channel_graph": ["ChannelGraph"],
    "graph.tracer": ["register_rule"],
    "hpo.search": ["SearchResult", "search"],
    "hpo.trial": ["SearchRecord", "Trial"],
    "pipeline": ["Pruner", "sparsify"],
    "planning.estimate": ["RunEstimate", "StageEstimate"],
    "records": ["Record"],
    "results": ["SparsifyResult", "compare"],
    "selection.base": ["GroupStatistics", "Selector"],
    "selection.baselines": ["Scores", "select"],
    "selection.entropic": ["EntropicSelector"],
    "storage.model_folder": ["load", "save"],
    "surgery.measure": ["Latency", "Measurement", "measure"],
    "surgery.plan": ["Plan"],
    "surgery.prune": ["apply_plan"],
    "surgery.trace": ["trace"],
}
_MODULES = {name: f"entrim.{module}" for module, names in _HOMES.items() for name in names}
__version__ = version("entrim")
__all__ = [
    "Budget",
    "Calibration",
    "Callback",
    "ChannelGraph",
    "Cost",
    "Distillation",
    "EntrimError",
    "EntropicPenalty",
    "EntropicSelector",
    "GroupStatistics",
    "JointSolution",
    "Latency",
    "Measurement",
    "Moments",
    "NetworkMoments",
    "Outcome",
    "Plan",
    "ProgressEvent",
    "Pruner",
    "Reconstruction",
    "Record",
    "Refit",
    "RunEstimate",
    "Scores",
    "SearchRecord",
    "SearchResult",
    "Selector",
    "Sensitivity",
    "Solution",
    "SparsifyResult",
    "StageEstimate",
    "Status",
    "Trial",
    "Widths",
    "apply_plan",
    "collect",
    "compare",
    "distill",
    "load",
    "measure",
    "merge",
    "paper_preset",
    "refit",
    "register_rule",
    "save",
    "search",
    "select",
    "solve",
    "solve_k",
    "solve_path",
    "sparsify",
    "trace",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module 'entrim' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names only."""
    return [*__all__, "__version__"]
