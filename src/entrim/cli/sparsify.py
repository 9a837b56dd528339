"""`entrim sparsify`: a smaller network, saved with its report."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from entrim.budget import Budget
from entrim.choose import SELECTORS
from entrim.cli import units as amounts
from entrim.cli.console import Progress, print_progress, sizes, tell_json, tell_reading, widths
from entrim.cli.images import add_images, check_idle, held_in, read_pictures
from entrim.cli.model import add_model, read_model
from entrim.cli.options import add_method, given, method_of
from entrim.cli.run_dir import add_out, check_held, keeping, noted, plain, reserved
from entrim.cli.scores import add_score, optional_metric, scored
from entrim.errors import CommandError, OtherRunError
from entrim.pipeline import sparsify
from entrim.records import Record
from entrim.report.page import FILE, html
from entrim.report.report_data import COMMAND, ReportData
from entrim.sparsified import SparsifyResult
from entrim.storage.checkpoint import UNFINISHED, CheckpointStore
from entrim.surgery.structure import SourceModel

_EXAMPLES = """\
examples:
  entrim sparsify nets.py:LeNet --weights lenet.safetensors --images x.npy --out small --params 30%
  entrim sparsify nets.py:ResNet20 --weights r20.pt --images photos/ --resize 32,32 \\
      --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 --macs 50% --latency 5ms --out small
  entrim sparsify nets.py:VGG --images x.npy --width 'features.*=0.5' --skip features.0 --out small
  entrim sparsify nets.py:VGG --images x.npy --preset paper --eps-w -1e-4 --out small"""
_LIMITS = ("params", "macs", "bytes", "latency", "max_error")


def add(subparsers: Any) -> ArgumentParser:
    """Add the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "sparsify",
        help="make a network smaller from unlabelled images",
        description="Make a network smaller and write it, its record and an HTML report to DIR. "
        "The code of MODEL is run; files of weights and images never are.",
        epilog=_EXAMPLES,
    )
    add_model(parser)
    add_images(parser)
    add_score(parser, "where there are labels: accuracy before and after; the cut needs none")
    add_out(parser)
    _add_budget(parser)
    _add_options(parser)
    return parser


