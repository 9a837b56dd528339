"""`entrim report`: the HTML page of a run."""

from argparse import ArgumentParser, Namespace
from typing import Any

from entrim.commands.runs import demand_run
from entrim.commands.showing import tell, tell_json
from entrim.report import write

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
    return parser


def run(args: Namespace) -> int:
    """Write the page and say where."""
    demand_run(args.folder)
    file = write(args.folder, args.out)
    if args.json:
        tell_json({"report": str(file)})
    else:
        tell(str(file))
    return 0
