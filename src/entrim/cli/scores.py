"""Metrics: accuracy on labeled images, or a function of the user."""

import hashlib
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from entrim.cli.images import (
    count_images,
    entry_of,
    image_files,
    read_arrays,
    read_images,
    sample_evenly,
)
from entrim.cli.model import read_object
from entrim.errors import CommandError, EntrimError
from entrim.graph.eager import call, copy_without_hooks, leaves
from entrim.results import SparsifyResult
from entrim.storage.checkpoint import fingerprint

_BATCH = 250
_ACCURACY = "accuracy, %"
_LABELS = ("test_images", "test_key", "labels", "labels_key")


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """A function of a network, the higher the better, and its identity."""

    score: Callable[..., Any]
    name: str
    identity: str
    on: str = ""
    """What it is measured on, for the record."""


@dataclass(frozen=True, slots=True, eq=False)
class Accuracy:
    """The percentage of images whose largest output is the right class."""

    images: Tensor
    labels: Tensor

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> float:
        """Return the accuracy of `model`."""
        like = next(model.parameters(), self.images)
        pairs = zip(self.images.split(_BATCH), self.labels.split(_BATCH), strict=True)
        right = sum(
            int((_outputs(model, x.to(like.device, like.dtype)).argmax(1).cpu() == y).sum())
            for x, y in pairs
        )
        return 100 * right / len(self.labels)


def _outputs(model: nn.Module, batch: Tensor) -> Any:
    """Return the outputs of `model`; the only tensor of a dict, which transformers returns."""
    outputs = call(model, batch)
    found = leaves(outputs) if isinstance(outputs, Mapping) else []
    return found[0] if len(found) == 1 else outputs


def add_score(parser: ArgumentParser, description: str = "") -> None:
    """Add the arguments of the metric."""
    group = parser.add_argument_group(
        "metric",
        description
        or "accuracy on labeled images, or your own function; use other images than those that "
        "you report results on",
    )
    group.add_argument(
        "--test-images",
        metavar="PATH",
        help="images to score on, normalized like --images (default: --images)",
    )
    group.add_argument(
        "--test-key", metavar="KEY", help="the entry of an .npz or of a dict with the test images"
    )
    group.add_argument(
        "--test-count",
        type=int,
        default=5000,
        help="maximum number of test images, evenly spaced (default: 5000)",
    )
    group.add_argument(
        "--labels",
        metavar="FILE",
        help="classes of the test images: an .npy, .npz or .pt with one integer per image "
        "(default: labels in the file of the images, or the names of their folders)",
    )
    group.add_argument(
        "--labels-key", metavar="KEY", help="the entry of an .npz or of a dict with the labels"
    )
    group.add_argument(
        "--metric",
        metavar="FUNCTION",
        help="package.module:function or path.py:function; called with a network, returns a "
        "number, the higher the better. Its code is executed",
    )


def optional_metric(args: Namespace, model: nn.Module) -> Metric | None:
    """Return the metric, or None if neither labels nor a metric were given."""
    given = any(getattr(args, name) is not None for name in (*_LABELS, "metric"))
    return read_metric(args, model) if given else None


def add_scores(result: SparsifyResult, metric: Metric | None) -> SparsifyResult:
    """Return `result` with the metric before and after in its record, if there is one."""
    if metric is None:
        return result
    try:
        return result.with_scores(metric.score, metric.name, on=metric.on)
    except Exception as error:
        ours = isinstance(error, EntrimError)
        reason = str(error) if ours else f"{type(error).__name__}: {error}"
        raise CommandError(
            f"{metric.name} failed ({reason}): correct it and repeat the command, which continues "
            "after the finished steps, or leave it out"
        ) from error


def read_metric(args: Namespace, model: nn.Module) -> Metric:
    """Return the metric, checked on `model`."""
    if args.metric is None:
        return _accuracy(args, model)
    if any(getattr(args, name) is not None for name in _LABELS):
        raise CommandError(
            "--metric has its own images and labels: leave out the options of labeled images"
        )
    score = read_object(args.metric, "function")
    if not callable(score):
        raise CommandError(f"{args.metric} is a {type(score).__name__}: name a function")
    return Metric(score, args.metric, _digest(args.metric))


