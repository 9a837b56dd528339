"""The folder of a reproduction: what is finished there is not done again."""

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

from entrim import ProgressEvent
from entrim.distillation.trainer import TrainingConfig, TrainingTask, train
from entrim.errors import EntrimError, SaveError
from experiments.storage import cache_folder, fingerprint_of, locked, write

Point = dict[str, Any]
_WAITING = "another run is at it: waiting for what it finds"


class NotFinishedError(EntrimError, LookupError):
    """Something was never finished in this folder, and nothing shall be run."""


def work_folder() -> Path:
    """Return where reproductions are kept unless told otherwise: in the cache."""
    return cache_folder() / "reproduce"


@dataclass(frozen=True, slots=True)
class Work:
    """A folder of finished points and of trainings under way."""

    folder: Path
    on_step: Callable[[ProgressEvent], None] = lambda _: None
    only_finished: bool = False
    """Run nothing: what is not finished raises NotFinishedError."""

    def point(
        self,
        name: str,
        settings: Mapping[str, Any],
        measure: Callable[[], Point],
        *,
        beside: Path | None = None,
    ) -> Point:
        """Return what `measure` finds, from the folder when it was found with these settings.

        What cannot be read there, or has lost what `measure` put `beside` it, is measured again.
        """
        file = self.place(name, settings).with_suffix(".json")
        found = _read(file, beside)
        if found is not None:
            return found
        self.refuse_to_run(name)
        with self.alone(name, file):
            return _read(file, beside) or self._measured(file, name, settings, measure)

    def _measured(
        self, file: Path, name: str, settings: Mapping[str, Any], measure: Callable[[], Point]
    ) -> Point:
        found = {**measure(), "made with": made_with()}
        content = json.dumps({"name": name, "settings": settings, "found": found}, indent=1)
        try:
            write(file, content.encode())
        except OSError as error:
            raise _unwritable(file, error) from error
        return json.loads(content)["found"]

    @contextmanager
    def alone(self, name: str, file: Path) -> Iterator[None]:
        """Wait until no other process is at work on `file`; what it finished is then there."""
        lock = self.folder / ".locks" / file.name
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            lock.touch()
        except OSError as error:
            raise _unwritable(lock, error) from error
        with ExitStack() as held:
            try:
                held.enter_context(locked(lock, wait=False))
            except BlockingIOError:
                self.on_step(ProgressEvent(stage=name, name="", done=0, total=1, detail=_WAITING))
                held.enter_context(locked(lock))
            yield

    def trained(
        self, name: str, model: nn.Module, task: TrainingTask, recipe: TrainingConfig
    ) -> nn.Module:
        """Return `model` trained, going on where a run of the same kind was stopped; in eval mode.

        The file is named by network and recipe, so that two runs never meet in one. A longer run
        goes on from the longest that is its beginning.
        """
        begun = fingerprint_of(model)

        def file_of(told: TrainingConfig) -> Path:
            settings = {"network": begun, "recipe": asdict(told), "task": task.identity}
            return self.place(name, settings).with_suffix(".checkpoint")

        def loss(*args: Any) -> Tensor:  # asked for only where a training is not finished
            self.refuse_to_run(name)
            return task.loss(*args)

        file = file_of(recipe)
        if not file.exists():
            self.refuse_to_run(name)
        fewer = (replace(recipe, epochs=epochs) for epochs in range(recipe.epochs - 1, 0, -1))
        shorter = ((told, file_of(told)) for told in fewer if recipe.continues(told))
        fast = convert_conv2d_weight_memory_format(copy.deepcopy(model), torch.channels_last)
        with nullcontext() if self.only_finished else self.alone(name, file):
            done = train(
                fast,
                replace(task, loss=loss),
                recipe,
                checkpoint=file,
                shorter=next((run for run in shorter if run[1].exists()), None),
                stage=name,
                on_step=self.on_step,
            )
        plain = convert_conv2d_weight_memory_format(done.model, torch.contiguous_format)
        return plain.eval()

    def refuse_to_run(self, name: str) -> None:
        """Raise where nothing shall be run."""
        if self.only_finished:
            raise NotFinishedError(f"{name} is not finished: run without --finished")

    def place(self, name: str, settings: Mapping[str, Any]) -> Path:
        """Return where something of this name and these settings is kept, without a suffix."""
        try:
            if not self.only_finished:
                self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SaveError(
                f"{self.folder} cannot be made ({error}): choose another --work folder"
            ) from error
        text = json.dumps(settings, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return self.folder / f"{re.sub(r'[^a-zA-Z0-9]+', '-', name).strip('-')}_{digest}"


def made_with() -> dict[str, Any]:
    """Return what a figure depends on besides its settings."""
    return {
        "entrim": version("entrim"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }


def _unwritable(file: Path, error: OSError) -> SaveError:
    return SaveError(
        f"{file} cannot be written ({error}): make room, or choose another --work folder"
    )


def _read(file: Path, beside: Path | None) -> Point | None:
    """Return what was found, None where it is not there whole."""
    if beside is not None and not beside.is_dir():
        return None
    try:
        return json.loads(file.read_text())["found"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
