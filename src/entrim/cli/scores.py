"""What a network is scored by: accuracy on labelled images, or a function of the user's."""

import hashlib
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from entrim.cli.images import (
    entry_of,
    held_in,
    image_files,
    images_in,
    read_pictures,
    sample_evenly,
)
from entrim.cli.model import read_object
from entrim.errors import CommandError, EntrimError
from entrim.graph.eager import call
from entrim.sparsified import SparsifyResult
from entrim.storage.checkpoint import fingerprint

_BATCH = 250
_ACCURACY = "accuracy, %"
_LABELS = ("test_images", "test_key", "labels", "labels_key")


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """A function of a network, the higher the better, and what tells it from others."""

    score: Callable[..., Any]
    name: str
    identity: str
    on: str = ""
    """What it is measured on, as the record tells it."""


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
            int((call(model, x.to(like.device, like.dtype)).argmax(1).cpu() == y).sum())
            for x, y in pairs
        )
        return 100 * right / len(self.labels)


def add_score(parser: ArgumentParser, reason: str = "") -> None:
    """Add the arguments that say what is scored; `why` is for commands that need no labels."""
    group = parser.add_argument_group(
        "metric",
        reason
        or "accuracy on labelled images, or a function of your own; score on other images than "
        "those you report on",
    )
    group.add_argument(
        "--test-images", metavar="PATH", help="score on these (those of --images), normalised alike"
    )
    group.add_argument("--test-key", metavar="KEY", help="their entry of an .npz or of a dict")
    group.add_argument(
        "--test-count", type=int, default=5000, help="at most so many (5000), spread evenly"
    )
    group.add_argument(
        "--labels", metavar="FILE",
        help="their classes: .npy, .npz or .pt with one whole number for every image in the file; "
        "without it those in the file of the images, or the names of the folders they lie in",
    )  # fmt: skip
    group.add_argument(
        "--labels-key", metavar="KEY", help="the entry of an .npz or of a dict that holds them"
    )
    group.add_argument(
        "--metric",
        metavar="FUNCTION",
        help="package.module:function or path.py:function, called with a network, returns a "
        "number, the higher the better; its code is run",
    )


def optional_metric(args: Namespace, model: nn.Module) -> Metric | None:
    """Return what the command line names; None where it names neither labels nor a metric."""
    asked = any(getattr(args, name) is not None for name in (*_LABELS, "metric"))
    return read_metric(args, model) if asked else None


def scored(result: SparsifyResult, metric: Metric | None) -> SparsifyResult:
    """Return `result` with the metric before and after in its record, where there is one."""
    if metric is None:
        return result
    try:
        return result.with_scores(metric.score, metric.name, on=metric.on)
    except Exception as error:
        said = f"{error}" if isinstance(error, EntrimError) else f"{type(error).__name__}: {error}"
        raise CommandError(
            f"{metric.name} cannot be told ({said}): mend it and give the same command again, "
            "which goes on after what is finished, or leave it out"
        ) from error


def read_metric(args: Namespace, model: nn.Module) -> Metric:
    """Return what the command line names, checked on `model`."""
    if args.metric is None:
        return _accuracy(args, model)
    if any(getattr(args, name) is not None for name in _LABELS):
        raise CommandError("--metric brings its own images and labels: leave out the others")
    score = read_object(args.metric, "function", "function")
    if not callable(score):
        raise CommandError(f"{args.metric} is a {type(score).__name__}: name a function")
    return Metric(score, args.metric, _short(args.metric))


def _accuracy(args: Namespace, model: nn.Module) -> Metric:
    own = args.test_images is None
    path = Path(args.images if own else args.test_images)
    key = args.key if own and args.test_key is None else args.test_key
    sight = {**vars(args), "images": str(path), "key": key, "count": args.test_count}
    images = read_pictures(Namespace(**sight), model)
    labels = read_labels(args, path, key, args.test_count)
    _check_classes(model, images, labels)
    identity = _short(f"{_ACCURACY} {fingerprint([images, labels])}")
    on = f"{len(labels):,} images of {path}"
    return Metric(Accuracy(images, labels), _ACCURACY, identity, on)


def read_labels(args: Namespace, path: Path, key: str | None, count: int) -> Tensor:
    """Return the classes of the images that `read_pictures` takes from a file or folder."""
    labels = _labels(args, path)
    if len(labels) != (number := images_in(path, key)):
        raise CommandError(
            f"there are {len(labels)} labels for the {number} images in {path}: hand over one for "
            "every image, in the same order"
        )
    return sample_evenly(labels, count)


def _labels(args: Namespace, path: Path) -> Tensor:
    """Return the class of every image in the file or folder."""
    if args.labels is not None:
        file = Path(args.labels)
        if not file.is_file():
            raise CommandError(f"there is no file {file}: name the labels with --labels FILE")
        held = entry_of(held_in(file), file, args.labels_key, "--labels-key")
        return _full(held[1] if isinstance(held, tuple | list) and len(held) > 1 else held, file)
    if path.is_dir():
        return _by_folder(path)
    held = held_in(path)
    if args.labels_key is not None and isinstance(held, dict):
        return _full(entry_of(held, path, args.labels_key, "--labels-key"), path)
    if isinstance(held, tuple | list) and len(held) > 1:
        return _full(held[1], path)
    raise CommandError(
        f"nothing tells the classes of the images in {path}: pass --labels FILE, --labels-key KEY "
        "of the same file, or --metric"
    )


def _full(held: Any, file: Path) -> Tensor:
    try:
        labels = torch.as_tensor(held)
    except (TypeError, ValueError, RuntimeError) as error:
        raise CommandError(f"{file} holds no labels ({error}): save one array") from error
    if labels.dim() != 1 or labels.is_floating_point() or labels.is_complex() or not len(labels):
        raise CommandError(
            f"the labels in {file} are {str(labels.dtype).removeprefix('torch.')} of shape "
            f"{tuple(labels.shape)}: save one whole number for every image"
        )
    return labels.long()


def _by_folder(path: Path) -> Tensor:
    """Return classes by the names of subfolders: numbers as they are, others in their order."""
    inner = [file.relative_to(path).parts for file in image_files(path)]
    if any(len(parts) < 2 for parts in inner):
        raise CommandError(
            f"{path} holds images outside of folders named by class: pass --labels FILE, or "
            "--metric"
        )
    names = sorted({parts[0] for parts in inner})
    numbered = all(name.isdecimal() for name in names)
    number = {name: int(name) if numbered else k for k, name in enumerate(names)}
    return torch.tensor([number[parts[0]] for parts in inner])


@torch.no_grad()
def _check_classes(model: nn.Module, images: Tensor, labels: Sequence[int] | Tensor) -> None:
    """Refuse labels that cannot be columns of the network's outputs."""
    like = next(model.parameters(), images)
    said = model(images[:1].to(like.device, like.dtype))
    if not isinstance(said, Tensor) or said.dim() != 2 or said.shape[1] < 2:
        what = tuple(said.shape) if isinstance(said, Tensor) else type(said).__name__
        raise CommandError(
            f"the network puts out {what} for one image, which is no score a class: pass --metric"
        )
    low, high = int(min(labels)), int(max(labels))
    if low < 0 or high >= said.shape[1]:
        raise CommandError(
            f"the labels go from {low} to {high} and the network tells classes 0 to "
            f"{said.shape[1] - 1}: hand over its own numbers with --labels FILE"
        )


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
