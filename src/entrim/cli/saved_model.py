"""A saved run taken up again: its network and images, as told or as its command was noted."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from entrim.cli.console import tell_reading
from entrim.cli.images import add_images, check_idle, read_pictures
from entrim.cli.model import MODEL, read_model
from entrim.cli.run_dir import read_source, require_run
from entrim.cli.scores import read_labels
from entrim.cli.units import sizes
from entrim.errors import CommandError
from entrim.export.parity import answer_of, outputs
from entrim.report.report_data import COMMAND
from entrim.storage.model_folder import load

_PICTURES = {"images": None, "count": 500, "key": None, "resize": None, "channels": None}
_PICTURES |= {"mean": None, "std": None, "scale": 255.0}
"""What is taken where neither this command nor that of the run says anything."""
RANDOM = 64
"""How many random images there are where there are no others."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SavedModel:
    """What is exported, and what it is looked at with."""

    small: nn.Module
    images: Tensor
    source: str | None
    """Where the images come from; None where they are random."""
    labels: Tensor | None = None
    original: nn.Module | None = None
    """The network before the cut, where its weights are known."""


def add_saved(parser: ArgumentParser) -> None:
    """Add the arguments that name a saved run, and what its command is overruled by."""
    parser.add_argument("folder", metavar="DIR", help="a folder that sparsify or save() wrote")
    parser.add_argument("--model", metavar="MODEL", help=f"before the cut: {MODEL}")
    parser.add_argument("--weights", metavar="FILE", help="of MODEL, to know its accuracy")
    parser.add_argument("--labels", metavar="FILE", help="classes of the images: .npy, .npz or .pt")
    parser.add_argument("--labels-key", metavar="KEY", help="the entry of an .npz or .pt")
    parser.add_argument(
        "--shape", type=sizes, metavar="C,H,W", help="compare on random images of this shape"
    )
    add_images(parser, required=False)
    parser.set_defaults(**dict.fromkeys(_PICTURES))  # None: as the run had it


def read_saved(args: Namespace) -> SavedModel:
    """Return the network with its images, as the arguments or the command of the run have it."""
    require_run(args.folder)  # before any code is run
    run = read_source(Path(args.folder))
    pictures = Namespace(**{name: _either(args, run, name) for name in _PICTURES})
    source, noted = pictures.images, args.images is None
    check_idle(args, source)
    tell_reading(args.folder, None if args.shape else source)
    model = _original(args, run)
    small = load(model, args.folder).eval()
    if noted and (args.shape or source is None or not Path(source).exists()):
        return SavedModel(small=small, images=_random(args, small, source), source=None)
    images = read_pictures(pictures, small)
    if not _labelled(args):
        return SavedModel(small=small, images=images, source=source)
    labels = read_labels(args, Path(source), pictures.key, pictures.count)
    known = args.model is None or args.weights is not None
    original = model if known else None
    return SavedModel(small=small, images=images, source=source, labels=labels, original=original)


def _labelled(args: Namespace) -> bool:
    return args.labels is not None or args.labels_key is not None


def _either(args: Namespace, run: Mapping[str, Any], name: str) -> Any:
    given = getattr(args, name)
    return run.get(name, _PICTURES[name]) if given is None else given


def _original(args: Namespace, run: Mapping[str, Any]) -> nn.Module:
    """Return the network before the cut; its weights matter only where accuracies are told."""
    if args.model is not None:
        return read_model(args.model, args.weights)
    weights = args.weights or (run.get("weights") if _labelled(args) else None)
    where = run.get("model")
    if where is None:
        raise CommandError(
            f"{args.folder} does not say which network was cut (no {COMMAND} that names it): pass "
            "--model package.module:factory"
        )
    print(f"MODEL: {where}, from {Path(args.folder, COMMAND)}", file=sys.stderr)
    try:
        return read_model(where, weights)
    except CommandError as error:
        raise CommandError(
            f"{error} (noted in {Path(args.folder, COMMAND)}: run where that command was run, or "
            "pass --model and --weights)"
        ) from error


def _random(args: Namespace, small: nn.Module, removed: str | None) -> Tensor:
    """Return random images, which can tell whether two networks are the same, and no more."""
    for option in ("int8", "labels"):
        if getattr(args, option):
            raise CommandError(f"--{option} needs images, and none are at hand: pass --images PATH")
    if args.shape is None:
        why = "" if removed is None else f" (those of the run, {removed}, are not here)"
        raise CommandError(
            f"there are no images to compare on{why}: pass --images PATH, or --shape C,H,W for "
            "random ones"
        )
    like = next(small.parameters(), torch.zeros(()))
    images = torch.randn(RANDOM, *args.shape, generator=torch.Generator().manual_seed(0))
    try:
        outputs(answer_of(small), images[:1].to(like.device, like.dtype))
    except Exception as error:
        said = (str(error).splitlines() or [""])[0]
        raise CommandError(
            f"the network cannot read images of shape {args.shape} ({said}): pass --shape as it "
            "was trained with"
        ) from error
    return images
