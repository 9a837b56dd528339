"""Detectors of ultralytics: pruned, saved as checkpoints, and trained further.

`YOLO(path)` loads the checkpoints without entrim; `predict`, `val` and `export` run as usual.
Training needs `trainer=PrunedTrainer`, because the trainers of ultralytics build a network from
its YAML description, which cannot describe the widths of a pruned one.
"""

import copy
import functools
import io
import os
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from entrim.calibration.data import Images
from entrim.config import Patterns, Target, list_patterns
from entrim.errors import BadImagesError, BadSettingError, SaveError
from entrim.graph.eager import copy_module
from entrim.integrations.packages import import_package
from entrim.pipeline import sparsify
from entrim.results import SparsifyResult
from entrim.storage import atomic
from entrim.surgery.prune import SourceModel

_KIND = "pruned"
"""Entry of the YAML description with the name of the first layer, which is replaced by a remedy."""
_REMEDY = (
    "this network was pruned, and its YAML describes the original: train it with "
    "yolo.train(..., trainer=entrim.integrations.ultralytics.PrunedTrainer)"
)


def _ultralytics(module: str = "ultralytics") -> Any:
    return import_package(module, "ultralytics", "entrim.integrations.ultralytics")


class ImageFiles(Dataset[Tensor]):
    """Image files as inputs of a detector: padded to squares, RGB, between 0 and 1.

    Parameters
    ----------
    files : path or iterable of paths
        A folder, which is searched with its subfolders, or the files.
    size : int, default 640
        Side of the squares, `imgsz` of ultralytics.
    """

    def __init__(
        self,
        files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        size: int = 640,
    ) -> None:
        known = _ultralytics("ultralytics.data.utils").IMG_FORMATS
        if isinstance(files, str | os.PathLike):
            found = sorted(Path(files).rglob("*"))
            self.files = [file for file in found if file.suffix[1:].lower() in known]
        else:
            self.files = [Path(file) for file in files]
        if not self.files:
            raise BadImagesError(f"{files} contains no images: pass a folder with {sorted(known)}")
        self._pad = _ultralytics("ultralytics.data.augment").LetterBox((size, size), auto=False)
        self._read = _ultralytics("ultralytics.utils.patches").imread

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        image = self._read(str(self.files[index]))
        if image is None:
            raise BadImagesError(f"{self.files[index]} cannot be read: remove or replace it")
        pixels = torch.from_numpy(self._pad(image=image)).flip(-1)  # read as BGR
        return pixels.permute(2, 0, 1).float() / 255


def sparsify_yolo(
    yolo: Any,
    images: Images,
    target: Target | None = None,
    *,
    exclude: Patterns = (),
    **options: Any,
) -> SparsifyResult:
    """Prune the network of a YOLO; its head, and the number of its inputs, do not change.

    Parameters
    ----------
    yolo : ultralytics.YOLO or path
        The detector; it is not modified. A path is loaded with `YOLO(path)`.
    images : ImageFiles or other images
        A few hundred images without labels, prepared as by `ImageFiles`.
    target : Budget, Widths or EntropicPenalty, optional
        As in `entrim.sparsify`.
    exclude : str or list of str, default ()
        Patterns of further groups that are not pruned.
    **options
        Further options of `entrim.sparsify`.

    Returns
    -------
    SparsifyResult
        `result.model` is a network of the same class; `save_yolo` writes it.

    Raises
    ------
    MissingPackageError
        If ultralytics is not installed.
    BadSettingError
        If `yolo` is not a detector in PyTorch, or its BatchNorm layers were merged.
    """
    model = _network(yolo)
    head = f"model.{len(model.model) - 1}.*"
    result = sparsify(model, images, target, exclude=[head, *list_patterns(exclude)], **options)
    _update_sizes(result.model, model)
    return result


def save_yolo(model: nn.Module, file: str | os.PathLike[str]) -> None:
    """Write a network of `sparsify_yolo` as a checkpoint that `YOLO(file)` loads without entrim.

    As in all checkpoints of ultralytics, weights are in half precision.

    Parameters
    ----------
    model : nn.Module
        `result.model`, or the network of a YOLO that was trained with `PrunedTrainer`.
    file : path
        The checkpoint, with the suffix .pt.

    Raises
    ------
    SaveError
        If the network was not pruned, or the file cannot be written.
    """
    place = Path(file)
    if place.suffix != ".pt":
        raise SaveError(f"ultralytics does not load {place}: name a file that ends with .pt")
    if SourceModel.of(model) is None or not isinstance(getattr(model, "yaml", None), dict):
        raise SaveError(
            f"this {type(model).__qualname__} was not pruned by sparsify_yolo: pass result.model"
        )
    small: Any = copy_module(model)
    settings = getattr(small, "args", {})
    small.args = dict(settings if isinstance(settings, dict) else vars(settings))
    small.criterion = None
    small.yaml = _disable_yaml(small.yaml)
    content = io.BytesIO()
    torch.save(
        {
            "epoch": -1,
            "model": small.half(),
            "train_args": small.args,
            "date": datetime.now(UTC).isoformat(),
            "version": _ultralytics().__version__,
        },
        content,
    )
    try:
        atomic.write(place, content.getvalue())
    except OSError as error:
        raise SaveError(
            f"{place} cannot be written ({error.strerror}): free space, or pass another file"
        ) from error


