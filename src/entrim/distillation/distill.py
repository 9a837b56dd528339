"""Distillation: train the pruned network to reproduce the outputs of the original."""

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import torch
from torch import nn

from entrim.calibration.data import CalibrationData, Images, read_images
from entrim.callbacks import Callback, Progress, ProgressEvent
from entrim.config import BATCH_SIZE, Distillation
from entrim.display.bars import make_display
from entrim.distillation.augment import Augmentation
from entrim.distillation.loss import distillation_task, teacher_ignores_mirroring
from entrim.distillation.trainer import (
    TrainingConfig,
    TrainingResult,
    TrainingTask,
    estimate_seconds,
    train,
)
from entrim.errors import BadImagesError, BadSettingError, DivergedWarning, warn
from entrim.graph.eager import isolate_random_state, neutral_context, unwrap
from entrim.metrics import Kind, compare
from entrim.pipeline import Pruner
from entrim.records import Distilled, Holdout
from entrim.results import SparsifyResult, now
from entrim.storage.checkpoint import CheckpointStore, fingerprint
from entrim.surgery.prune import values_of


@dataclass(frozen=True, slots=True)
class RecoveryImages:
    """The images of a distillation."""

    training: CalibrationData
    """For training and validation; no hold-out image of the pruning run is among them."""
    holdout: CalibrationData | None
    """The hold-out images of the pruning run, which measure the final network, if available."""


