"""`entrim distill`: a saved run learns to say what its original says, without labels."""

import sys
from argparse import ArgumentParser, Namespace
from copy import copy
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from entrim.cli.console import Progress, print_progress, sizes, tell_json, tell_reading
from entrim.cli.images import add_images, check_idle, read_pictures
from entrim.cli.model import read_model
from entrim.cli.options import given
from entrim.cli.run_dir import (
    SIGHT,
    add_out,
    check_held,
    keeping,
    plain,
    read_source,
    reported,
    require_run,
    reserved,
)
from entrim.cli.scores import add_score, optional_metric, scored
from entrim.distillation.distill import distill
from entrim.errors import CheckpointError, CommandError
from entrim.sparsified import SparsifyResult
from entrim.storage.model_folder import CHECKPOINT

_WHAT = """\
Train a saved run for a short time to say what its original says, and write the better
network, its record and an HTML report. What is not said about network and images is taken
from DIR/command.json; relative paths in it begin at the current folder. The code of MODEL is
run, also where that file names it. A run that was stopped or killed goes on when the same
command is given again."""
_EXAMPLES = """\
examples:
  entrim distill small --out better            network and images as small was made with
  entrim distill small --images more/ --epochs 30 --flip --out better
  entrim distill small --model nets.py:LeNet --weights lenet.safetensors --images x.npy --out better
  entrim compare small better"""
_OPTIONS = ("epochs", "learning_rate", "batch", "temperature", "shift", "held_out", "patience")


def add(subparsers: Any) -> ArgumentParser:
    """Add the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "distill",
        help="train a saved run, without labels, to say what its original says",
        description=_WHAT,
        epilog=_EXAMPLES,
    )
    parser.add_argument("folder", metavar="DIR", help="the folder of a run")
    parser.add_argument("--model", metavar="MODEL", help="the network before the cut")
    parser.add_argument("--weights", metavar="FILE", help="its weights, as it was cut with")
    add_images(parser, required=False, count=5000)
    parser.set_defaults(scale=None)
    add_score(parser, "where there are labels: accuracy before and after; the training needs none")
    add_out(parser)
    _add_options(parser)
    return parser


def _add_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("training", "as in entrim.distill")
    group.add_argument("--epochs", type=int, help="how long (10)")
    group.add_argument("--learning-rate", type=float, help="how fast, falling to 0 (1e-3)")
    group.add_argument("--batch", type=int, help="images a step (64)")
    group.add_argument("--temperature", type=float, help="softens what the networks say (4)")
    group.add_argument(
        "--shift", type=float, help="images move by up to this part of their size (1/16)"
    )
    group.add_argument("--flip", action="store_true", help="mirror half of the images")
    group.add_argument(
        "--held-out", type=float, help="part of the images that tells when to stop (0.1)"
    )
    group.add_argument("--patience", type=int, help="epochs without a better loss (5)")
    group.add_argument("--no-patience", action="store_true", help="run all epochs")
    group.add_argument("--seed", type=int, default=0, help="of whatever is random (0)")
    group.add_argument(
        "--teacher", metavar="MODEL", help="learn from this network instead of the original"
    )
    group.add_argument("--teacher-weights", metavar="FILE", help="its weights")


def run(args: Namespace) -> int:
    """Train, save, report, sum up."""
    place, asked = Path(args.out), copy(args)
    _complete(args)
    check_idle(asked, args.images, args.test_images)
    refuse = partial(check_held, args=args, force=args.force, mine=CHECKPOINT)
    with keeping(place, CHECKPOINT, "the state of the training is"), reserved(place, refuse):
        tell_reading(args.model, args.images)
        model = read_model(args.model, args.weights)
        cut = SparsifyResult.load(model, args.folder)
        images, metric = read_pictures(args, model), optional_metric(args, model)
        better = scored(_distill(args, cut, images, place), metric)
        better.save(place)
        page = reported(place, args, taken_up=Path(args.folder))
        (place / CHECKPOINT).unlink(missing_ok=True)
    if args.json:
        tell_json(_plain(better, place, page))
    else:
        done = f"{better.record.distilled}"
        print_progress(
            "\n\n".join((sizes(better.record), done, f"saved in {place}, report {page}"))
        )
    return 0


def _distill(
    args: Namespace, pruned: SparsifyResult, images: Tensor, place: Path
) -> SparsifyResult:
    """Train, going on from the checkpoint in `place`; that of another run goes only if forced."""
    file = place / CHECKPOINT
    asked = {"teacher": _teacher(args), **options(args)}
    with Progress() as progress:
        train = partial(distill, pruned, images, checkpoint=file, on_step=progress, **asked)
        try:
            return train()
        except CheckpointError as error:
            if not args.force:
                why = str(error).rpartition(": ")[0]
                raise CommandError(
                    f"{why}: give the command that it belongs to, name another folder with --out, "
                    "or pass --force to discard it"
                ) from error
        file.unlink()
        return train()


def options(args: Namespace) -> dict[str, Any]:
    """Return the arguments as `distill` takes them; what was not given is left out."""
    if args.no_patience and args.patience is not None:
        raise CommandError("--patience and --no-patience contradict each other: pass one of them")
    found = {**given(args, _OPTIONS), "flip": args.flip, "seed": args.seed}
    return {**found, "patience": None} if args.no_patience else found


def _complete(args: Namespace) -> None:
    """Fill in what was not given from what is noted in the folder."""
    require_run(args.folder)
    noted = read_source(Path(args.folder))
    taken = [name for name in ("model", "weights") if getattr(args, name) is None]
    if args.model is not None:
        taken = []  # the weights that are noted belong to the network that is noted
    if args.images is None:
        taken += ["images", "key"]
    for name in (*taken, *(name for name in SIGHT if getattr(args, name) is None)):
        setattr(args, name, noted.get(name))
    args.scale = 255.0 if args.scale is None else args.scale
    for name in ("model", "images"):
        if getattr(args, name) is None:
            raise CommandError(f"{args.folder} does not tell its {name}: pass --{name}")
        if name in taken:
            print(f"{name}: {getattr(args, name)}, as noted in {args.folder}", file=sys.stderr)


def _teacher(args: Namespace) -> nn.Module | None:
    if args.teacher is not None:
        return read_model(args.teacher, args.teacher_weights)
    if args.teacher_weights is not None:
        raise CommandError("--teacher-weights belong to no network: pass --teacher MODEL too")
    return None


def _plain(better: SparsifyResult, place: Path, page: Path) -> dict[str, Any]:
    done = better.record.distilled
    return plain(better, place, page) | {"distilled": None if done is None else asdict(done)}
