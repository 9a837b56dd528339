"""From trial to trial: draw eps, choose, end early where one can tell, else rebuild and score."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from entrim.errors import BadSettingError, EntrimError, SearchError
from entrim.network.eager import copy_without_hooks
from entrim.parts import Parts
from entrim.records import Step
from entrim.scoring import Metric
from entrim.trials import Trial
from entrim.trying import Choice, Ground, scored

if TYPE_CHECKING:
    from entrim.studying import Notebook

    Range = tuple[float, float]
else:
    Range = object  # so that anything else is refused by us, with the remedy
STRENGTHS = (1e-7, 1e-2)
_KNOWN = {"cost": ("params", "macs"), "sampler": ("tpe", "random")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a search looks for, and when it ends a trial early."""

    trials: int
    cost: str
    eps_w: Range
    eps_l2: Range
    between: Range
    prune: float | None
    sampler: str
    seed: int
    timeout: float | None

    def __post_init__(self) -> None:
        if not isinstance(self.trials, int) or self.trials < 1:
            raise BadSettingError(f"trials is {self.trials!r}: hand over a whole number from 1")
        if not isinstance(self.seed, int) or self.seed < 0:
            raise BadSettingError(f"seed is {self.seed!r}: hand over a whole number from 0")
        if self.timeout is not None and not self.timeout > 0:
            raise BadSettingError(
                f"timeout is {self.timeout}: hand over seconds, or None for no limit"
            )
        for name, known in _KNOWN.items():
            if getattr(self, name) not in known:
                choices = " or ".join(map(repr, known))
                raise BadSettingError(f"{name} is {getattr(self, name)!r}: choose {choices}")
        for name in ("eps_w", "eps_l2", "between"):
            _check_range(name, getattr(self, name), positive=name != "between")
        if self.prune is not None and not 1 <= self.prune < math.inf:
            raise BadSettingError(
                f"prune is {self.prune}: hand over a factor from 1, or None to score all"
            )

    def ranges(self, parts: Parts) -> dict[str, Range]:
        """Return what is drawn for a trial, by name."""
        return {
            f"{part} {eps}": getattr(self, eps) for part in parts for eps in ("eps_w", "eps_l2")
        }

    def verdict(
        self, choice: Choice, known: Sequence[Trial], intact: float
    ) -> tuple[float | None, str] | None:
        """Return the score, if any, and the reason; None where only scoring can tell."""
        if not choice.kept:
            return intact, "nothing was cut: the score of the original"
        for trial in known:
            if trial.digest == choice.digest:
                return trial.score, f"the network of trial {trial.number}"
        cost, (low, high) = getattr(choice, self.cost), self.between
        if not low <= cost <= high:
            return None, f"pruned: {cost:.1%} of the {self.cost} is not {low:.1%} to {high:.1%}"
        for trial in known if self.prune else ():
            better = trial.lost * (self.prune or 1) < choice.lost
            if trial.score is not None and getattr(trial, self.cost) <= cost and better:
                return None, (
                    f"pruned: trial {trial.number} costs no more, and its layers lose "
                    f"{trial.lost:.2g} of their variance, not {choice.lost:.2g}"
                )
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Hunt:
    """One process at work on a search."""

    ground: Ground
    notebook: "Notebook"
    parts: Parts
    wanted: Wanted
    score: Metric
    begun: float
    """When the search was called, by `time.monotonic`."""

    def go(self) -> float:
        """Try until no trial is left to begin or the time is over; return the original's score.

        One trial is begun however late it is, so that a search that is called again gets on.
        """
        intact = self._intact()
        self.notebook.sweep()
        before, since = len(self.notebook.ended()), time.monotonic()
        while draw := self.notebook.begin(self.wanted.trials):
            try:
                trial = self._tried(_number(draw), draw.params, intact)
            except BaseException:
                self.notebook.drop(draw.number)
                raise
            values = () if trial.score is None else (getattr(trial, self.wanted.cost), trial.score)
            self.notebook.end(draw, _notes(trial), values)
            self._tell(trial, before, since)
            if self._left() <= 0:
                break
        _demand_one(self.known())
        return intact

    def known(self) -> list[Trial]:
        """Return all trials that ended, also those of other processes."""
        return [
            Trial(number=_number(draw), eps=self._eps(draw.params), **draw.user_attrs["trial"])
            for draw in self.notebook.ended()
        ]

    def _intact(self) -> float:
        known = self.notebook.intact
        if known is None:
            known, how = self._scored(copy_without_hooks(self.ground.run.model).eval())
            if known is None:
                raise SearchError(f"the original network {how}: mend score= first")
            self.notebook.note_intact(known)
        return known

    def _tried(self, number: int, drawn: Mapping[str, Any], intact: float) -> Trial:
        eps = self._eps(drawn)
        choice = self.ground.choose(replace(self.ground.run.settings, eps=eps))
        trial = Trial(
            number=number,
            eps=eps,
            widths=choice.widths,
            params=choice.params,
            macs=choice.macs,
            lost=choice.lost,
            score=None,
            how="",
            seconds=0.0,
            digest=choice.digest,
        )
        early = self.wanted.verdict(choice, self.known(), intact)
        if early is not None:
            return replace(trial, score=early[0], how=early[1])
        begun = time.perf_counter()
        try:
            small = self.ground.built(choice)
        except EntrimError as error:
            how = f"failed: {type(error).__name__}: {error}"
            return replace(trial, how=how, seconds=time.perf_counter() - begun)
        params, macs = self.ground.cost(small)
        score, how = self._scored(small)
        seconds = time.perf_counter() - begun
        return replace(trial, params=params, macs=macs, score=score, how=how, seconds=seconds)

    def _scored(self, model: Any) -> tuple[float | None, str]:
        with self.ground.run.stage("score"):
            return scored(self.score, model)

    def _eps(self, drawn: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
        return {
            pattern: (-drawn[f"{part} eps_w"], drawn[f"{part} eps_l2"])
            for part, patterns in self.parts.items()
            for pattern in patterns
        }

    def _left(self) -> float:
        """Return the seconds in which trials may still be begun."""
        limit = math.inf if self.wanted.timeout is None else self.wanted.timeout
        return limit - (time.monotonic() - self.begun)

    def _tell(self, trial: Trial, before: int, since: float) -> None:
        """Tell how `trial` ended, and what the rest will take at the pace since then."""
        ended = "" if trial.score is None else f", score {trial.score:.4g}"
        detail = f"{getattr(trial, self.wanted.cost):.1%} of the {self.wanted.cost}{ended}"
        done = len(self.notebook.ended())
        if trial.how != "scored":
            detail += f"; {trial.how}"
        pace = (time.monotonic() - since) / max(done - before, 1)
        self.ground.run.on_step(
            Step(
                stage="search",
                name=f"trial {trial.number}",
                done=done,
                total=self.wanted.trials,
                detail=detail,
                seconds_left=max(0.0, min(pace * (self.wanted.trials - done), self._left())),
            )
        )


def _number(draw: Any) -> int:
    """Return the number of a trial: from 1, as people and progress count; a notebook has 0."""
    return draw.number + 1


def _notes(trial: Trial) -> dict[str, Any]:
    """Return what the notebook keeps of `trial` beside its number and what was drawn."""
    names = ("widths", "params", "macs", "lost", "score", "how", "seconds", "digest")
    return {"trial": {name: getattr(trial, name) for name in names}}


def _demand_one(trials: Sequence[Trial]) -> None:
    """Refuse a search of which nothing was scored."""
    if any(trial.score is not None for trial in trials):
        return
    first = next((trial for trial in trials if trial.how.startswith("failed")), None)
    if first is not None:
        raise SearchError(
            f"no trial of {len(trials)} was scored; trial {first.number} {first.how}: mend score=, "
            "then search with another name="
        )
    raise SearchError(
        f"no trial of {len(trials)} was scored; the first was {trials[0].how}: widen between=, "
        "eps_w= or eps_l2="
        if trials
        else "no trial has ended yet, other processes are at work on all of them: call again later"
    )


def _check_range(name: str, value: object, *, positive: bool) -> None:
    good = (
        isinstance(value, tuple | list)
        and len(value) == 2
        and all(isinstance(end, int | float) and 0 <= end < math.inf for end in value)
        and value[0] <= value[1]
        and (value[0] > 0 or not positive)
    )
    if not good:
        least = "both positive" if positive else "both at least 0"
        raise BadSettingError(f"{name} is {value!r}: hand over (low, high), {least}")
