"""`entrim report`: the HTML page of a run."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from entrim.cli.console import print_progress, tell_json
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
        help="write the HTML page of a saved run",
        description="Write one self-contained HTML page about a run that was saved.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("folder", metavar="DIR", help="the folder of a run")
    parser.add_argument("--out", metavar="FILE", help="where to write (DIR/report.html)")
    parser.add_argument(
        "--force", action="store_true", help="replace a file that is no report of entrim"
    )
    return parser


def run(args: Namespace) -> int:
    """Write the page and say where."""
    require_run(args.folder)
    if args.out is not None and not args.force:
        _check_other(Path(args.out), Path(args.folder, FILE))
    file = write(args.folder, args.out)
    if args.json:
        tell_json({"report": str(file)})
    else:
        print_progress(str(file))
    return 0


def _check_other(file: Path, own: Path) -> None:
    """Refuse to replace a file that somebody else wrote; a report may be written anew."""
    if file.is_file() and file.resolve() != own.resolve() and not is_report(file):
        raise CommandError(
            f"{file} is there and no report of entrim: name another file, or pass --force to "
            "replace it"
        )