def _network(yolo: Any) -> Any:
    """Return the network of a YOLO, or of the checkpoint at a path."""
    if isinstance(yolo, str | os.PathLike):
        yolo = _ultralytics().YOLO(yolo)
    model: Any = getattr(yolo, "model", None)
    tasks = _ultralytics("ultralytics.nn.tasks")
    if not isinstance(model, tasks.DetectionModel):
        raise BadSettingError(
            f"a detector is required, got {type(model or yolo).__name__}: pass YOLO('model.pt') "
            "for the task detect, segment, pose or obb"
        )
    if not any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
        raise BadSettingError(
            "the BatchNorm layers of the network were merged, as predict and val do: load it again"
        )
    return model


def _update_sizes(small: nn.Module, original: nn.Module) -> None:
    """Update `c`, by which blocks split the output of `cv1` on some runtimes, and `np`."""
    origin, changed = SourceModel.of(small), set[str]()
    if origin is None:
        return
    for name, module in small.named_modules():
        sizes: Any = vars(module)
        first: Any = getattr(module, "cv1", None)
        if type(sizes.get("c")) is int and isinstance(getattr(first, "conv", None), nn.Conv2d):
            before = original.get_submodule(f"{name}.cv1.conv").out_channels
            sizes["c"] = first.conv.out_channels * sizes["c"] // before
            changed.add(f"{name}.c")
        if type(sizes.get("np")) is int:
            sizes["np"] = sum(parameter.numel() for parameter in module.parameters())
            changed.add(f"{name}.np")
    replace(origin, counts=sorted(changed.union(origin.counts))).write_on(small)


def _disable_yaml(description: dict[str, Any]) -> dict[str, Any]:
    """Return the YAML of a network; building it fails with the remedy, not with full widths."""
    if _KIND in description:
        return description
    (where, repeats, kind, sizes), *others = description["backbone"]
    first = [where, repeats, _REMEDY, sizes]
    return {**description, "backbone": [first, *others], _KIND: kind}


def _original_description(description: dict[str, Any]) -> dict[str, Any]:
    """Return the YAML from which the network was built before it was pruned."""
    if _KIND not in description:
        return description
    (where, repeats, _, sizes), *others = description["backbone"]
    return {**description, "backbone": [[where, repeats, description[_KIND], sizes], *others]}


@functools.cache
def _pruned_trainer() -> type:
    trainer: Any = _ultralytics("ultralytics.models.yolo.detect").DetectionTrainer

    class PrunedTrainer(trainer):
        """Train a pruned detector: `YOLO("small.pt").train(..., trainer=PrunedTrainer)`.

        With another number of classes, the head is built again; its other weights are kept.
        """

        def get_model(
            self, cfg: Any = None, weights: Any = None, verbose: bool = True
        ) -> nn.Module:
            """Return the pruned network instead of one that is built from its YAML."""
            if weights is None:
                raise BadSettingError(
                    "a pruned network cannot be built without its weights: leave pretrained=False "
                    "out, and pass its checkpoint to YOLO"
                )
            small = copy.deepcopy(weights).float()
            if small.yaml["nc"] != self.data["nc"]:
                full = super().get_model(_original_description(small.yaml), None, verbose)
                _replace_head(small, full)
            return small

    PrunedTrainer.__qualname__ = "PrunedTrainer"
    return PrunedTrainer


def _replace_head(small: Any, full: Any) -> None:
    """Use the head of `full` in `small`, with those weights of the previous one that fit."""
    old, new = small.model[-1], full.model[-1]
    expected = new.state_dict()
    fitting = {
        name: value
        for name, value in old.state_dict().items()
        if name in expected and expected[name].shape == value.shape
    }
    new.load_state_dict(fitting, strict=False)
    small.model[-1] = new
    small.yaml = {**small.yaml, "nc": full.yaml["nc"]}


def __getattr__(name: str) -> Any:
    """Create the trainer when it is first used, because its base class is in ultralytics."""
    if name != "PrunedTrainer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _pruned_trainer()
