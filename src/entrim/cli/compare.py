"""`entrim compare`: compare several runs."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from entrim.cli.console import print_json, print_result, table
from entrim.cli.run_dir import require_run
from entrim.records import Holdout
from entrim.report.numbers import percent, seconds, short, size
from entrim.report.repeat import calls, command
from entrim.report.report_data import ReportData, read

_EXAMPLES = """\
examples:
  entrim compare small-30 small-50 paper
  entrim compare runs/* --layers           with the width of every layer
  entrim compare runs/* --json"""
NAMES = ("network", "images", "parameters", "fraction", "MACs", "fraction", "bytes", "latency")
NAMES += ("agreement, unseen images", "KL divergence, unseen images", "error, unseen images")
NAMES += ("error, fitting images", "worst layer error", "distillation loss", "proof", "seconds")
_GAP = "–"


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
    return parser


def run(args: Namespace) -> int:
    """Print one column per run."""
    for folder in args.folders:
        require_run(folder)
    runs = [read(folder) for folder in args.folders]
    if args.json:
        print_json([_as_dict(data) for data in runs])
        return 0
    columns = [["", *NAMES], *map(_column, headings(args.folders), runs)]
    head, *rows = [list(row) for row in zip(*columns, strict=True)]
    more = _layer_rows(runs) if args.layers else []
    print_result(table([head, *_scores(runs), *rows, *more]))
    for data in runs:
        print_result(
            "\n".join([f"\n{data.folder}:", *(f"  {line}" for line in _origin_lines(data))])
        )
    return 0


def headings(folders: Sequence[str]) -> list[str]:
    """Return the shortest end of every path that distinguishes it from the others.

    >>> headings(["r1/x", "r2/x", "r2/y/"])
    ['r1/x', 'r2/x', 'y']
    """
    places = [Path(folder).parts for folder in folders]
    found = []
    for mine in places:
        others = [parts for parts in places if parts != mine]
        ends = (mine[-k:] for k in range(1, len(mine) + 1))
        apart = (end for end in ends if all(o[-len(end) :] != end for o in others))
        found.append(str(Path(*next(apart, mine))))
    return found


def _origin_lines(data: ReportData) -> list[str]:
    """Return the commands that created a run, otherwise the calls."""
    return list(map(command, data.commands)) or calls(data.record)


def _scores(runs: Sequence[ReportData]) -> list[list[str]]:
    """Return one row for each metric of any run."""
    known = [data.record.score for data in runs]
    return [
        [
            name,
            *(_format_change(s.before, s.after) if s and s.name == name else _GAP for s in known),
        ]
        for name in dict.fromkeys(score.name for score in known if score)
    ]


def _format_change(before: float, after: float) -> str:
    return f"{before:.4g} → {after:.4g}"


def _column(heading: str, data: ReportData) -> list[str]:
    record, errors = data.record, [layer.error for layer in data.record.layers]
    before, after, done = record.before, record.after, record.distilled
    return [
        heading,
        record.model,
        f"{record.images:,}",
        short(after.params),
        percent(after.params / max(before.params, 1)),
        short(after.macs),
        percent(after.macs / max(before.macs, 1)),
        size(after.bytes),
        seconds(after.latency),
        *_unseen(record.holdout),
        _GAP if record.error is None else percent(record.error),
        percent(max(errors)) if errors else _GAP,
        _format_change(done.before, done.after) if done is not None else _GAP,
        f"{record.proof['final']:.0e}",
        f"{sum(record.seconds.values()):.1f}",
    ]


def _unseen(holdout: Holdout | None) -> list[str]:
    """Return the figures on hold-out images with their intervals."""
    figures = {} if holdout is None else holdout.figures()
    found = (figures.get(name) for name in ("agreement", "KL divergence", "error"))
    return [_GAP if one is None else f"{one[0]} ({one[1]} to {one[2]})" for one in found]


def _layer_rows(runs: Sequence[ReportData]) -> list[list[str]]:
    """Return one row for each layer of any run."""
    names = dict.fromkeys(layer.name for data in runs for layer in data.layers)
    known = [{layer.name: layer for layer in data.layers} for data in runs]
    return [
        [
            name,
            *(
                f"{layers[name].before} → {layers[name].after}" if name in layers else _GAP
                for layers in known
            ),
        ]
        for name in names
    ]


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
