"""Search for penalties: eps of each part of the network, by cost and the score of the user."""

import hashlib
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from entrim.calibration.data import Images
from entrim.callbacks import Callback, Progress, ProgressEvent
from entrim.config import EntropicPenalty
from entrim.display.bars import make_display
from entrim.distributed.world import World
from entrim.errors import BadSettingError, EntrimError, MissingExtraError, SearchError
from entrim.graph.eager import copy_without_hooks, neutral_context
from entrim.hpo.trial import (
    Choice,
    Division,
    Parts,
    SearchRecord,
    Trial,
    TrialPruner,
    pareto,
    parts_of,
    try_score,
)
from entrim.pipeline import Pruner
from entrim.records import Score
from entrim.results import Metric, SparsifyResult, check_metric, versions
from entrim.storage import atomic
from entrim.surgery.load_model import class_name_of, name_tensors

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

    from entrim.hpo.study import Storage, Study

    Range = tuple[float, float]
else:
    Range = object  # other types are refused by SearchConfig, with a remedy
STRENGTHS = (1e-7, 1e-2)
_STORED = ("widths", "params", "macs", "lost", "score", "reason", "seconds", "digest")
"""Fields of a `Trial` that the study stores besides the number and the sampled parameters."""
_KNOWN = {"cost": ("params", "macs"), "sampler": ("tpe", "random")}


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig:
    """The options of a search."""

    trials: int
    cost: str
    eps_w: Range
    eps_l2: Range
    cost_range: Range
    early_stop: float | None
    sampler: str
    seed: int
    timeout: float | None

    def __post_init__(self) -> None:
        if not isinstance(self.trials, int) or self.trials < 1:
            raise BadSettingError(f"trials must be a positive integer, got {self.trials!r}")
        if not isinstance(self.seed, int) or self.seed < 0:
            raise BadSettingError(f"seed must be a non-negative integer, got {self.seed!r}")
        if self.timeout is not None and not self.timeout > 0:
            raise BadSettingError(
                f"timeout must be a positive number of seconds or None, got {self.timeout}"
            )
        for name, known in _KNOWN.items():
            if getattr(self, name) not in known:
                choices = " or ".join(map(repr, known))
                raise BadSettingError(f"{name} must be {choices}, got {getattr(self, name)!r}")
        for name in ("eps_w", "eps_l2", "cost_range"):
            _check_range(name, getattr(self, name), positive=name != "cost_range")
        if self.early_stop is not None and not 1 <= self.early_stop < math.inf:
            raise BadSettingError(
                f"early_stop must be at least 1, or None to score all, got {self.early_stop}"
            )

    def ranges(self, parts: Parts) -> dict[str, Range]:
        """Return the range of every sampled parameter."""
        return {
            f"{part} {eps}": getattr(self, eps) for part in parts for eps in ("eps_w", "eps_l2")
        }

    def stop_early(
        self, choice: Choice, known: Sequence[Trial], intact: float
    ) -> tuple[float | None, str] | None:
        """Return the score, if any, and the reason; None if the network must be scored."""
        if not choice.kept:
            return intact, "nothing was pruned: the score of the original"
        for trial in known:
            if trial.digest == choice.digest:
                return trial.score, f"the network of trial {trial.number}"
        cost, (low, high) = getattr(choice, self.cost), self.cost_range
        if not low <= cost <= high:
            return None, f"pruned: {cost:.1%} of the {self.cost} is not {low:.1%} to {high:.1%}"
        for trial in known if self.early_stop else ():
            better = trial.lost * (self.early_stop or 1) < choice.lost
            if trial.score is not None and getattr(trial, self.cost) <= cost and better:
                return None, (
                    f"pruned: trial {trial.number} costs no more, and its layers lose "
                    f"{trial.lost:.2g} of their variance, not {choice.lost:.2g}"
                )
        return None


