"""The Optuna study of a search: its storage, its sampler and its loop."""

import os
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

from entrim.errors import StorageError

SAMPLERS = {"tpe": TPESampler, "random": RandomSampler}
Ranges = Mapping[str, tuple[float, float]]
_FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
PATIENCE = timedelta(minutes=1)
"""Time within which a process must have signed a trial that it started."""
_STRIDE = 1_000_003
"""Difference between the seeds of two searches, so that their trials do not share seeds."""
_TOKEN = uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage of studies: a file, or memory."""

    file: Path | None
    backend: BaseStorage

    @classmethod
    def of(cls, file: Path | None) -> "Storage":
        """Return the storage in `file`, created if it does not exist; None for memory."""
        return cls(file, InMemoryStorage() if file is None else _open_file(file))

    @property
    def empty(self) -> bool:
        """Whether no search in the storage has a finished trial."""
        return not any(
            self.backend.get_all_trials(study._study_id, deepcopy=False, states=_FINISHED)
            for study in self.backend.get_all_studies()
        )

    def study(self, name: str, ranges: Ranges, fingerprint: Mapping[str, str]) -> "Study":
        """Return the study called `name`; refuse the study of another search."""
        with _quietly():
            study = optuna.create_study(
                storage=self.backend,
                study_name=name,
                directions=["minimize", "maximize"],
                load_if_exists=True,
            )
        known = study.user_attrs.get("fingerprint")
        if known is None and not study.get_trials(deepcopy=False):
            study.set_user_attr("fingerprint", dict(fingerprint))
            known = fingerprint
        other = [key for key, value in fingerprint.items() if (known or {}).get(key) != value]
        if other:
            raise StorageError(
                f"{self.file} contains a search called {name!r} with other "
                f"{' and '.join(other)}: pass those of that search, another storage=, or another "
                "name="
            )
        return Study(study, ranges)


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """All trials of one search, shared by all processes that use the same file."""

    study: optuna.Study
    ranges: Ranges

    def set_sampler(self, sampler: str, seed: int) -> None:
        """Use this sampler for the following trials."""
        self.study.sampler = Seeded(sampler, seed)

    @property
    def intact(self) -> float | None:
        """The score of the original network; None if it was not measured yet."""
        return self.study.user_attrs.get("intact")

    def note_intact(self, score: float) -> None:
        """Store the score of the original network."""
        self.study.set_user_attr("intact", score)

    def optimize(
        self,
        objective: Callable[[optuna.Trial], Sequence[float]],
        n_trials: int,
        after_trial: Callable[[FrozenTrial], bool],
    ) -> None:
        """Run trials until `n_trials` are finished or running, in all processes together.

        A trial for which `objective` returns no values is pruned. The loop also ends if
        `after_trial` returns True.
        """

        def run(trial: optuna.Trial) -> Sequence[float]:
            trial.set_user_attr("by", me())
            if self._count_trials(trial.number) >= n_trials:
                raise _SurplusError
            for name, (low, high) in self.ranges.items():
                trial.suggest_float(name, low, high, log=True)
            values = objective(trial)
            if not values:
                raise optuna.TrialPruned
            return values

        def stop(study: optuna.Study, trial: FrozenTrial) -> None:
            if (
                trial.state not in _FINISHED
                or after_trial(trial)
                or self._count_trials() >= n_trials
            ):
                study.stop()

        if self._count_trials() < n_trials:
            with _quietly():
                self.study.optimize(run, callbacks=[stop], catch=_SurplusError)

    def finished_trials(self) -> list[FrozenTrial]:
        """Return all finished trials, including those of other processes."""
        return self.study.get_trials(deepcopy=False, states=_FINISHED)

    def sweep(self) -> None:
        """Discard the trials of killed processes of this machine; they do not count."""
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            by = trial.user_attrs.get("by")
            if not (_just_begun(trial) if by is None else alive(by)):
                self.study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)

    def _count_trials(self, before: int | None = None) -> int:
        trials = self.study.get_trials(deepcopy=False, states=(*_FINISHED, TrialState.RUNNING))
        return sum(before is None or trial.number < before for trial in trials)


class _SurplusError(Exception):
    """Two processes started the last trial at once; the one with the higher number is discarded."""


class Seeded(BaseSampler):
    """Samples trial n with its own generator, seeded by n.

    A resumed search therefore samples as if it had not been interrupted, and processes that share
    a file never sample the same trial, because numbers are unique.
    """

    def __init__(self, sampler: str, seed: int) -> None:
        self.kind, self.seed = sampler, seed
        self.inner: BaseSampler = self._of(0)

    def _of(self, number: int) -> BaseSampler:
        return SAMPLERS[self.kind](seed=(self.seed * _STRIDE + number) % 2**32)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Seed the generator of `trial`."""
        self.inner = self._of(trial.number)

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the parameters that are sampled jointly."""
        return self.inner.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Sample parameters jointly."""
        return self.inner.sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Sample one parameter."""
        return self.inner.sample_independent(study, trial, param_name, param_distribution)


def _open_file(file: Path) -> JournalStorage:
    try:
        lock = JournalFileOpenLock(str(file))
        _remove_incomplete_line(file, lock)
        return JournalStorage(JournalFileBackend(str(file), lock_obj=lock))
    except OSError as error:
        raise StorageError(
            f"the search cannot be stored in {file} ({error.strerror}): pass a file in a folder "
            "that exists and can be written to"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(
            f"{file} is not the file of a search ({type(error).__name__}): pass another path"
        ) from error


def _remove_incomplete_line(file: Path, lock: JournalFileOpenLock) -> None:
    """Remove a last line without its end, written by a process that was killed."""
    lock.acquire()
    try:
        with file.open("a+b") as stream:
            stream.seek(0)
            text = stream.read()
            if text and not text.endswith(b"\n") and text.startswith(b"{"):
                stream.truncate(text.rfind(b"\n") + 1)
    finally:
        lock.release()


@contextmanager
def _quietly() -> Iterator[None]:
    """Disable the log of Optuna: progress is reported by callbacks."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def me() -> str:
    """Return a unique name of this process, different from earlier processes with its id."""
    return f"{socket.gethostname()} {os.getpid()} {_TOKEN}"


def alive(by: str) -> bool:
    """Return whether the process `by` may still run; True for processes of other machines."""
    host, process, token = by.rsplit(" ", 2)
    if host != socket.gethostname() or os.name != "posix":
        return True
    if int(process) == os.getpid():
        return token == _TOKEN
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _just_begun(trial: FrozenTrial) -> bool:
    """Return whether the process of `trial` may not have signed it yet."""
    begun = trial.datetime_start
    return begun is not None and datetime.now() - begun < PATIENCE
