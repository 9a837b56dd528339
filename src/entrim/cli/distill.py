"""`entrim distill`: train a saved run to reproduce the outputs of its original."""

import sys
from argparse import ArgumentParser, Namespace
from copy import copy
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from entrim.cli.console import print_json, print_reading, print_result, size_table
from entrim.cli.images import add_images, check_unused, read_images
from entrim.cli.model import add_device, read_model
from entrim.cli.options import given
from entrim.cli.run_dir import (
    IMAGE_OPTIONS,
    add_out,
    check_contents,
    explain_interruption,
    next_command,
    read_source,
    require_run,
    reserve,
    result_summary,
    save_run,
    saved_note,
    write_report,
)
from entrim.cli.scores import add_score, add_scores, optional_metric
from entrim.config import Distillation
from entrim.display.bars import ProgressDisplay
from entrim.distillation.distill import distill
from entrim.errors import CommandError, OtherRunError
from entrim.results import SparsifyResult
from entrim.storage.checkpoint import CheckpointStore
from entrim.storage.model_folder import CHECKPOINT

_DESCRIPTION = """\
Train a saved run for a short time to reproduce the outputs of its original on shifted and mixed
images, and write the trained network, its record and an HTML report. The hold-out images of the run
are not trained on. Network and images that are not given are taken from DIR/command.json; relative
paths in it start at the current folder. The code of MODEL is executed, also if that file names it.
An interrupted run continues after its last finished epoch when the command is repeated."""
_EXAMPLES = """\
examples:
  entrim distill small --out better            with the network and images of small
  entrim distill small --images more/ --epochs 30 --out better
  entrim distill small --model nets.py:LeNet --weights lenet.safetensors --images x.npy --out better
  entrim compare small better"""
_OPTIONS = ("epochs", "learning_rate", "warmup", "batch_size", "temperature", "shift", "holdout")
_OPTIONS += ("patience",)