@dataclass(frozen=True, slots=True, eq=False)
class SearchRunner:
    """The trials of a search in one process."""

    trials: TrialPruner
    penalty: EntropicPenalty
    progress: Progress
    study: "Study"
    parts: Parts
    config: SearchConfig
    score: Metric
    begun: float
    """The start of the search, by `time.monotonic`."""

    def run(self) -> float:
        """Run trials until all are finished or the time is over; return the original score.

        At least one trial is run, even after the timeout, so that repeated calls make progress.
        """
        intact = self._intact()
        self.study.sweep()
        before, since = len(self.study.finished_trials()), time.monotonic()

        def objective(sampled: "optuna.Trial") -> tuple[float, ...]:
            trial = self._run_trial(sampled.number + 1, sampled.params, intact)
            sampled.set_user_attr("trial", {name: getattr(trial, name) for name in _STORED})
            return () if trial.score is None else (getattr(trial, self.config.cost), trial.score)

        def report(finished: "FrozenTrial") -> bool:
            self._report(self._trial(finished), before, since)
            return self._left() <= 0

        self.study.optimize(objective, self.config.trials, report)
        _require_trial(self.known_trials())
        return intact

    def known_trials(self) -> list[Trial]:
        """Return all finished trials, including those of other processes."""
        return [self._trial(finished) for finished in self.study.finished_trials()]

    def _trial(self, finished: "FrozenTrial") -> Trial:
        """Return a trial of the study; numbers start at 1, those of Optuna at 0."""
        eps = self._eps(finished.params)
        return Trial(number=finished.number + 1, eps=eps, **finished.user_attrs["trial"])

    def _intact(self) -> float:
        known = self.study.intact
        if known is None:
            known, reason = self._score(copy_without_hooks(self.trials.pruner.model).eval())
            if known is None:
                raise SearchError(f"the original network {reason}: correct score= first")
            self.study.note_intact(known)
        return known

    def _run_trial(self, number: int, sampled: Mapping[str, Any], intact: float) -> Trial:
        eps = self._eps(sampled)
        choice = self.trials.choose(replace(self.penalty, per_group=eps))
        trial = Trial(
            number=number,
            eps=eps,
            widths=choice.widths,
            params=choice.params,
            macs=choice.macs,
            lost=choice.lost,
            score=None,
            reason="",
            seconds=0.0,
            digest=choice.digest,
        )
        early = self.config.stop_early(choice, self.known_trials(), intact)
        if early is not None:
            return replace(trial, score=early[0], reason=early[1])
        begun = time.perf_counter()
        try:
            small = self.trials.build(choice)
        except EntrimError as error:
            reason = f"failed: {type(error).__name__}: {error}"
            return replace(trial, reason=reason, seconds=time.perf_counter() - begun)
        params, macs = self.trials.cost(small)
        score, reason = self._score(small)
        seconds = time.perf_counter() - begun
        return replace(trial, params=params, macs=macs, score=score, reason=reason, seconds=seconds)

    def _score(self, model: Any) -> tuple[float | None, str]:
        with self.trials.pruner.progress.stage("score"):
            return try_score(self.score, model)

    def _eps(self, sampled: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
        return {
            pattern: (-sampled[f"{part} eps_w"], sampled[f"{part} eps_l2"])
            for part, patterns in self.parts.items()
            for pattern in patterns
        }

    def _left(self) -> float:
        """Return the seconds until the timeout."""
        limit = math.inf if self.config.timeout is None else self.config.timeout
        return limit - (time.monotonic() - self.begun)

    def _report(self, trial: Trial, before: int, since: float) -> None:
        """Report the result of `trial` and the estimated remaining time."""
        ended = "" if trial.score is None else f", score {trial.score:.4g}"
        detail = f"{getattr(trial, self.config.cost):.1%} of the {self.config.cost}{ended}"
        done = len(self.study.finished_trials())
        if trial.reason != "scored":
            detail += f"; {trial.reason}"
        pace = (time.monotonic() - since) / max(done - before, 1)
        self.progress.report(
            ProgressEvent(
                stage="search",
                name=f"trial {trial.number}",
                done=done,
                total=self.config.trials,
                detail=detail,
                seconds_left=max(0.0, min(pace * (self.config.trials - done), self._left())),
            )
        )


def _require_trial(trials: Sequence[Trial]) -> None:
    """Raise if no trial was scored."""
    if any(trial.score is not None for trial in trials):
        return
    first = next((trial for trial in trials if trial.reason.startswith("failed")), None)
    if first is not None:
        raise SearchError(
            f"no trial of {len(trials)} was scored; trial {first.number} {first.reason}: correct "
            "score=, then search with another name="
        )
    raise SearchError(
        f"no trial of {len(trials)} was scored; the first was {trials[0].reason}: widen "
        "cost_range=, eps_w= or eps_l2="
        if trials
        else "no trial is finished yet, other processes run all of them: call again later"
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
        raise BadSettingError(f"{name} must be (low, high), {least}, got {value!r}")


OPTIONS = ("calibration", "example_inputs", "exclude", "include", "reconstruction")
"""Options of `Pruner` that a search accepts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SearchResult:
    """The record of all trials, and the means to build the network of a trial."""

    record: SearchRecord
    original: nn.Module
    """The network that was passed to `search`, not modified."""
    penalty: EntropicPenalty
    pruner: Pruner
    """Provides the statistics of `sparsify`; close it when the result is no longer needed."""

    @property
    def front(self) -> tuple[Trial, ...]:
        """The Pareto front of cost and score, the cheapest trial first."""
        return self.record.front

    def best(self, *, params: float = 1.0, macs: float = 1.0) -> Trial:
        """Return the trial with the best score within these fractions; of equals the cheapest.

        All scored trials are considered, not only the front.
        """
        scored = [trial for trial in self.record.trials if trial.score is not None]
        fitting = [trial for trial in scored if trial.params <= params and trial.macs <= macs]
        if not fitting:
            least = min(scored, key=lambda trial: getattr(trial, self.record.cost))
            raise BadSettingError(
                f"no trial has at most {params:.1%} of the parameters and {macs:.1%} of the MACs; "
                f"the cheapest has {least.params:.1%} and {least.macs:.1%}: allow more, or "
                "continue the search with more trials= or a larger eps_w="
            )
        return max(fitting, key=lambda t: (t.score, -getattr(t, self.record.cost), -t.number))

    def smallest(self, score: float) -> Trial:
        """Return the cheapest trial with at least this score; of equals the best.

        `found.smallest(0.99 * found.record.intact)` keeps 99 % of the score of the original.
        """
        good = [trial for trial in self.front if trial.score is not None and trial.score >= score]
        if not good:
            best = self.front[-1]
            raise BadSettingError(
                f"no trial scores {score:.4g}; the best is trial {best.number} with "
                f"{best.score:.4g}: pass a lower score, or continue the search with more trials= "
                "or a smaller eps_w="
            )
        return good[0]

    def sparsify(
        self,
        trial: Trial,
        *,
        name: str = "score",
        on: str = "",
        callbacks: Sequence[Callback] | None = None,
    ) -> SparsifyResult:
        """Return the network of `trial` with its plan and record.

        Parameters
        ----------
        trial : Trial
            One of `record.trials`.
        name, on : str
            Name of the score, and the images that it was measured on; shown in the report.
        callbacks : list of Callback, optional
            Receive the progress.

        Returns
        -------
        SparsifyResult
        """
        with self.pruner.progress.reporting_to(callbacks, make_display):
            small = self.pruner.prune(replace(self.penalty, per_group=dict(trial.eps)))
        if trial.score is None:
            return small
        score = Score(name=name, before=self.record.intact, after=trial.score, on=on)
        return replace(small, record=replace(small.record, score=score))


@neutral_context()
def search(
    model: nn.Module | Pruner,
    images: Images | None,
    score: Metric,
    *,
    patterns: Division = None,
    trials: int = 50,
    cost: str = "params",
    eps_w: Range = STRENGTHS,
    eps_l2: Range = STRENGTHS,
    cost_range: Range = (0.0, 1.0),
    early_stop: float | None = 2.0,
    penalty: EntropicPenalty = EntropicPenalty(),  # noqa: B008
    storage: str | os.PathLike[str] | None = None,
    name: str = "entrim",
    sampler: str = "tpe",
    seed: int = 0,
    timeout: float | None = None,
    callbacks: Sequence[Callback] | None = None,
    **options: Any,
) -> SearchResult:
    """Search for the penalty of each part of the network, cost against score.

    Statistics are collected once; a trial then selects, reconstructs, prunes and scores. Needs the
    extra `search` (Optuna).

    Parameters
    ----------
    model : nn.Module or Pruner
        The network, or a `Pruner` whose statistics and options are used.
    images : Tensor or iterable
        Images without labels, as for `sparsify`; None with a `Pruner`.
    score : callable
        The metric of a network in eval mode, the higher the better: for instance the accuracy on
        labeled images other than those that the result is reported on.
    patterns : str, list or dict, optional
        The parts of the network that have their own penalty: patterns as in `sparsify`, or
        `{"early": "layer1.*", "late": ["layer2.*", "*"]}`; the first match counts. By default four
        parts of neighboring groups.
    trials : int, default 50
        The total number, including those of earlier runs and other processes on `storage`.
    cost : {"params", "macs"}, default "params"
    eps_w, eps_l2 : (float, float)
        The ranges of -eps_w and eps_l2, on a logarithmic scale.
    cost_range : (float, float)
        The relevant fractions of the cost. Trials outside end once the channels are selected.
    early_stop : float or None, default 2.0
        A trial also ends there if an earlier one costs no more and its layers lose this many times
        less, estimated without labels; None scores all.
    penalty : EntropicPenalty
        Further options of the penalty, such as `coupling` or `round_to`.
    storage : path, optional
        A file in which every trial is stored. Call again with the same file to continue after an
        interruption, or from several processes at once to share the work. A file of another
        network, other images or other options is refused; for another `score` use another `name`.
    name : str, default "entrim"
        The name of the search in that file, which may contain several.
    sampler : {"tpe", "random"}, default "tpe"
        "random" is the baseline.
    seed : int, default 0
        The same seed finds the same trials, with one process.
    timeout : float, optional
        Seconds after which no further trial begins. Each call runs at least one.
    callbacks : list of Callback, optional
        Receive the progress. By default, progress is shown if a person is watching; `()` disables
        it.
    **options
        `reconstruction`, `include`, `exclude`, `calibration` and `example_inputs` of `Pruner`.

    Returns
    -------
    SearchResult

    Examples
    --------
    >>> import torch, entrim
    >>> g = torch.Generator().manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    >>> x = torch.randn(300, 8, generator=g)
    >>> y = net(x).argmax(1)
    >>> found = entrim.search(net, x, lambda n: (n(x).argmax(1) == y).float().mean(), trials=8)
    >>> best = found.best(params=0.8)
    >>> small = found.sparsify(best).model
    >>> small[0].out_features == best.widths["0"] < 16
    True
    """
    config = SearchConfig(
        trials=trials,
        cost=cost,
        eps_w=eps_w,
        eps_l2=eps_l2,
        cost_range=cost_range,
        early_stop=early_stop,
        sampler=sampler,
        seed=seed,
        timeout=timeout,
    )
    begun = time.monotonic()
    check_metric(score, "score")
    if not isinstance(penalty, EntropicPenalty):
        raise BadSettingError(
            f"penalty is a {type(penalty).__name__}: pass entrim.EntropicPenalty(...)"
        )
    if World.current().size > 1:
        raise BadSettingError(
            "a search is not divided by a process group: start processes without torchrun and with "
            "the same storage="
        )
    kept = _storage(storage)
    progress = Progress.of(callbacks, make_display)
    pruner = _pruner(model, images, options, seed, progress.callbacks)
    try:
        with progress.run("search"), pruner.progress.reporting_to(progress.callbacks):
            ready = TrialPruner.of(pruner, penalty)
            parts = parts_of(patterns, ready.groups)
            fingerprint = _fingerprint(pruner, penalty, config, parts)
            study = kept.study(name, config.ranges(parts), fingerprint)
            study.set_sampler(sampler, seed)
            runner = SearchRunner(ready, penalty, progress, study, parts, config, score, begun)
            with progress.stage("search"):
                intact = runner.run()
        tried = runner.known_trials()
    except BaseException:
        if pruner is not model:
            pruner.close()
        raise
    record = SearchRecord(
        model=type(pruner.model).__name__,
        images=pruner.images.count,
        cost=cost,
        intact=intact,
        settings={**pruner.settings(penalty), "parts": parts, **asdict(config)},
        versions=versions(["optuna"]),
        front=pareto(tried, cost),
        trials=tuple(tried),
        seconds=dict(pruner.progress.seconds),
    )
    return SearchResult(record=record, original=pruner.model, penalty=penalty, pruner=pruner)


def _pruner(
    model: nn.Module | Pruner,
    images: Images | None,
    options: Mapping[str, Any],
    seed: int,
    callbacks: Sequence[Callback] | None,
) -> Pruner:
    if isinstance(model, Pruner):
        if images is not None or options:
            raise BadSettingError(
                "a Pruner has its own images and options: pass images=None and no options"
            )
        return model
    unknown = sorted(options.keys() - set(OPTIONS))
    if unknown:
        raise BadSettingError(
            f"search does not take {', '.join(unknown)}: of Pruner it takes {', '.join(OPTIONS)}"
        )
    if images is None:
        raise BadSettingError("there are no images: pass a few hundred")
    return Pruner(model, images, seed=seed, callbacks=callbacks, **options)


def _storage(file: str | os.PathLike[str] | None) -> "Storage":
    try:
        from entrim.hpo.study import Storage
    except ImportError as error:
        raise MissingExtraError("search", "optuna", "search") from error
    return Storage.of(None if file is None else Path(file))


@contextmanager
def at_work(file: Path) -> Iterator[None]:
    """Protect the storage `file` from removal; after an error, remove it if it is unused."""
    try:
        with atomic.shared_lock(file):
            yield
    except BaseException:
        remove_unused(file)
        raise


def remove_unused(file: Path) -> bool:
    """Remove a storage without finished trials that no process uses; return whether it was."""
    try:
        with atomic.exclusive_lock(file, wait=False):
            if file.stat().st_size and not _storage(file).empty:
                return False
            file.unlink()
    except BlockingIOError:
        return False
    return True


def _fingerprint(
    pruner: Pruner, penalty: EntropicPenalty, config: SearchConfig, parts: Parts
) -> dict[str, str]:
    """Return checksums that identify this search."""
    settings = pruner.settings(penalty)
    settings["calibration"] = {**settings["calibration"], "memory_limit": None}
    space = (dict(parts), config.eps_w, config.eps_l2, config.cost, sorted(settings.items()))
    return {
        "network": _digest(class_name_of(pruner.model), dict(name_tensors(pruner.model))),
        "images": f"{_digest(repr(dict(pruner.images.fixed)), {})} {pruner.images.checksum()}",
        "settings": _digest(repr(space), {}),
    }


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
