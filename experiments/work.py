"""The work folder of a reproduction: results in its checkpoint stores are not computed again."""

import copy
import hashlib
import json
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from entrim import Callback, ProgressEvent
from entrim.distillation.trainer import TrainingConfig, TrainingResult, TrainingTask, train
from entrim.errors import EntrimError, SaveError
from entrim.storage.atomic import exclusive_lock
from entrim.storage.checkpoint import CheckpointStore
from experiments.storage import cache_folder, model_fingerprint

Point = dict[str, Any]
Report = Callable[[ProgressEvent], None]
_WAITING = "another process is computing this: waiting for its result"


class NotFinishedError(EntrimError, LookupError):
    """A result was never computed in this folder, and nothing may be run."""


class ReportCallback(Callback):
    """Passes every step to a function."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def on_step(self, event: ProgressEvent) -> None:
        """Pass on a finished step."""
        self.report(event)


def work_folder() -> Path:
    """Return the default folder of reproductions, in the cache."""
    return cache_folder() / "reproduce"


@dataclass(frozen=True, slots=True)
class Work:
    """A folder with a checkpoint store for every point and every training."""

    folder: Path
    report: Report = lambda _: None
    only_finished: bool = False
    """Run nothing: raise NotFinishedError for missing results."""

    def point(
        self,
        name: str,
        settings: Mapping[str, Any],
        measure: Callable[[], Point],
        *,
        artifact: Path | None = None,
    ) -> Point:
        """Return the result of `measure`, from the store if it was measured with these settings.

        A damaged point, or one without the folder `artifact` that `measure` writes, is measured
        again.
        """

        def run() -> Point:
            self.check_may_run(name)
            return {**measure(), "made with": environment()}

        identity = {"name": name, "settings": json.dumps(settings, sort_keys=True)}
        with self._store(name, settings) as store, store.open(identity):
            if artifact is not None and not artifact.is_dir():
                store.put("point", run())
            return store.get_or_compute("point", run)

    @contextmanager
    def _store(self, name: str, settings: Mapping[str, Any]) -> Iterator[CheckpointStore]:
        """Yield the store of a result; only one process at a time has it, unless it is read."""
        path = self.path_of(name, settings)
        folder = path.with_name("checkpoints") / path.name
        with ExitStack() as stack:
            if not self.only_finished:
                stack.enter_context(self.lock(name, path))
            yield CheckpointStore(folder=folder, read_only=self.only_finished)

    @contextmanager
    def lock(self, name: str, file: Path) -> Iterator[None]:
        """Wait until no other process holds the lock of `file`, then hold it."""
        lock = self.folder / ".locks" / file.name
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            lock.touch()
        except OSError as error:
            raise SaveError(
                f"{lock} cannot be written ({error}): free some space, or choose another --work "
                "folder"
            ) from error
        with ExitStack() as stack:
            try:
                stack.enter_context(exclusive_lock(lock, wait=False))
            except BlockingIOError:
                self.report(ProgressEvent(stage=name, name="", done=0, total=1, detail=_WAITING))
                stack.enter_context(exclusive_lock(lock))
            yield

    def train(
        self, name: str, model: nn.Module, task: TrainingTask, config: TrainingConfig
    ) -> nn.Module:
        """Return `model` trained, in eval mode; an interrupted training is continued.

        With a constant learning rate, a longer training continues a shorter one.
        """
        return self.train_with_history(name, model, task, config).model.eval()

    def train_with_history(
        self, name: str, model: nn.Module, task: TrainingTask, config: TrainingConfig
    ) -> TrainingResult:
        """Return the same training with its losses, epoch by epoch."""

        def checked(function: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any) -> Any:  # called only if the training is not finished
                self.check_may_run(name)
                return function(*args)

            return run

        settings = {
            "network": model_fingerprint(model),
            "config": config.identity,
            "task": task.identity,
        }
        fast = convert_conv2d_weight_memory_format(copy.deepcopy(model), torch.channels_last)
        with self._store(name, settings) as store:
            done = train(
                fast,
                replace(task, loss=checked(task.loss), holdout=checked(task.holdout)),
                config,
                checkpoints=store,
                stage=name,
                report=self.report,
            )
        plain = convert_conv2d_weight_memory_format(done.model, torch.contiguous_format)
        return replace(done, model=plain)

    def check_may_run(self, name: str) -> None:
        """Raise an error if nothing may be run."""
        if self.only_finished:
            raise NotFinishedError(f"{name} is not finished: run without --finished")

    def path_of(self, name: str, settings: Mapping[str, Any]) -> Path:
        """Return the path, without a suffix, of a result with this name and these settings."""
        try:
            if not self.only_finished:
                self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SaveError(
                f"{self.folder} cannot be created ({error}): choose another --work folder"
            ) from error
        text = json.dumps(settings, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return self.folder / f"{re.sub(r'[^a-zA-Z0-9]+', '-', name).strip('-')}_{digest}"


def environment() -> dict[str, Any]:
    """Return what a result depends on besides its settings."""
    return {
        "entrim": version("entrim"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }
