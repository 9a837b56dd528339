"""The folder of a reproduction: what is finished there is not done again."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from entrim import atomic
from entrim.checkpoints import fingerprint
from entrim.errors import EntrimError, SaveError
from entrim.experiments.cache import cache_folder
from entrim.network.follow import copied
from entrim.network.form import values_of
from entrim.recipes import Recipe, Task
from entrim.records import Step
from entrim.training import train

Point = dict[str, Any]


class NotFinishedError(EntrimError, LookupError):
    """Something was never finished in this folder, and nothing shall be run."""


def work_folder() -> Path:
    """Return where reproductions are kept unless told otherwise: in the cache."""
    return cache_folder() / "reproduce"


@dataclass(frozen=True, slots=True)
class Work:
    """A folder of finished points and of trainings under way."""

    folder: Path
    on_step: Callable[[Step], None] = lambda _: None
    only_finished: bool = False
    """Run nothing: what is not finished raises NotFinishedError."""

    def point(self, name: str, settings: Mapping[str, Any], measure: Callable[[], Point]) -> Point:
        """Return what `measure` finds, from the folder when it was found with these settings."""
        file = self.place(name, settings).with_suffix(".json")
        if file.exists():
            return json.loads(file.read_text())["found"]
        self.refuse_to_run(name)
        found = measure()
        content = json.dumps({"name": name, "settings": settings, "found": found}, indent=1)
        try:
            atomic.write(file, content.encode())
        except OSError as error:
            raise SaveError(
                f"{file} cannot be written ({error}): make room, or choose another --work folder"
            ) from error
        return json.loads(content)["found"]

    def trained(self, name: str, model: nn.Module, task: Task, recipe: Recipe) -> nn.Module:
        """Return `model` trained, going on where a run of the same kind was stopped; in eval mode.

        The file is named by network and recipe, so that two runs never meet in one. A longer run
        goes on from the longest that is its beginning.
        """
        begun = fingerprint(values_of(model).values())

        def file_of(told: Recipe) -> Path:
            settings = {"network": begun, "recipe": asdict(told), "task": task.identity}
            return self.place(name, settings).with_suffix(".checkpoint")

        file = file_of(recipe)
        if not file.exists():
            self.refuse_to_run(name)
        fewer = (replace(recipe, epochs=epochs) for epochs in range(recipe.epochs - 1, 0, -1))
        shorter = ((told, file_of(told)) for told in fewer if recipe.continues(told))

        def on_step(step: Step) -> None:  # a finished training takes none
            self.refuse_to_run(name)
            self.on_step(step)

        fast = convert_conv2d_weight_memory_format(copied(model), torch.channels_last)
        done = train(
            fast,
            task,
            recipe,
            checkpoint=file,
            shorter=next((run for run in shorter if run[1].exists()), None),
            stage=name,
            on_step=on_step,
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
