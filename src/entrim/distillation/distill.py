"""Recovery without labels: the smaller network learns to say what the original says."""

import math
import os
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from entrim.calibration.data import Calibration, Images, read_images
from entrim.distillation.augment import Augmentation
from entrim.distillation.loss import task_of
from entrim.distillation.trainer import Recipe, Trained, train
from entrim.errors import BadImagesError, BadSettingError, DivergedWarning
from entrim.graph.eager import neutral_context, unwrap
from entrim.records import Distilled, Step, now
from entrim.sparsified import Sparsified
from entrim.surgery.plan import Plan
from entrim.surgery.structure import values_of


@neutral_context()
def distill(
    result: Sparsified,
    images: Images,
    *,
    epochs: int = 10,
    learning_rate: float = 1e-3,
    batch: int = 64,
    temperature: float = 4.0,
    shift: float = 1 / 16,
    flip: bool = False,
    held_out: float = 0.1,
    patience: int | None = 5,
    seed: int = 0,
    teacher: nn.Module | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    on_step: Callable[[Step], None] | None = None,
) -> Sparsified:
    """Return the smaller network, trained for a short time to say what the original says.

    For when `sparsify` alone loses more than you can bear, and there is time to train but are no
    labels. `images` are given as to `sparsify`, the same ones or, better, more. `result` is not
    touched. The loss is the divergence KL(original || small) of the softmax where the network puts
    out one matrix of several columns, otherwise the squared error relative to the variance of the
    original's outputs. Part of the images is held out; what is returned is the state with the least
    loss on them, and the start is one of the candidates. All weights learn; BatchNorm keeps its
    statistics and dropout rests. A score in the record, and the error of the outputs, are those of
    the network before: they are dropped, see `Sparsified.scored`.

    - `epochs`, `learning_rate`, `batch`: how long, how fast (falling to 0 as a cosine), how many
      images a step. A loss that becomes NaN ends the run with a `DivergedWarning`: lower the rate.
    - `temperature`: softens both softmaxes; more looks at unlikely classes too.
    - `shift`: every image is moved by up to this part of its height and width each time it is seen,
      0 for never; then the original runs once an image instead of once an image and epoch.
    - `flip`: mirror half of the images, for photographs; not for digits, letters or traffic signs.
    - `held_out`: the part of the images that tells when to stop; `patience`: after how many epochs
      without a better loss on them, None for never.
    - `seed`: of the order, the shifts and the choice of what is held out.
    - `teacher`: whom to learn from, by default `result.original`.
    - `checkpoint`: a file; a run that was stopped or killed goes on from there, to the same bits
      on the same machine and number of threads.
    - `on_step`: called with a `Step` after each batch.

    >>> import torch, entrim
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    >>> x = torch.randn(600, 8)
    >>> better = entrim.distill(entrim.sparsify(net, x[:99], widths={"0": 4}), x)
    >>> better.record.distilled.after < better.record.distilled.before
    True
    """
    if not isinstance(result, Sparsified):
        raise BadSettingError(
            f"this is a {type(result).__name__}: hand over what entrim.sparsify() returned"
        )
    recipe = Recipe(
        epochs=epochs,
        batch=batch,
        learning_rate=learning_rate,
        mode="eval",
        patience=patience,
        seed=seed,
    )
    if not 0 < temperature < math.inf:
        raise BadSettingError(f"temperature is {temperature}: it must be positive, 1 for none")
    data = _read(images, result.model)
    held = _held(data.count, held_out)
    task = task_of(
        _teacher(result, teacher),
        data,
        held,
        Augmentation(shift=shift, flip=flip),
        temperature,
        seed,
    )
    trained = train(
        result.model,
        task,
        recipe,
        checkpoint=None if checkpoint is None else Path(checkpoint),
        stage="distill",
        on_step=on_step,
    )
    settings = {
        **asdict(recipe),
        "temperature": temperature,
        "shift": shift,
        "flip": flip,
        "held_out": held_out,
    }
    return _handed_out(result, trained, task.count, held, settings)


def _read(images: Images, model: nn.Module) -> Calibration:
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    return read_images(images, like.device, like.dtype)


def _teacher(result: Sparsified, teacher: nn.Module | None) -> nn.Module:
    found = result.original if teacher is None else teacher
    if not isinstance(found, nn.Module):
        raise BadSettingError(
            f"the teacher is a {type(found).__name__}: pass teacher=, the network before the cut"
        )
    return unwrap(found)


def _held(count: int, share: float) -> int:
    """Return how many images are held out."""
    if not 0 < share < 1:
        raise BadSettingError(f"held_out is {share}: it is a part of the images, such as 0.1")
    held = round(share * count)
    if not 2 <= held <= count - 2:
        raise BadImagesError(
            f"{count} images leave {held} to hold out and {count - held} to learn from: hand over "
            "more, or another held_out, for at least 2 of each"
        )
    return held


def _handed_out(
    result: Sparsified, trained: Trained, count: int, held: int, settings: dict[str, Any]
) -> Sparsified:
    """Return the trained network with a plan that makes it, and what was done in the record."""
    old, new = values_of(result.model), values_of(trained.model)
    weights = {
        name: tensor.clone()
        for name, tensor in new.items()
        if name in result.plan.weights or not torch.equal(tensor, old[name])
    }
    notes = result.record.notes
    if trained.diverged:
        warnings.warn(trained.ending, DivergedWarning, stacklevel=3)
        notes = (*notes, trained.ending)
    done = Distilled(
        images=count,
        held_out=held,
        settings=settings,
        before=trained.before,
        after=trained.after,
        epochs=len(trained.history),
        best=trained.best,
        ending=trained.ending,
        seconds=trained.seconds,
        date=now(),
    )
    was = result.record
    return replace(
        result,
        model=trained.model,
        plan=Plan(result.plan.kept, weights),
        record=replace(
            was,
            distilled=done,
            earlier=(*was.earlier, *([was.distilled] if was.distilled else [])),
            notes=notes,
            score=None,  # that of the network before
            error=None,
        ),
    )
