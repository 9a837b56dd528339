"""`entrim compare`: compare several runs."""

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from entrim.cli.console import print_json, print_result, table
from entrim.cli.options import check_writable
from entrim.cli.run_dir import require_run
from entrim.errors import CommandError
from entrim.report.comparison import RunComparison, headings_of
from entrim.report.repeat import calls, command
from entrim.report.report_data import ReportData, read

_EXAMPLES = """\
examples:
  entrim compare small-30 small-50 paper
  entrim compare runs/* --layers           with the width of every layer
  entrim compare runs/* --html compare.html
  entrim compare runs/* --json"""


def add(subparsers: Any) -> ArgumentParser:
    """Add the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "compare",
        help="compare several saved runs",
        description="Compare several saved runs: sizes, errors, and their commands.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("folders", metavar="DIR", nargs="+", help="folders of runs")
    parser.add_argument("--layers", action="store_true", help="show the width of every layer too")
    parser.add_argument("--html", metavar="FILE", help="write the comparison as an HTML page too")
    parser.add_argument("--force", action="store_true", help="replace FILE")
    return parser


def run(args: Namespace) -> int:
    """Print one column per run."""
    for folder in args.folders:
        require_run(folder)
    if args.html is not None:
        check_writable(Path(args.html))
        if Path(args.html).exists() and not args.force:
            raise CommandError(f"{args.html} exists: name another file, or pass --force")
    runs = [read(folder) for folder in args.folders]
    found = RunComparison(headings_of(args.folders), tuple(runs))
    if args.html is not None:
        found.save(args.html)
    if args.json:
        print_json([_as_dict(data) for data in runs])
        return 0
    print_result(table(found.rows(layers=args.layers)))
    for data in runs:
        print_result(
            "\n".join([f"\n{data.folder}:", *(f"  {line}" for line in _origin_lines(data))])
        )
    if args.html is not None:
        print_result(f"\ncomparison: {args.html}")
    return 0


def _origin_lines(data: ReportData) -> list[str]:
    """Return the commands that created a run, otherwise the calls."""
    return list(map(command, data.commands)) or calls(data.record)


def _as_dict(data: ReportData) -> dict[str, Any]:
    record = data.record
    return {
        "folder": data.folder,
        "model": record.model,
        "images": record.images,
        "before": asdict(record.before),
        "after": asdict(record.after),
        "errors": {layer.layer: layer.error for layer in record.layers},
        "widths": {layer.name: [layer.before, layer.after] for layer in data.layers},
        "error": record.error,
        "holdout": None if record.holdout is None else asdict(record.holdout),
        "score": None if record.score is None else asdict(record.score),
        "distilled": None if record.distilled is None else asdict(record.distilled),
        "commands": [list(words) for words in data.commands],
        "calls": calls(record),
    }
