"""What a search leaves behind: the trials, and those that no other beats."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from entrim.records import FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One setting that a search tried."""

    number: int
    """From 1 on, in the order in which they began."""
    eps: Mapping[str, tuple[float, float]]
    """(eps_w, eps_l2) by pattern, as `sparsify(eps=...)` takes it."""
    widths: Mapping[str, int]
    """Channels that stay in every group that was chosen in."""
    params: float
    """The fraction of the parameters that remains."""
    macs: float
    """The fraction of the MACs that remains."""
    lost: float
    """What the layers lose by a refit on their kept channels, relative to their variance, summed
    over the groups: an estimate without labels, made before anything is rebuilt."""
    score: float | None
    """None where the trial was pruned or failed."""
    how: str
    """The sentence that says how the trial ended."""
    seconds: float
    """What rebuilding, cutting and scoring took; 0 where the trial ended before."""
    digest: str
    """Alike for trials that lead to the same network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRecord:
    """Everything that a search tried, and its Pareto front."""

    model: str
    images: int
    cost: str
    """What was minimised beside the score: params or macs."""
    intact: float
    """The score of the network as it was handed over."""
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    front: tuple[Trial, ...]
    """Trials that no other beats in cost and score, the cheapest first."""
    trials: tuple[Trial, ...]
    """All that ended, in the order in which they began."""
    seconds: Mapping[str, float]
    """By stage, in this process."""

    @property
    def spared(self) -> int:
        """The number of trials that ended without being rebuilt and scored."""
        return sum(trial.seconds == 0 for trial in self.trials)

    @property
    def saved(self) -> float:
        """The seconds that this spared, at the mean of those trials that were scored."""
        took = [trial.seconds for trial in self.trials if trial.seconds]
        return self.spared * sum(took) / len(took) if took else 0.0

    def to_json(self) -> str:
        """Return the record as JSON."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)})

    def __str__(self) -> str:
        lines = [
            f"{self.model}: score {self.intact:.4g} intact; {len(self.trials)} trials, "
            f"{self.spared} of them not scored, which saved about {self.saved:.1f} s"
        ]
        lines += [
            f"  {trial.params:>6.1%} of the parameters, {trial.macs:>6.1%} of the MACs: "
            f"score {trial.score:.4g} (trial {trial.number})"
            for trial in self.front
        ]
        return "\n".join(lines)


def pareto(trials: Sequence[Trial], cost: str) -> tuple[Trial, ...]:
    """Return the trials that no other beats in `cost` and score, the cheapest first.

    Of trials alike in both the earliest stands for all.
    """
    scored = [trial for trial in trials if trial.score is not None]
    front: list[Trial] = []
    for trial in sorted(scored, key=lambda t: (getattr(t, cost), -(t.score or 0.0), t.number)):
        if not front or (trial.score or 0.0) > (front[-1].score or 0.0):
            front.append(trial)
    return tuple(front)
