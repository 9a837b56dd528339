"""`entrim sparsify`: a smaller network, saved with its report."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from entrim.budget import Budget
from entrim.choose import COUPLINGS, SELECTORS
from entrim.commands import amounts
from entrim.commands.models import add_model, read_model
from entrim.commands.pictures import add_images, read_pictures
from entrim.commands.showing import Progress, sizes, tell, tell_json, widths
from entrim.errors import CommandError, LoadError, OtherRunError, SaveError
from entrim.files import is_free, read_manifest
from entrim.journal import UNFINISHED, Journal
from entrim.network.form import Origin
from entrim.pipeline import Sparsified, sparsify
from entrim.report import html
from entrim.report.page import FILE
from entrim.report.story import COMMAND, Story

_EXAMPLES = """\
examples:
  entrim sparsify nets.py:LeNet --weights lenet.safetensors --images x.npy --out small --params 30%
  entrim sparsify nets.py:ResNet20 --weights r20.pt --images photos/ --resize 32,32 \\
      --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 --macs 50% --latency 5ms --out small
  entrim sparsify nets.py:VGG --images x.npy --width 'features.*=0.5' --skip features.0 --out small
  entrim sparsify nets.py:VGG --images x.npy --preset paper --eps-w -1e-4 --out small"""
_SWITCHES = ("preset", "mode", "selector", "coupling", "batchnorm", "round_to", "ridge")
_SWITCHES += ("eps_w", "eps_l2", "alternation", "positions", "resamples", "memory_limit")


def add(subparsers: Any) -> ArgumentParser:
    """Add the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "sparsify",
        help="make a network smaller from unlabelled images",
        description="Make a network smaller and write it, its record and an HTML report to DIR. "
        "The code of MODEL is run; files of weights and images never are. A run that was "
        "interrupted or killed goes on when the same command is given again.",
        epilog=_EXAMPLES,
    )
    add_model(parser)
    add_images(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to write")
    parser.add_argument(
        "--force", action="store_true", help="replace or discard what DIR holds of another run"
    )
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
        "--max-error", type=float, metavar="0.05", help="of the outputs, of their variance"
    )


def _add_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("method", "as in entrim.sparsify; PATTERN may hold * and ?")
    group.add_argument(
        "--eps-w", type=float, help="how strongly few channels are wanted, such as -1e-4"
    )
    group.add_argument("--eps-l2", type=float, help="the ridge of the choice, such as 1e-4")
    group.add_argument(
        "--eps", type=amounts.eps, action="append", default=[], metavar="PATTERN=EPS_W,EPS_L2"
    )
    group.add_argument(
        "--width", type=amounts.width, action="append", default=[], metavar="PATTERN=0.5",
        help="channels that stay, a number or a share; may be repeated",
    )  # fmt: skip
    group.add_argument("--layers", action="append", metavar="PATTERN", help="look at these only")
    group.add_argument("--skip", action="append", default=[], metavar="PATTERN", help="leave alone")
    group.add_argument("--preset", choices=("paper",))
    group.add_argument("--mode", choices=("sequential", "independent"))
    group.add_argument("--no-refit", action="store_true", help="keep the weights of the choice")
    group.add_argument("--no-correct", action="store_true", help="let skip paths drift")
    group.add_argument("--selector", choices=SELECTORS)
    group.add_argument(
        "--alternation", type=float, metavar="3e-3", help="the paper's own solver, and its stop"
    )
    group.add_argument("--coupling", choices=COUPLINGS)
    group.add_argument("--batchnorm", choices=("keep", "reestimate"))
    group.add_argument("--round-to", type=int, metavar="8", help="widths are multiples of this")
    group.add_argument("--ridge", type=float)
    group.add_argument("--positions", type=int, help="look at so many positions of each image")
    group.add_argument("--resamples", type=int, help="record how stable the choice is")
    group.add_argument("--memory-limit", type=amounts.size, metavar="4GB")
    group.add_argument("--seed", type=int, default=0, help="of whatever is random (0)")


