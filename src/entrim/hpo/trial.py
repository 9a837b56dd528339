"""One trial of a search: select channels, compute the cost, reconstruct, score."""

import dataclasses
import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from torch import nn

from entrim.allocation.allocate import Selection
from entrim.config import EntropicPenalty, Patterns
from entrim.entropic.least_squares import refit
from entrim.entropic.moments import Moments
from entrim.errors import BadSettingError, CalibrationWarning, RolledBackWarning
from entrim.graph.channel_graph import Group
from entrim.graph.eager import isolate_random_state
from entrim.pipeline import Pruner
from entrim.reconstruction.sequential import removed_from
from entrim.records import FORMAT
from entrim.results import Metric, score_of
from entrim.surgery.measure import measure
from entrim.surgery.prune import slice_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial of a search."""

    number: int
    """Starts at 1, in the order of the start times."""
    eps: Mapping[str, tuple[float, float]]
    """(eps_w, eps_l2) by pattern, as `EntropicPenalty(per_group=...)` takes it."""
    widths: Mapping[str, int]
    """Number of kept channels of every group."""
    params: float
    """The fraction of the parameters that remains."""
    macs: float
    """The fraction of the MACs that remains."""
    lost: float
    """The error of a refit on the kept channels, relative to the variance, summed over the groups:
    an estimate without labels, computed before the reconstruction."""
    score: float | None
    """None if the trial was pruned or failed."""
    reason: str
    """How the trial ended, as a sentence."""
    seconds: float
    """Time of reconstruction, pruning and scoring; 0 if the trial ended before."""
    digest: str
    """Equal for trials that lead to the same network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRecord:
    """All trials of a search, and their Pareto front."""

    model: str
    images: int
    cost: str
    """The cost that was minimized: params or macs."""
    intact: float
    """The score of the original network."""
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    front: tuple[Trial, ...]
    """The Pareto front of cost and score, the cheapest trial first."""
    trials: tuple[Trial, ...]
    """All finished trials, in the order of their numbers."""
    seconds: Mapping[str, float]
    """Computing time by stage, in this process."""

    @property
    def unscored(self) -> int:
        """The number of trials that ended before reconstruction and scoring."""
        return sum(trial.seconds == 0 for trial in self.trials)

    @property
    def seconds_saved(self) -> float:
        """The estimated time that early stopping saved, by the mean time of scored trials."""
        took = [trial.seconds for trial in self.trials if trial.seconds]
        return self.unscored * sum(took) / len(took) if took else 0.0

    def to_json(self) -> str:
        """Return the record as JSON."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)})

    def __str__(self) -> str:
        lines = [
            f"{self.model}: score {self.intact:.4g} intact; {len(self.trials)} trials, "
            f"{self.unscored} of them not scored, which saved about {self.seconds_saved:.1f} s"
        ]
        lines += [
            f"  {trial.params:>6.1%} of the parameters, {trial.macs:>6.1%} of the MACs: "
            f"score {trial.score:.4g} (trial {trial.number})"
            for trial in self.front
        ]
        return "\n".join(lines)


def pareto(trials: Sequence[Trial], cost: str) -> tuple[Trial, ...]:
    """Return the Pareto front of `cost` and score, the cheapest trial first.

    Of trials that are equal in both, only the first is returned.
    """
    scored = [trial for trial in trials if trial.score is not None]
    front: list[Trial] = []
    for trial in sorted(scored, key=lambda t: (getattr(t, cost), -(t.score or 0.0), t.number)):
        if not front or (trial.score or 0.0) > (front[-1].score or 0.0):
            front.append(trial)
    return tuple(front)


if TYPE_CHECKING:
    Division = Mapping[str, Patterns] | Patterns | None
else:
    Division = object  # other types are refused by parts_of, with a remedy
Parts = Mapping[str, tuple[str, ...]]
"""The patterns of every part, under its name."""
PARTS = 4
"""Default number of parts: a few dozen trials can tune two eps for each of them."""


def parts_of(patterns: Division, groups: Sequence[Group]) -> dict[str, tuple[str, ...]]:
    """Divide `groups` into parts by `patterns`; the first pattern that matches counts.

    By default, there are at most four parts of neighboring groups.
    """
    if not groups:
        raise BadSettingError("no group is left to search in: widen include= or exclude=")
    if patterns is None:
        return _neighbors([group.name for group in groups])
    parts = _name_parts(patterns)
    left = list(groups)
    for pattern in (pattern for part in parts.values() for pattern in part):
        mine = [group.name for group in left if group.matches(pattern)]
        if not mine:
            raise BadSettingError(f"{_reason_empty(pattern, groups)}: remove {pattern!r}")
        left = [group for group in left if group.name not in mine]
    if left:
        raise BadSettingError(
            f"no pattern matches {', '.join(group.name for group in left)}: add a last pattern "
            '"*", or exclude them with exclude='
        )
    return parts


def _neighbors(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    number = min(PARTS, len(names))
    edges = [round(k * len(names) / number) for k in range(number + 1)]
    runs = [tuple(names[a:b]) for a, b in pairwise(edges)]
    return {run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}": run for run in runs}


def _name_parts(patterns: Division) -> dict[str, tuple[str, ...]]:
    if isinstance(patterns, Mapping):
        parts = {name: _list(some) for name, some in patterns.items()}
    else:
        parts = {pattern: (pattern,) for pattern in _list(patterns)}
    return {_text(name): tuple(map(_text, some)) for name, some in parts.items()}


def _list(patterns: object) -> tuple[object, ...]:
    if isinstance(patterns, str):
        return (patterns,)
    if isinstance(patterns, Sequence):
        return tuple(patterns)
    raise BadSettingError(f"patterns contains {patterns!r}: pass a pattern or a list of patterns")


def _text(pattern: object) -> str:
    if isinstance(pattern, str):
        return pattern
    raise BadSettingError(f"patterns contains {pattern!r}: pass strings")


def _reason_empty(pattern: str, groups: Sequence[Group]) -> str:
    if any(group.matches(pattern) for group in groups):
        return f"all groups that match {pattern!r} match an earlier pattern"
    return (
        f"no group matches {pattern!r}; patterns name layers that produce channels, and the groups "
        f"are {', '.join(group.name for group in groups)}"
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """The channels that one penalty selects, their costs, and how well they fit."""

    penalty: EntropicPenalty
    selection: Selection
    kept: Mapping[str, tuple[int, ...]]
    params: float
    macs: float
    lost: float
    """The error of a refit on the kept channels, relative to the variance, over all groups."""
    digest: str
    """Equal for choices that lead to the same network."""

    @property
    def widths(self) -> dict[str, int]:
        """Kept channels of every group."""
        return {name: len(found.kept) for name, found in self.selection.channels.items()}


@dataclass(slots=True, eq=False)
class TrialPruner:
    """Selects, measures and builds the networks of trials with one `Pruner`."""

    pruner: Pruner
    groups: Sequence[Group]
    params: int
    macs: int

    @classmethod
    def of(cls, pruner: Pruner, penalty: EntropicPenalty) -> "TrialPruner":
        """Return it with the statistics of all groups of `penalty` collected."""
        with isolate_random_state():
            groups = pruner.prunable_groups(pruner.group_targets(penalty))
            pruner.collect(groups)
        full = measure(pruner.model, pruner.example_inputs, repeats=2)
        return cls(pruner, groups, full.params, full.macs)

    def choose(self, penalty: EntropicPenalty) -> Choice:
        """Return the channels that `penalty` selects, without changing a weight."""
        pruner = self.pruner
        with pruner.progress.muted(), warnings.catch_warnings():
            warnings.simplefilter("ignore", CalibrationWarning)
            selection = pruner.select(penalty)
        kept = removed_from(pruner.graph, selection.channels)
        with pruner.progress.stage("select"):
            params, macs = self.cost(slice_model(pruner.model, pruner.graph, kept))
            lost = sum(
                _error(pruner.statistics.moments(group), selection.channels[group.name].kept)
                for group in self.groups
            )
        refits = pruner.reconstruction is None or pruner.reconstruction.refits
        identity = (sorted(kept.items()), None if refits else penalty.per_group)
        return Choice(
            penalty=penalty,
            selection=selection,
            kept=kept,
            params=params,
            macs=macs,
            lost=lost,
            digest=hashlib.sha256(repr(identity).encode()).hexdigest(),
        )

    def cost(self, model: nn.Module) -> tuple[float, float]:
        """Return the fractions of parameters and MACs that `model` has of the original."""
        size = measure(model, self.pruner.example_inputs, repeats=2)
        return size.params / self.params, size.macs / max(self.macs, 1)

    def build(self, choice: Choice) -> nn.Module:
        """Return the pruned network in eval mode.

        Warnings of single trials are not shown; `SearchResult.sparsify` shows them.
        """
        with warnings.catch_warnings(), isolate_random_state(), self.pruner.progress.muted():
            for category in (CalibrationWarning, RolledBackWarning):
                warnings.simplefilter("ignore", category)
            return self.pruner.apply(choice.selection).model.eval()


def try_score(score: Metric, model: nn.Module) -> tuple[float | None, str]:
    """Return the score of `model` and "scored", or None and the reason of the failure."""
    try:
        return score_of(score, model, "score"), "scored"
    except BadSettingError as error:
        return None, f"failed: {error}"
    except Exception as error:  # the function of the user may raise anything
        return None, f"failed: score raised {type(error).__name__}: {error}"


def _error(moments: Sequence[Moments], kept: Sequence[int]) -> float:
    """Return the mean error of a refit on `kept`, relative to the variance, over the consumers."""
    parts = []
    for m in moments:
        mean = m.cross_sum[0] / m.count
        variance = (m.target_sum_sq / m.count - float(mean.square().sum())) / m.outputs
        parts.append(refit(m, kept).mse / variance if variance > 0 else 0.0)
    return sum(parts) / len(parts)
