"""The study of a search: trials drawn, kept and read back. The only file that knows Optuna."""

import os
import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
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
_OVER = (TrialState.COMPLETE, TrialState.PRUNED)
PATIENCE = timedelta(minutes=1)
"""How long a trial may go unsigned; its process signs it in the next moment."""
_STRIDE = 1_000_003
"""Between the seeds of two searches, so that their trials do not share seeds."""
_TOKEN = uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class Storage:
    """Where studys are kept: a file, or memory."""

    file: Path | None
    journal_file: BaseStorage

    @classmethod
    def of(cls, file: Path | None) -> "Storage":
        """Return the storage in `file`, made where there is none; None for memory."""
        return cls(file, InMemoryStorage() if file is None else _journal_storage(file))

    @property
    def empty(self) -> bool:
        """Whether no trial of any search in it has ended."""
        kept = self.journal_file
        return not any(
            kept.get_all_trials(study._study_id, deepcopy=False, states=_OVER)
            for study in kept.get_all_studies()
        )

    def study(self, name: str, ranges: Ranges, fingerprint: Mapping[str, str]) -> "Study":
        """Return the study called `name`; one of another search is refused."""
        with _quietly():
            study = optuna.create_study(
                storage=self.journal_file,
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
                f"{self.file} holds a search called {name!r} with other {' and '.join(other)}: "
                "hand over what it was begun with, another storage=, or another name="
            )
        return Study(study, ranges)


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """All trials of one search, shared by every process that has the same file open."""

    study: optuna.Study
    ranges: Ranges

    def set_sampler(self, sampler: str, seed: int) -> None:
        """Draw the trials that begin from now on by this sampler."""
        self.study.sampler = Seeded(sampler, seed)

    @property
    def intact(self) -> float | None:
        """The score of the original, once it is known."""
        return self.study.user_attrs.get("intact")

    def note_intact(self, score: float) -> None:
        """Keep the score of the original."""
        self.study.set_user_attr("intact", score)

    def begin(self, most: int) -> optuna.Trial | None:
        """Return a new trial, or None when `most` have ended or are under way.

        Two processes may begin at once where one is left. Numbers are unique, so the later one
        sees that enough stand before it, and takes its own back.
        """
        if self._count_trials() >= most:
            return None
        trial = self.study.ask()
        trial.set_user_attr("by", me())
        if self._count_trials(trial.number) >= most:
            self.drop(trial.number)
            return None
        for name, (low, high) in self.ranges.items():
            trial.suggest_float(name, low, high, log=True)
        return trial

    def end(self, trial: optuna.Trial, notes: Mapping[str, Any], values: Sequence[float]) -> None:
        """Write down how `trial` ended; without values it was pruned or failed."""
        for key, value in notes.items():
            trial.set_user_attr(key, value)
        self.study.tell(trial, list(values) or None, None if values else TrialState.PRUNED)

    def drop(self, number: int) -> None:
        """Take back a trial that was not finished; it does not count."""
        self.study.tell(number, state=TrialState.FAIL, skip_if_finished=True)

    def finished_trials(self) -> list[FrozenTrial]:
        """Return every trial that ended, also those of other processes."""
        return self.study.get_trials(deepcopy=False, states=_OVER)

    def sweep(self) -> None:
        """Drop the trials of processes of this machine that were killed."""
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            by = trial.user_attrs.get("by")
            if not (_just_begun(trial) if by is None else alive(by)):
                self.drop(trial.number)

    def _count_trials(self, before: int | None = None) -> int:
        counting = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
        trials = self.study.get_trials(deepcopy=False, states=counting)
        return sum(before is None or trial.number < before for trial in trials)


class Seeded(BaseSampler):
    """Draws trial n with a generator of its own, seeded by n.

    So a search that was resumed draws as if it had never stopped, and processes that share a file
    do not draw the same: numbers are unique.
    """

    def __init__(self, sampler: str, seed: int) -> None:
        self.kind, self.seed = sampler, seed
        self.inner: BaseSampler = self._of(0)

    def _of(self, number: int) -> BaseSampler:
        return SAMPLERS[self.kind](seed=(self.seed * _STRIDE + number) % 2**32)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Take up the generator of `trial`."""
        self.inner = self._of(trial.number)

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return what is drawn together."""
        return self.inner.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Draw what is drawn together."""
        return self.inner.sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Draw what is drawn alone."""
        return self.inner.sample_independent(study, trial, param_name, param_distribution)


def _journal_storage(file: Path) -> JournalStorage:
    try:
        lock = JournalFileOpenLock(str(file))
        _mend(file, lock)
        return JournalStorage(JournalFileBackend(str(file), lock_obj=lock))
    except OSError as error:
        raise StorageError(
            f"the search cannot be kept in {file} ({error.strerror}): hand over a file in a folder "
            "that is there and can be written to"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(
            f"{file} is not the file of a search ({type(error).__name__}): hand over another path"
        ) from error


def _mend(file: Path, lock: JournalFileOpenLock) -> None:
    """Cut off a last line without its end: whoever wrote it was killed on the way."""
    lock.acquire()
    try:
        with file.open("a+b") as journal:
            journal.seek(0)
            text = journal.read()
            if text and not text.endswith(b"\n") and text.startswith(b"{"):
                journal.truncate(text.rfind(b"\n") + 1)
    finally:
        lock.release()


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep Optuna from announcing the study: progress is reported by callbacks."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def me() -> str:
    """Return what tells this process from all others, also from earlier ones of its number."""
    return f"{socket.gethostname()} {os.getpid()} {_TOKEN}"


def alive(by: str) -> bool:
    """Whether the process `by` may still run; one of another machine may."""
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
    """Whether the process of `trial` may be about to sign it."""
    begun = trial.datetime_start
    return begun is not None and datetime.now() - begun < PATIENCE
