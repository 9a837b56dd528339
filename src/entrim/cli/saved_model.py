"""A saved run: its network and images, from options or from the command in its folder."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from entrim.cli import units
from entrim.cli.console import print_reading
from entrim.cli.images import add_images, check_unused, read_images
from entrim.cli.model import MODEL, read_model
from entrim.cli.run_dir import read_source, require_run
from entrim.cli.scores import read_labels
from entrim.errors import CommandError
from entrim.export.parity import answer_of, outputs
from entrim.report.report_data import COMMAND
from entrim.storage.model_folder import load

_IMAGE_DEFAULTS = {"images": None, "count": 500, "key": None, "resize": None, "channels": None}
_IMAGE_DEFAULTS |= {"mean": None, "std": None, "scale": 255.0}
"""Defaults, if neither this command nor that of the run has a value."""
RANDOM = 64
"""Number of random images, if there are no others."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SavedModel:
    """A pruned network, and the images to compare it on."""

    small: nn.Module
    images: Tensor
    source: str | None
    """The origin of the images; None if they are random."""
    labels: Tensor | None = None
    original: nn.Module | None = None
    """The network before pruning, if its weights are known."""


def add_saved(parser: ArgumentParser) -> None:
    """Add the arguments that name a saved run, and those that override its command."""
    parser.add_argument("folder", metavar="DIR", help="a folder that sparsify or save() wrote")
    parser.add_argument("--model", metavar="MODEL", help=f"the network before pruning: {MODEL}")
    parser.add_argument("--weights", metavar="FILE", help="weights of MODEL, for its accuracy")
    parser.add_argument("--labels", metavar="FILE", help="classes of the images: .npy, .npz or .pt")
    parser.add_argument("--labels-key", metavar="KEY", help="the entry of an .npz or .pt")
    parser.add_argument(
        "--shape", type=units.sizes, metavar="C,H,W", help="compare on random images of this shape"
    )
    add_images(parser, required=False)
    parser.set_defaults(**dict.fromkeys(_IMAGE_DEFAULTS))  # None: the value of the run


def read_networks(args: Namespace) -> tuple[nn.Module, nn.Module]:
    """Return the network before pruning, perhaps with other weights, and the pruned one."""
    require_run(args.folder)  # before any code is executed
    model = _original(args, read_source(Path(args.folder)))
    return model, load(model, args.folder).eval()


def read_saved(args: Namespace) -> SavedModel:
    """Return the network with its images, from the arguments or the command of the run."""
    require_run(args.folder)  # before any code is executed
    run = read_source(Path(args.folder))
    options = Namespace(**{name: _option(args, run, name) for name in _IMAGE_DEFAULTS})
    source, from_run = options.images, args.images is None
    check_unused(args, source)
    print_reading(args.folder, None if args.shape else source)
    model = _original(args, run)
    small = load(model, args.folder).eval()
    if from_run and (args.shape or source is None or not Path(source).exists()):
        return SavedModel(small=small, images=_random_images(args, small, source), source=None)
    images = read_images(options, small)
    if not _has_labels(args):
        return SavedModel(small=small, images=images, source=source)
    labels = read_labels(args, Path(source), options.key, options.count)
    known = args.model is None or args.weights is not None
    original = model if known else None
    return SavedModel(small=small, images=images, source=source, labels=labels, original=original)


def _has_labels(args: Namespace) -> bool:
    return args.labels is not None or args.labels_key is not None


def _option(args: Namespace, run: Mapping[str, Any], name: str) -> Any:
    value = getattr(args, name)
    return run.get(name, _IMAGE_DEFAULTS[name]) if value is None else value


def _original(args: Namespace, run: Mapping[str, Any]) -> nn.Module:
    """Return the network before pruning; its weights are needed for accuracies only."""
    if args.model is not None:
        return read_model(args.model, args.weights, trained=False)
    weights = args.weights or (run.get("weights") if _has_labels(args) else None)
    where = run.get("model")
    if where is None:
        raise CommandError(
            f"{args.folder} does not name the original network (in {COMMAND}): pass "
            "--model package.module:factory"
        )
    print(f"MODEL: {where}, from {Path(args.folder, COMMAND)}", file=sys.stderr)
    try:
        return read_model(where, weights, trained=_has_labels(args))
    except CommandError as error:
        raise CommandError(
            f"{error} (from {Path(args.folder, COMMAND)}: run in the folder of that command, or "
            "pass --model and --weights)"
        ) from error


def _random_images(args: Namespace, small: nn.Module, missing: str | None) -> Tensor:
    """Return random images; they suffice to compare two networks."""
    for option in ("int8", "labels"):
        if getattr(args, option):
            raise CommandError(f"--{option} needs images, and there are none: pass --images PATH")
    if args.shape is None:
        why = "" if missing is None else f" ({missing} of the run does not exist)"
        raise CommandError(
            f"there are no images to compare on{why}: pass --images PATH, or --shape C,H,W for "
            "random ones"
        )
    like = next(small.parameters(), torch.zeros(()))
    images = torch.randn(RANDOM, *args.shape, generator=torch.Generator().manual_seed(0))
    try:
        outputs(answer_of(small), images[:1].to(like.device, like.dtype))
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise CommandError(
            f"the network cannot read images of shape {args.shape} ({reason}): pass --shape as in "
            "its training"
        ) from error
    return images
