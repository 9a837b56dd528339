"""`entrim collect`: the second moments of all layers on the images of one site."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from entrim.cli import units
from entrim.cli.console import print_json, print_reading, print_result
from entrim.cli.images import add_images, check_unused, read_images
from entrim.cli.model import add_model, read_model
from entrim.cli.options import check_writable, given
from entrim.config import Calibration
from entrim.display.bars import ProgressDisplay
from entrim.errors import CommandError
from entrim.federated.collect import collect
from entrim.federated.network_moments import NetworkMoments
from entrim.report import numbers

_EXAMPLES = """\
examples:
  entrim collect nets.py:VGG --weights vgg.pt --images photos/ --resize 32,32 --count 1000 \\
      --out part.safetensors
  entrim collect nets.py:VGG --weights vgg.pt --images x.npy --holdout 0 --out part.safetensors"""


def add(subparsers: Any) -> ArgumentParser:
    """Add the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "collect",
        help="write second moments instead of images, for sites that must not share them",
        description="Write the second moments of all layers on the images of one site to FILE. It "
        "contains sums over at least 50 images, no images. entrim merge adds the files of several "
        "sites, and entrim sparsify --moments prunes with them.",
        epilog=_EXAMPLES,
    )
    add_model(parser)
    add_images(parser)
    parser.add_argument(
        "--holdout",
        type=units.holdout,
        metavar="10%",
        help="images for the errors of the layers, as a fraction or a number of at least 50, or 0 "
        "(default: 10%%, at least 50, at most 20%%)",
    )
    parser.add_argument(
        "--memory-limit",
        type=units.size,
        metavar="4GB",
        help="memory for second moments; layers whose own exceed it are left out (default: 4GiB)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the hold-out (default: 0)")
    add_moments_file(parser)
    return parser


def add_moments_file(parser: ArgumentParser) -> None:
    """Add the arguments of the written file."""
    parser.add_argument(
        "--out", required=True, metavar="FILE", help="the .safetensors file to write"
    )
    parser.add_argument("--force", action="store_true", help="replace FILE")


def run(args: Namespace) -> int:
    """Collect and write one file."""
    check_new(args)
    check_unused(args, args.images)
    print_reading(args.model, args.images)
    model = read_model(args.model, args.weights, args.device)
    images = read_images(args, model)
    options = given(args, ("holdout", "memory_limit"))
    with ProgressDisplay() as progress:
        moments = collect(
            model,
            images,
            calibration=Calibration(**options),
            callbacks=[progress],
            seed=args.seed,
        )
    write(moments, args)
    return 0


def check_new(args: Namespace) -> None:
    """Refuse a file that cannot be written, or would be replaced."""
    check_writable(Path(args.out))
    if Path(args.out).exists() and not args.force:
        raise CommandError(f"{args.out} exists: name another file, or pass --force")


def write(moments: NetworkMoments, args: Namespace) -> None:
    """Write moments and print what they contain."""
    moments.save(args.out)
    sets = moments.image_sets
    found = {
        "file": args.out,
        "model": moments.model,
        "layers": len(moments.fitting),
        "images": sum(one.fitting for one in sets),
        "holdout": sum(one.holdout for one in sets),
        "sets": [one.id for one in sets],
    }
    if args.json:
        print_json(found)
        return
    size = numbers.size(Path(args.out).stat().st_size)
    print_result(f"{args.out}: second moments of {moments.model}, {size}\n{moments.extent}")