def run(args: Namespace) -> int:
    """Make the network smaller, save, report, sum up."""
    place = Path(args.out)
    journal = Journal(folder=place / UNFINISHED, discard=args.force)
    with _resumable(place), _reserved(place, journal, args.force):
        model = read_model(args.model, args.weights)
        images = read_pictures(args, model)
        generator = torch.Generator().manual_seed(args.seed)
        with Progress() as progress:
            watched = {"on_step": progress, "journal": journal, "generator": generator}
            small = sparsify(model, images, **watched, **options(args))
        page = _saved(small, place, journal, ["entrim", *args.words])
    if args.json:
        tell_json(_plain(small, place, page))
    else:
        told = widths(small.record), sizes(small.record), f"saved in {place}, report {page}"
        tell("\n\n".join(told))
    return 0


def options(args: Namespace) -> dict[str, Any]:
    """Return the arguments as `sparsify` takes them; what was not given is left out."""
    found = {name: getattr(args, name) for name in _SWITCHES if getattr(args, name) is not None}
    limits = {k: getattr(args, k) for k in ("params", "macs", "bytes", "latency", "max_error")}
    if any(limit is not None for limit in limits.values()):
        found["budget"] = Budget(**limits)
    for name, given in (("eps", args.eps), ("widths", args.width)):
        if given:
            found[name] = dict(given)
    for name in ("layers", "skip"):
        if getattr(args, name):
            found[name] = getattr(args, name)
    for name in ("refit", "correct"):
        if getattr(args, f"no_{name}"):
            found[name] = False
    return found


@contextmanager
def _reserved(place: Path, journal: Journal, force: bool) -> Iterator[None]:
    """Refuse a folder that cannot be written before any work; leave none behind that is empty."""
    there, ours = place.exists(), place.is_dir() and any(place.iterdir()) and is_free(place)
    if there and not place.is_dir():
        raise CommandError(f"{place} is a file: name another folder with --out")
    if there and not is_free(place):
        _refuse_held(place, force or journal.through)
    try:
        place.mkdir(parents=True, exist_ok=True)
        probe = place / ".entrim.lock"  # what save() locks: the folder stays one of ours
        with probe.open("ab"):
            pass
        (place / UNFINISHED).mkdir(exist_ok=True)
    except OSError as error:
        raise SaveError(
            f"{place} cannot be written ({error.strerror}): name another folder with --out"
        ) from error
    try:
        yield
    except BaseException:
        with suppress(OSError):
            (place / UNFINISHED).rmdir()
        if ours or not there:
            with suppress(OSError):
                probe.unlink(missing_ok=True)
                place.rmdir()
        raise


def _refuse_held(place: Path, force: bool) -> None:
    try:
        read_manifest(place)
    except LoadError as error:
        raise CommandError(
            f"{place} holds something else than a run of entrim: name another folder with --out"
        ) from error
    if not force:
        raise CommandError(
            f"{place} holds another run: name another folder, or pass --force to replace it"
        )


@contextmanager
def _resumable(place: Path) -> Iterator[None]:
    """Say of an interruption how to go on, and of another unfinished run how to get rid of it."""
    try:
        yield
    except KeyboardInterrupt:
        if not (place / UNFINISHED).is_dir():
            raise
        raise KeyboardInterrupt(
            f"what is finished is kept in {place}, and the same command goes on from there"
        ) from None
    except OtherRunError as error:
        raise CommandError(
            f"{place} holds an unfinished run of another command, or of other files: repeat that "
            "one to go on, name another folder, or pass --force to discard it"
        ) from error


def _saved(small: Sparsified, place: Path, journal: Journal, command: Sequence[str]) -> Path:
    """Save network, command and page; on a full disk what was there before stays as it was.

    The small files are written first and aside: behind the network itself they are only renamed.
    """
    origin = Origin.of(small.model)
    assert origin is not None
    story = Story.of(place, small.record.to_json(), origin.tensors, command)
    aside = {
        COMMAND: journal.set_aside(COMMAND, json.dumps({"command": command}, indent=2).encode()),
        FILE: journal.set_aside(FILE, html(story).encode()),
    }
    small.save(place)
    for name, file in aside.items():
        file.replace(place / name)
    journal.remove()
    return place / FILE


def _plain(small: Sparsified, place: Path, page: Path) -> dict[str, Any]:
    record = small.record
    return {
        "folder": str(place),
        "report": str(page),
        "before": asdict(record.before),
        "after": asdict(record.after),
        "kept": {group.name: list(group.kept) for group in record.groups},
        "channels": {group.name: group.channels for group in record.groups},
        "seconds": dict(record.seconds),
        "notes": list(record.notes),
    }
