"""`entrim compare`: several runs side by side."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from entrim.cli.console import print_progress, table, tell_json
from entrim.cli.run_dir import require_run
from entrim.report.numbers import percent, seconds, short, size
from entrim.report.repeat import calls, command
from entrim.report.report_data import ReportData, read

_EXAMPLES = """\
examples:
  entrim compare small-30 small-50 paper
  entrim compare runs/* --layers           adds the width of every layer
  entrim compare runs/* --json"""
NAMES = ("network", "images", "parameters", "of before", "MACs", "of before", "bytes", "latency")
NAMES += ("output error", "worst layer error", "loss by distillation", "proof", "seconds")
_GAP = "–"


def add(subparsers: Any) -> ArgumentParser:
    """Add the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "compare",
        help="show several saved runs side by side",
        description="Show several saved runs side by side: sizes, errors, and how they were made.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("folders", metavar="DIR", nargs="+", help="folders of runs")
    parser.add_argument("--layers", action="store_true", help="the width of every layer too")
    return parser


def run(args: Namespace) -> int:
    """Print one column a run."""
    for folder in args.folders:
        require_run(folder)
    stories = [read(folder) for folder in args.folders]
    if args.json:
        tell_json([_plain(story) for story in stories])
        return 0
    columns = [["", *NAMES], *map(_column, headings(args.folders), stories)]
    head, *rows = [list(row) for row in zip(*columns, strict=True)]
    more = _layer_rows(stories) if args.layers else []
    print_progress(table([head, *_scores(stories), *rows, *more]))
    for story in stories:
        print_progress("\n".join([f"\n{story.folder}:", *(f"  {line}" for line in _made(story))]))
    return 0


def headings(folders: Sequence[str]) -> list[str]:
    """Return the end of every path that tells it from the others.

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


def _made(story: ReportData) -> list[str]:
    """Return the commands that made a run, else the calls."""
    return list(map(command, story.commands)) or calls(story.record)


def _scores(stories: Sequence[ReportData]) -> list[list[str]]:
    """Return a row for every metric of any run."""
    known = [story.record.score for story in stories]
    return [
        [name, *(_change(s.before, s.after) if s and s.name == name else _GAP for s in known)]
        for name in dict.fromkeys(score.name for score in known if score)
    ]


def _change(before: float, after: float) -> str:
    return f"{before:.4g} → {after:.4g}"


def _column(heading: str, story: ReportData) -> list[str]:
    record, errors = story.record, [layer.error for layer in story.record.layers]
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
        _GAP if record.error is None else percent(record.error),
        percent(max(errors)) if errors else _GAP,
        _change(done.before, done.after) if done is not None else _GAP,
        f"{record.proof['final']:.0e}",
        f"{sum(record.seconds.values()):.1f}",
    ]


def _layer_rows(stories: Sequence[ReportData]) -> list[list[str]]:
    """Return a row for every layer of any run."""
    names = dict.fromkeys(layer.name for story in stories for layer in story.layers)
    known = [{layer.name: layer for layer in story.layers} for story in stories]
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


def _plain(story: ReportData) -> dict[str, Any]:
    record = story.record
    return {
        "folder": story.folder,
        "model": record.model,
        "images": record.images,
        "before": asdict(record.before),
        "after": asdict(record.after),
        "errors": {layer.layer: layer.error for layer in record.layers},
        "widths": {layer.name: [layer.before, layer.after] for layer in story.layers},
        "error": record.error,
        "score": None if record.score is None else asdict(record.score),
        "distilled": None if record.distilled is None else asdict(record.distilled),
        "commands": [list(words) for words in story.commands],
        "calls": calls(record),
    }