def _add_budget(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("budget", "what may remain; several must all hold")
    group.add_argument("--params", type=amounts.count, metavar="30%", help="of the parameters")
    group.add_argument("--macs", type=amounts.count, metavar="50%", help="of the MACs of one image")
    group.add_argument("--bytes", type=amounts.size, metavar="2MB", help="in memory")
    group.add_argument(
        "--latency", type=amounts.time, metavar="5ms", help="of one pass, measured here"
    )
    group.add_argument(
        "--batch", type=int, metavar="N", help="images of the pass that is timed (4)"
    )
    group.add_argument(
        "--max-error", type=float, metavar="0.05", help="of the outputs, of their variance"
    )


def _add_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("method", "as in entrim.sparsify; PATTERN may hold * and ?")
    group.add_argument(
        "--eps-w", type=float, help="how strongly few channels are wanted, such as -1e-4"
    )
    group.add_argument("--eps-l2", type=float, help="the ridge of the choice, such as 1e-4")
    group.add_argument(
        "--eps", type=amounts.eps, action="append", default=[], metavar="PATTERN=EPS_W,EPS_L2",
        help="both, for some groups; the others are cut by --eps-w and --eps-l2 (-1e-4, 1e-4) all "
        "the same: name the groups in --layers too to cut only these; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--width", type=amounts.width, action="append", default=[], metavar="PATTERN=0.5",
        help="channels that stay, a number or a share; groups that no pattern names stay whole "
        "unless --eps-w or --eps-l2 is given too; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--selector",
        choices=SELECTORS,
        help="how channels are chosen at given widths (entropic), under a budget (greedy)",
    )
    group.add_argument(
        "--scores", metavar="FILE",
        help="importances of your own: .npz or .pt with one array a group, a number a channel",
    )  # fmt: skip
    group.add_argument(
        "--alternation", type=float, metavar="3e-3", help="the paper's own solver, and its stop"
    )
    group.add_argument("--resamples", type=int, help="record how stable the choice is")
    add_method(group)


def run(args: Namespace) -> int:
    """Make the network smaller, save, report, sum up."""
    place = Path(args.out)
    check_idle(args, args.images, args.test_images)
    journal = CheckpointStore(folder=place / UNFINISHED, discard=args.force)
    replaces = args.force or journal.through
    refuse = partial(check_held, args=args, force=replaces, mine=UNFINISHED)
    with _own(place), keeping(place, UNFINISHED, "what is finished is"), reserved(place, refuse):
        tell_reading(args.model, args.images)
        model = read_model(args.model, args.weights)
        images = read_pictures(args, model)
        metric = optional_metric(args, model)
        generator = torch.Generator().manual_seed(args.seed)
        with Progress() as progress:
            watched = {"on_step": progress, "journal": journal, "generator": generator}
            timed = _timed(images, args.batch)
            small = sparsify(model, images, example=timed, **watched, **options(args))
        small = scored(small, metric)
        page = _saved(small, place, journal, noted(args))
    if args.json:
        tell_json(_plain(small, place, page))
    else:
        told = widths(small.record), sizes(small.record), f"saved in {place}, report {page}"
        print_progress("\n\n".join(told))
    return 0


def options(args: Namespace) -> dict[str, Any]:
    """Return the arguments as `sparsify` takes them; what was not given is left out."""
    found = method_of(args) | given(
        args, ("eps_w", "eps_l2", "selector", "alternation", "resamples")
    )
    if limits := given(args, _LIMITS):
        found["budget"] = Budget(**limits)
    if args.scores is not None:
        found["scores"] = _scores(Path(args.scores))
    for name, patterns in (("eps", args.eps), ("widths", args.width)):
        if patterns:
            found[name] = dict(patterns)
    return found


def _timed(images: Tensor, batch: int | None) -> Tensor | None:
    """Return the images of the pass that is timed, where their number was asked for."""
    if batch is not None and not 1 <= batch <= len(images):
        raise CommandError(f"--batch is {batch}: ask for 1 to {len(images)} images, as many as are")
    return None if batch is None else images[:batch]


def _scores(file: Path) -> dict[str, Tensor]:
    """Return the importances that a file holds, by group."""
    if not file.is_file():
        raise CommandError(f"there is no file {file}: name an .npz or .pt with --scores")
    held = held_in(file)
    if not isinstance(held, Mapping):
        raise CommandError(f"{file} holds one array: save one for every group, under its name")
    return {name: torch.as_tensor(values) for name, values in held.items()}


@contextmanager
def _own(place: Path) -> Iterator[None]:
    """Say of the unfinished run of another command how to get rid of it."""
    try:
        yield
    except OtherRunError as error:
        raise CommandError(
            f"{place} holds an unfinished run of another command, or of other files: repeat that "
            "one to go on, name another folder, or pass --force to discard it"
        ) from error


def _saved(
    small: SparsifyResult, place: Path, journal: CheckpointStore, note: Mapping[str, Any]
) -> Path:
    """Save network, note and page; on a full disk what was there before stays as it was.

    The small files are written first and aside: behind the network itself they are only renamed.
    """
    origin = SourceModel.of(small.model)
    assert origin is not None
    record = Record.from_json(small.record.to_json())
    story = ReportData.of(place, record, origin.tensors, [note["command"]])
    aside = {
        COMMAND: journal.set_aside(COMMAND, json.dumps(note, indent=2).encode()),
        FILE: journal.set_aside(FILE, html(story).encode()),
    }
    small.save(place)
    for name, file in aside.items():
        file.replace(place / name)
    journal.remove()
    return place / FILE


def _plain(small: SparsifyResult, place: Path, page: Path) -> dict[str, Any]:
    groups = small.record.groups
    return plain(small, place, page) | {
        "kept": {group.name: list(group.kept) for group in groups},
        "channels": {group.name: group.channels for group in groups},
        "seconds": dict(small.record.seconds),
    }
