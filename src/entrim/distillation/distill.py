"""Distillation: train the pruned network to reproduce the outputs of the original."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import nn

from entrim.calibration.data import Images, read_images
from entrim.callbacks import Callback, Progress
from entrim.config import Distillation
from entrim.distillation.augment import Augmentation
from entrim.distillation.loss import distillation_task
from entrim.distillation.trainer import TrainingConfig, TrainingResult, train
from entrim.errors import BadImagesError, BadSettingError, DivergedWarning
from entrim.graph.eager import isolate_random_state, neutral_context, unwrap
from entrim.pipeline import Pruner
from entrim.records import Distilled
from entrim.results import SparsifyResult, now
from entrim.storage.checkpoint import CheckpointStore
from entrim.surgery.plan import Plan
from entrim.surgery.structure import values_of


@neutral_context()
@isolate_random_state()
def distill(
    result: SparsifyResult,
    images: Images | Pruner,
    distillation: Distillation = Distillation(),  # noqa: B008
    *,
    teacher: nn.Module | None = None,
    checkpoint_dir: str | os.PathLike[str] | CheckpointStore | None = None,
    callbacks: Sequence[Callback] | None = None,
) -> SparsifyResult:
    """Return the pruned network, trained to reproduce the outputs of the original.

    For cases in which `sparsify` alone loses too much accuracy, and there is time to train but
    there are no labels. The loss is the divergence KL(original || pruned) of the softmax for a
    classifier, otherwise the squared error relative to the variance of the original outputs. All
    weights are trained; BatchNorm keeps its statistics, and dropout is off. The returned state has
    the lowest loss on hold-out images; the state before the training is a candidate too. A score
    and the error of the outputs belong to the network before: they are dropped from the record.

    Parameters
    ----------
    result : SparsifyResult
        The result of `sparsify`; it is not modified.
    images : Tensor, iterable or Pruner
        Images as for `sparsify`, the same ones or, better, more; those of a `Pruner` if one is
        passed.
    distillation : Distillation
        How to train.
    teacher : nn.Module, optional
        The network to learn from; by default `result.original`.
    checkpoint_dir : path, optional
        A folder for the state after every epoch. If the call is interrupted, repeat it to continue
        after the last finished epoch, with the same result on the same machine and number of
        threads. The folder is removed when the call returns.
    callbacks : list of Callback, optional
        Receive the progress.

    Returns
    -------
    SparsifyResult

    Warns
    -----
    DivergedWarning
        The loss became NaN: lower the learning rate.

    Examples
    --------
    >>> import torch, entrim
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    >>> x = torch.randn(600, 8)
    >>> better = entrim.distill(entrim.sparsify(net, x[:99], entrim.Widths({"0": 4})), x)
    >>> better.record.distilled.after < better.record.distilled.before
    True
    """
    if not isinstance(result, SparsifyResult):
        raise BadSettingError(
            f"this is a {type(result).__name__}: pass the result of entrim.sparsify()"
        )
    if not isinstance(distillation, Distillation):
        raise BadSettingError(
            f"distillation is a {type(distillation).__name__}: pass entrim.Distillation(...)"
        )
    progress = Progress.of(callbacks)
    config = TrainingConfig(
        epochs=distillation.epochs,
        batch=distillation.batch_size,
        learning_rate=distillation.learning_rate,
        mode="eval",
        patience=distillation.patience,
        seed=distillation.seed,
    )
    data = images.images if isinstance(images, Pruner) else read_images(images, result.model)
    held = _holdout_size(data.count, distillation.holdout)
    task = distillation_task(
        _teacher(result, teacher),
        data,
        held,
        Augmentation(shift=distillation.shift, flip=distillation.flip),
        distillation.temperature,
        distillation.seed,
    )
    store = CheckpointStore.at(checkpoint_dir)
    with progress.stage("distill"):
        trained = train(
            result.model, task, config, checkpoints=store, stage="distill", report=progress.report
        )
    if store is not checkpoint_dir:
        store.remove()
    return _result(result, trained, task.count, held, asdict(distillation))


def _teacher(result: SparsifyResult, teacher: nn.Module | None) -> nn.Module:
    found = result.original if teacher is None else teacher
    if not isinstance(found, nn.Module):
        raise BadSettingError(
            f"the teacher is a {type(found).__name__}: pass teacher=, the network before pruning"
        )
    return unwrap(found)


def _holdout_size(count: int, share: float) -> int:
    """Return the number of hold-out images."""
    held = round(share * count)
    if not 2 <= held <= count - 2:
        raise BadImagesError(
            f"{count} images leave {held} to hold out and {count - held} to train on: pass more "
            "images or another holdout, for at least 2 of each"
        )
    return held


def _result(
    result: SparsifyResult, trained: TrainingResult, count: int, held: int, settings: dict[str, Any]
) -> SparsifyResult:
    """Return the trained network with its plan, and with the training in its record."""
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
        holdout=held,
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
            score=None,  # of the network before the training
            error=None,
            holdout=None,
        ),
    )