def add(subparsers: Any) -> ArgumentParser:
    """Add the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "distill",
        help="train a saved run, without labels, to reproduce the outputs of its original",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument("folder", metavar="DIR", help="the folder of a run")
    parser.add_argument("--model", metavar="MODEL", help="the network before pruning")
    parser.add_argument("--weights", metavar="FILE", help="its weights, as it was pruned with")
    add_device(parser)
    add_images(parser, required=False, count=5000)
    parser.set_defaults(scale=None)
    add_score(parser, "optional, for labeled images: the score before and after training")
    add_out(parser)
    _add_options(parser)
    return parser


def _add_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("training", "as in entrim.Distillation")
    group.add_argument("--epochs", type=int, help="number of epochs (default: about 1,000 steps)")
    group.add_argument(
        "--learning-rate", type=float, help="learning rate, decreasing to 0 (default: 1e-3)"
    )
    group.add_argument(
        "--warmup", type=int, help="steps in which the learning rate rises (default: 20)"
    )
    group.add_argument("--batch-size", type=int, help="images per step (default: 64)")
    group.add_argument(
        "--temperature", type=float, help="divisor of the logits of both networks (default: 4)"
    )
    group.add_argument(
        "--shift",
        type=float,
        help="largest random shift, as a fraction of the image size (default: 1/8)",
    )
    group.add_argument("--no-mix", action="store_true", help="do not mix images")
    mirror = group.add_mutually_exclusive_group()
    mirror.add_argument(
        "--flip",
        action="store_true",
        help="mirror half of the images (default: if the original ignores it)",
    )
    mirror.add_argument("--no-flip", action="store_true", help="do not mirror images")
    group.add_argument(
        "--holdout",
        type=float,
        help="fraction of the images that is not trained on, and decides whether the trained "
        "network is better (default: 0.1)",
    )
    group.add_argument(
        "--patience",
        type=int,
        help="return the best epoch, and stop after this many without a lower loss (default: judge "
        "the training at its end)",
    )
    group.add_argument("--seed", type=int, default=0, help="seed of random choices (default: 0)")
    group.add_argument(
        "--teacher", metavar="MODEL", help="learn from this network instead of the original"
    )
    group.add_argument("--teacher-weights", metavar="FILE", help="weights of the teacher")


def run(args: Namespace) -> int:
    """Train, save, report, print a summary."""
    place, given_args, distillation = Path(args.out), copy(args), distillation_of(args)
    _fill_in(args)
    check_unused(given_args, args.images, args.test_images)
    checkpoints = CheckpointStore(folder=place / CHECKPOINT, discard=args.force)
    check = partial(check_contents, args=args, force=args.force, mine=(CHECKPOINT,))
    with (
        explain_interruption(place, CHECKPOINT, "finished epochs are"),
        reserve(place, check),
    ):
        print_reading(args.model, args.images)
        model = read_model(args.model, args.weights, args.device)
        pruned = SparsifyResult.load(model, args.folder)
        images, metric = read_images(args, model), optional_metric(args, model)
        better = add_scores(_distill(args, pruned, images, distillation, checkpoints), metric)
        better = save_run(better, place)
        page = write_report(place, args, source=Path(args.folder))
        checkpoints.remove()
    if args.json:
        print_json(_as_dict(better, place, page))
    else:
        parts = size_table(better.record), outcome(better, place, page), next_command(place)
        print_result("\n\n".join(parts))
    return 0


def _distill(
    args: Namespace,
    pruned: SparsifyResult,
    images: Tensor,
    distillation: Distillation,
    checkpoints: CheckpointStore,
) -> SparsifyResult:
    """Train, continuing after the last finished epoch of an interrupted run."""
    try:
        with ProgressDisplay() as progress:
            return distill(
                pruned,
                images,
                distillation,
                teacher=_teacher(args),
                checkpoint_dir=checkpoints,
                callbacks=[progress],
            )
    except OtherRunError as error:
        why = str(error).rpartition(": ")[0]  # the remedy is one of Python
        raise CommandError(
            f"{why}: repeat the command of that run, name another folder with --out, or pass "
            "--force to discard it"
        ) from error


def distillation_of(args: Namespace) -> Distillation:
    """Return the options of the training."""
    found: dict[str, Any] = {**given(args, _OPTIONS), "seed": args.seed}
    if args.no_mix:
        found["mix"] = False
    if args.flip or args.no_flip:
        found["flip"] = args.flip
    return Distillation(**found)


def outcome(better: SparsifyResult, place: Path, page: Path) -> str:
    """Return what the training gained, and where the network was saved."""
    done = better.record.distilled
    assert done is not None
    gained = "" if done.gained else "nothing was gained; the unchanged network is "
    return f"{done}\n\n{gained}{saved_note(better, place, page)}"


def _fill_in(args: Namespace) -> None:
    """Take arguments that were not given from the command in the folder."""
    require_run(args.folder)
    source = read_source(Path(args.folder))
    missing = [name for name in ("model", "weights") if getattr(args, name) is None]
    if args.model is not None:
        missing = []  # the weights of the run belong to its own network
    if args.images is None:
        missing += ["images", "key"]
    for name in (*missing, *(name for name in IMAGE_OPTIONS if getattr(args, name) is None)):
        setattr(args, name, source.get(name))
    args.scale = 255.0 if args.scale is None else args.scale
    for name in ("model", "images"):
        if getattr(args, name) is None:
            raise CommandError(f"{args.folder} does not name its {name}: pass --{name}")
        if name in missing:
            print(f"{name}: {getattr(args, name)}, from {args.folder}", file=sys.stderr)


def _teacher(args: Namespace) -> nn.Module | None:
    if args.teacher is not None:
        return read_model(args.teacher, args.teacher_weights, args.device)
    if args.teacher_weights is not None:
        raise CommandError("--teacher-weights needs a network: pass --teacher MODEL too")
    return None


def _as_dict(better: SparsifyResult, place: Path, page: Path) -> dict[str, Any]:
    done = better.record.distilled
    return result_summary(better, place, page) | {
        "distilled": None if done is None else asdict(done)
    }
