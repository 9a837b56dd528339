"""`entrim report`: write the HTML report of a run."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from entrim.cli.console import print_json, print_result
from entrim.cli.run_dir import require_run
from entrim.errors import CommandError
from entrim.report.page import FILE, is_report, write

_EXAMPLES = """\
examples:
  entrim report small/                     writes small/report.html
  entrim report small/ --out page.html"""


def add(subparsers: Any) -> ArgumentParser:
    """Add the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "report",
        help="write the HTML report of a saved run",
        description="Write the report of a saved run as one self-contained HTML file.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("folder", metavar="DIR", help="the folder of a run")
    parser.add_argument(
        "--out", metavar="FILE", help="the file to write (default: DIR/report.html)"
    )
    parser.add_argument(
        "--force", action="store_true", help="replace a file that is not a report of entrim"
    )
    return parser


def run(args: Namespace) -> int:
    """Write the report and print its path."""
    require_run(args.folder)
    if args.out is not None and not args.force:
        _check_other(Path(args.out), Path(args.folder, FILE))
    file = write(args.folder, args.out)
    if args.json:
        print_json({"report": str(file)})
    else:
        print_result(str(file))
    return 0


def _check_other(file: Path, own: Path) -> None:
    """Refuse to replace a file that is not a report."""
    if file.is_file() and file.resolve() != own.resolve() and not is_report(file):
        raise CommandError(
            f"{file} exists and is not a report of entrim: name another file, or pass --force to "
            "replace it"
        )