@neutral_context()
@isolate_random_state()
def distill(
    result: SparsifyResult,
    images: Images | Pruner | None = None,
    distillation: Distillation = Distillation(),  # noqa: B008
    *,
    teacher: nn.Module | None = None,
    checkpoint_dir: str | os.PathLike[str] | CheckpointStore | None = None,
    callbacks: Sequence[Callback] | None = None,
) -> SparsifyResult:
    """Return the pruned network, trained to reproduce the outputs of the original.

    For cases in which `sparsify` alone loses too much accuracy, and there is time to train but
    there are no labels. The images are shifted, and mixed in pairs; the original network computes
    the target of every mixed image. The loss is the divergence KL(original || pruned) of the
    softmax for classes, and the squared error relative to the variance of the original outputs for
    values. All weights are trained; BatchNorm keeps its statistics, and dropout is off.

    A tenth of the images is not trained on. If the trained network is not better on them, the
    network before the training is returned, and `record.distilled.gained` is False. The hold-out
    images of `sparsify` are neither trained on nor used for this decision: `record.holdout`
    compares the final network with the original on them. A score belongs to the network before: it
    is dropped from the record, and so is the guarantee of an agreement.

    Parameters
    ----------
    result : SparsifyResult
        The result of `sparsify`; it is not modified.
    images : Tensor, iterable or Pruner, optional
        Images as for `sparsify`; more are better. By default those that `result` was pruned with;
        they must be passed if `result` was loaded. Hold-out images of `result` among them are left
        out.
    distillation : Distillation
        How to train.
    teacher : nn.Module, optional
        The network to learn from; by default `result.original`.
    checkpoint_dir : path, optional
        A folder for the state after every epoch. If the call is interrupted, repeat it to continue
        after the last finished epoch, with the same result on the same machine and number of
        threads. The folder is removed when the call returns.
    callbacks : list of Callback, optional
        Receive the progress. The first event contains the estimated time. By default, progress is
        shown if a person is watching; `()` disables it.

    Returns
    -------
    SparsifyResult

    Raises
    ------
    BadImagesError
        There are too few images, or none were passed for a result that was loaded.

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
    >>> better = entrim.distill(entrim.sparsify(net, x, entrim.Widths({"0": 4})))
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
    progress, learned = Progress.of(callbacks, make_display), _teacher(result, teacher)
    data = _read(result, images)
    task, held = _task(result, learned, data.training, distillation)
    config = TrainingConfig(
        epochs=distillation.epochs_for(task.count),
        batch=distillation.batch_size,
        learning_rate=distillation.learning_rate,
        optimizer="adamw",
        warmup=distillation.warmup,
        mode="eval",
        patience=distillation.patience,
        return_state="better" if distillation.patience is None else "best",
        seed=distillation.seed,
    )
    store = CheckpointStore.at(checkpoint_dir)
    options = asdict(distillation)
    with progress.run("distill"):
        with progress.stage("distill"):
            if progress.callbacks:
                progress.report(_estimate(result.model, task, config))
            trained = train(
                *(result.model, task, config),
                checkpoints=store,
                stage="distill",
                report=progress.report,
            )
        if store is not checkpoint_dir:
            store.remove()
        better = _result(result, trained, task.count, held, options, data.holdout)
        progress.report_result(options, better.record.metrics)
    return better


def _teacher(result: SparsifyResult, teacher: nn.Module | None) -> nn.Module:
    found = result.original if teacher is None else teacher
    if not isinstance(found, nn.Module):
        raise BadSettingError(
            f"the teacher is a {type(found).__name__}: pass teacher=, the network before pruning"
        )
    return unwrap(found)


def _read(result: SparsifyResult, images: Images | Pruner | None) -> RecoveryImages:
    """Return the images to train on, without the hold-out images of the pruning run."""
    if images is None:
        if result.fitting_images is None:
            raise BadImagesError(
                "the result does not contain its images, because it was loaded or they were on "
                "disk: pass images"
            )
        return RecoveryImages(result.fitting_images, result.holdout_images)
    given = images.images if isinstance(images, Pruner) else read_images(images, result.model)
    held = set(result.record.holdout_digests)
    if not held:
        return RecoveryImages(given, None)
    known = torch.tensor([digest in held for digest in given.digests()])
    found = given.subset(known.nonzero()[:, 0]) if bool(known.any()) else None
    rest = given.subset((~known).nonzero()[:, 0]) if bool(known.any()) else given
    return RecoveryImages(rest, result.holdout_images or found)


def _task(
    result: SparsifyResult,
    teacher: nn.Module,
    images: CalibrationData,
    distillation: Distillation,
) -> tuple[TrainingTask, int]:
    """Return the training task, and the number of validation images."""
    held = _validation_size(images.count, distillation.holdout)
    kinds = result.record.settings.get("calibration", {}).get("outputs", "auto")
    flip = distillation.flip
    if flip is None:
        flip = teacher_ignores_mirroring(teacher, images, kinds)
    augment = Augmentation(shift=distillation.shift, flip=flip, mix=distillation.mix)
    temperature, seed = distillation.temperature, distillation.seed
    return distillation_task(teacher, images, held, augment, temperature, seed, kinds), held


def _validation_size(count: int, share: float) -> int:
    """Return the number of validation images."""
    held = round(share * count)
    if not 2 <= held <= count - 2:
        raise BadImagesError(
            f"{count} images leave {held} to hold out and {count - held} to train on: pass more "
            "images or another holdout, for at least 2 of each"
        )
    return held


def _estimate(model: nn.Module, task: TrainingTask, config: TrainingConfig) -> ProgressEvent:
    """Return the event that announces the duration of the training."""
    seconds = estimate_seconds(model, task, config)
    return ProgressEvent(
        stage="distill",
        name="estimate",
        done=0,
        total=config.epochs * math.ceil(task.count / config.batch),
        detail=f"{config.epochs} epochs of {task.count} images",
        seconds_left=seconds,
    )


def _result(
    result: SparsifyResult,
    trained: TrainingResult,
    count: int,
    held: int,
    settings: dict[str, Any],
    unseen: CalibrationData | None,
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
        warn(trained.ending, DivergedWarning)
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
        plan=replace(result.plan, weights=weights),
        record=replace(
            was,
            distilled=done,
            earlier=(*was.earlier, *([was.distilled] if was.distilled else [])),
            notes=notes,
            seconds={**was.seconds, "distill": trained.seconds + was.seconds.get("distill", 0.0)},
            score=None,  # of the network before the training
            error=None,
            holdout=_compare(was.holdout, trained.model, result.original, unseen),
            pruned=fingerprint(new.values()),
        ),
    )


def _compare(
    before: Holdout | None, model: nn.Module, original: nn.Module, unseen: CalibrationData | None
) -> Holdout | None:
    """Return the comparison with the original on the hold-out images, if they are available.

    A guarantee is dropped: it was shown for the network before the training.
    """
    if before is None or unseen is None or not unseen.count:
        return None
    kinds = cast("tuple[Kind, ...]", before.outputs)
    found = compare(model, original, unseen.batches(BATCH_SIZE), kinds)
    return replace(
        before,
        images=unseen.count,
        agreement=found.agreement(),
        divergence=found.divergence(),
        error=found.error(),
        guarantee=None,
        note=None,
    )
