"""The work folder of a reproduction: finished results are not computed again."""

import copy
import hashlib
import json
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from entrim import Callback, ProgressEvent
from entrim.distillation.trainer import TrainingConfig, TrainingTask, train
from entrim.errors import EntrimError, SaveError
from experiments.storage import cache_folder, lock_file, model_fingerprint, write

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
    """A folder with finished points and with checkpoints of trainings."""

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
        """Return the result of `measure`, from the folder if it is there for these settings.

        A point that cannot be read, or without the folder `artifact` that `measure` writes, is
        measured again.
        """
        file = self.path_of(name, settings).with_suffix(".json")
        found = _read(file, artifact)
        if found is not None:
            return found
        self.check_may_run(name)
        with self.lock(name, file):
            return _read(file, artifact) or self._measure(file, name, settings, measure)

    def _measure(
        self, file: Path, name: str, settings: Mapping[str, Any], measure: Callable[[], Point]
    ) -> Point:
        found = {**measure(), "made with": environment()}
        content = json.dumps({"name": name, "settings": settings, "found": found}, indent=1)
        try:
            write(file, content.encode())
        except OSError as error:
            raise _write_error(file, error) from error
        return json.loads(content)["found"]

    @contextmanager
    def lock(self, name: str, file: Path) -> Iterator[None]:
        """Wait until no other process is writing `file`, then keep others out."""
        lock = self.folder / ".locks" / file.name
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            lock.touch()
        except OSError as error:
            raise _write_error(lock, error) from error
        with ExitStack() as stack:
            try:
                stack.enter_context(lock_file(lock, wait=False))
            except BlockingIOError:
                self.report(ProgressEvent(stage=name, name="", done=0, total=1, detail=_WAITING))
                stack.enter_context(lock_file(lock))
            yield

    def train(
        self, name: str, model: nn.Module, task: TrainingTask, config: TrainingConfig
    ) -> nn.Module:
        """Return `model` trained, in eval mode; an interrupted training is continued.

        The checkpoint is named by network and configuration, so that two trainings never share
        one. A longer training continues the longest that is its beginning.
        """
        start = model_fingerprint(model)

        def file_of(config: TrainingConfig) -> Path:
            settings = {"network": start, "config": asdict(config), "task": task.identity}
            return self.path_of(name, settings).with_suffix(".checkpoint")

        def loss(*args: Any) -> Tensor:  # called only where a training is not finished
            self.check_may_run(name)
            return task.loss(*args)

        file = file_of(config)
        if not file.exists():
            self.check_may_run(name)
        fewer = (replace(config, epochs=epochs) for epochs in range(config.epochs - 1, 0, -1))
        shorter = ((one, file_of(one)) for one in fewer if config.continues(one))
        fast = convert_conv2d_weight_memory_format(copy.deepcopy(model), torch.channels_last)
        with nullcontext() if self.only_finished else self.lock(name, file):
            done = train(
                fast,
                replace(task, loss=loss),
                config,
                checkpoint=file,
                shorter=next((run for run in shorter if run[1].exists()), None),
                stage=name,
                report=self.report,
            )
        plain = convert_conv2d_weight_memory_format(done.model, torch.contiguous_format)
        return plain.eval()

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


def _write_error(file: Path, error: OSError) -> SaveError:
    return SaveError(
        f"{file} cannot be written ({error}): free some space, or choose another --work folder"
    )


def _read(file: Path, artifact: Path | None) -> Point | None:
    """Return a finished point; None where it is missing or incomplete."""
    if artifact is not None and not artifact.is_dir():
        return None
    try:
        return json.loads(file.read_text())["found"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
