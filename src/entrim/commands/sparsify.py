"""`entrim sparsify`: a smaller network, saved with its report."""

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from entrim.budget import Budget
from entrim.choose import SELECTORS
from entrim.commands import amounts
from entrim.commands.method import add_method, given, method_of
from entrim.commands.models import add_model, read_model
from entrim.commands.pictures import add_images, read_pictures
from entrim.commands.runs import add_out, refuse_held, reported, reserved, source_of
from entrim.commands.showing import Progress, sizes, tell, tell_json, widths
from entrim.pipeline import Sparsified, sparsify

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
    group.add_argument("--selector", choices=SELECTORS)
    group.add_argument("--resamples", type=int, help="record how stable the choice is")
    add_method(group)


def run(args: Namespace) -> int:
    """Make the network smaller, save, report, sum up."""
    place = Path(args.out)
    with reserved(place, partial(refuse_held, force=args.force)):
        model = read_model(args.model, args.weights)
        images = read_pictures(args, model)
        generator = torch.Generator().manual_seed(args.seed)
        small = sparsify(model, images, generator=generator, on_step=Progress(), **options(args))
        small.save(place)
        page = reported(place, args.words, source_of(args))
    if args.json:
        tell_json(_plain(small, place, page))
    else:
        told = widths(small.record), sizes(small.record), f"saved in {place}, report {page}"
        tell("\n\n".join(told))
    return 0


def options(args: Namespace) -> dict[str, Any]:
    """Return the arguments as `sparsify` takes them; what was not given is left out."""
    found = method_of(args) | given(args, ("eps_w", "eps_l2", "selector", "resamples"))
    if limits := given(args, _LIMITS):
        found["budget"] = Budget(**limits)
    for name, patterns in (("eps", args.eps), ("widths", args.width)):
        if patterns:
            found[name] = dict(patterns)
    return found


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
