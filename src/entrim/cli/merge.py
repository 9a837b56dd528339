"""`entrim merge`: add the second moments of several sites."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from entrim.cli.collect import add_moments_file, check_new, write
from entrim.federated.network_moments import merge

_EXAMPLES = """\
examples:
  entrim merge part-*.safetensors --out all.safetensors
  entrim sparsify nets.py:VGG --weights vgg.pt --moments all.safetensors --width 0.5 --out small"""


def add(subparsers: Any) -> ArgumentParser:
    """Add the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "merge",
        help="add the second moments that several sites collected",
        description="Add the second moments in several files. Each must belong to the same "
        "network with the same weights, and no set of images may occur twice.",
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "parts", metavar="FILE", nargs="+", help="files of entrim collect or entrim merge"
    )
    add_moments_file(parser)
    return parser


def run(args: Namespace) -> int:
    """Merge, and write one file."""
    check_new(args)
    write(merge([Path(part) for part in args.parts]), args)
    return 0