def _accuracy(args: Namespace, model: nn.Module) -> Metric:
    own = args.test_images is None
    path = Path(args.images if own else args.test_images)
    key = args.key if own and args.test_key is None else args.test_key
    options = {**vars(args), "images": str(path), "key": key, "count": args.test_count}
    images = read_images(Namespace(**options), model)
    labels = read_labels(args, path, key, args.test_count)
    _check_classes(model, images, labels)
    identity = _digest(f"{_ACCURACY} {fingerprint([images, labels])}")
    on = f"{len(labels):,} images of {path}"
    return Metric(Accuracy(images, labels), _ACCURACY, identity, on)


def read_labels(args: Namespace, path: Path, key: str | None, count: int) -> Tensor:
    """Return the classes of the images that `read_images` reads from a file or folder."""
    labels = _read_labels(args, path)
    if len(labels) != (number := count_images(path, key)):
        raise CommandError(
            f"there are {len(labels)} labels for the {number} images in {path}: pass one per "
            "image, in the same order"
        )
    return sample_evenly(labels, count)


def _read_labels(args: Namespace, path: Path) -> Tensor:
    """Return the class of every image in a file or folder."""
    if args.labels is not None:
        file = Path(args.labels)
        if not file.is_file():
            raise CommandError(f"there is no file {file}: name the labels with --labels FILE")
        entry = entry_of(read_arrays(file), file, args.labels_key, "--labels-key")
        if isinstance(entry, tuple | list) and len(entry) > 1:
            entry = entry[1]
        return _check_labels(entry, file)
    if path.is_dir():
        return _folder_labels(path)
    found: Any = read_arrays(path)
    if args.labels_key is not None and isinstance(found, dict):
        return _check_labels(entry_of(found, path, args.labels_key, "--labels-key"), path)
    if isinstance(found, tuple | list) and len(found) > 1:
        return _check_labels(found[1], path)
    raise CommandError(
        f"the classes of the images in {path} are unknown: pass --labels FILE, --labels-key KEY of "
        "the same file, or --metric"
    )


def _check_labels(found: Any, file: Path) -> Tensor:
    try:
        labels = torch.as_tensor(found)
    except (TypeError, ValueError, RuntimeError) as error:
        raise CommandError(f"{file} contains no labels ({error}): save one array") from error
    if labels.dim() != 1 or labels.is_floating_point() or labels.is_complex() or not len(labels):
        raise CommandError(
            f"the labels in {file} are {str(labels.dtype).removeprefix('torch.')} of shape "
            f"{tuple(labels.shape)}: save one integer per image"
        )
    return labels.long()


def _folder_labels(path: Path) -> Tensor:
    """Return classes by the names of subfolders: numbers unchanged, others in sorted order."""
    inner = [file.relative_to(path).parts for file in image_files(path)]
    if any(len(parts) < 2 for parts in inner):
        raise CommandError(
            f"{path} contains images outside of folders named by class: pass --labels FILE, or "
            "--metric"
        )
    names = sorted({parts[0] for parts in inner})
    numbered = all(name.isdecimal() for name in names)
    number = {name: int(name) if numbered else k for k, name in enumerate(names)}
    return torch.tensor([number[parts[0]] for parts in inner])


@torch.no_grad()
def _check_classes(model: nn.Module, images: Tensor, labels: Sequence[int] | Tensor) -> None:
    """Refuse labels that are not columns of the outputs."""
    like = next(model.parameters(), images)
    outputs = _outputs(copy_without_hooks(model), images[:1].to(like.device, like.dtype))
    if not isinstance(outputs, Tensor) or outputs.dim() != 2 or outputs.shape[1] < 2:
        what = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise CommandError(
            f"the network returns {what} for one image, not one score per class: pass --metric"
        )
    low, high = int(min(labels)), int(max(labels))
    if low < 0 or high >= outputs.shape[1]:
        raise CommandError(
            f"the labels are {low} to {high} and the network has classes 0 to "
            f"{outputs.shape[1] - 1}: pass its class numbers with --labels FILE"
        )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
