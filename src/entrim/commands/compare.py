"""`entrim compare`: several runs side by side."""

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from entrim.commands.runs import demand_run
from entrim.commands.showing import table, tell, tell_json
from entrim.report.numbers import percent, seconds, short, size
from entrim.report.repeat import call
from entrim.report.story import Story, read

_EXAMPLES = """\
examples:
  entrim compare small-30 small-50 paper
  entrim compare runs/* --layers           adds the width of every layer
  entrim compare runs/* --json"""
NAMES = ("network", "images", "parameters", "of before", "MACs", "of before", "bytes", "latency")
NAMES += ("worst layer error", "loss by distillation", "proof", "seconds")
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
        demand_run(folder)
    stories = [read(folder) for folder in args.folders]
    if args.json:
        tell_json([_plain(story) for story in stories])
        return 0
    columns = [["", *NAMES], *map(_column, stories)]
    rows = [list(row) for row in zip(*columns, strict=True)]
    if args.layers:
        rows += _layers(stories)
    tell(table(rows))
    for story in stories:
        tell(f"\n{story.folder}: {call(story.record.settings)}")
    return 0


def _column(story: Story) -> list[str]:
    record, errors = story.record, [layer.error for layer in story.record.layers]
    before, after, done = record.before, record.after, record.distilled
    return [
        Path(story.folder).name or story.folder,
        record.model,
        f"{record.images:,}",
        short(after.params),
        percent(after.params / max(before.params, 1)),
        short(after.macs),
        percent(after.macs / max(before.macs, 1)),
        size(after.bytes),
        seconds(after.latency),
        percent(max(errors)) if errors else _GAP,
        f"{done.before:.2g} → {done.after:.2g}" if done is not None else _GAP,
        f"{record.proof['final']:.0e}",
        f"{sum(record.seconds.values()):.1f}",
    ]


def _layers(stories: list[Story]) -> list[list[str]]:
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


def _plain(story: Story) -> dict[str, Any]:
    record = story.record
    return {
        "folder": story.folder,
        "model": record.model,
        "images": record.images,
        "before": asdict(record.before),
        "after": asdict(record.after),
        "errors": {layer.layer: layer.error for layer in record.layers},
        "widths": {layer.name: [layer.before, layer.after] for layer in story.layers},
        "distilled": None if record.distilled is None else asdict(record.distilled),
        "call": call(record.settings),
    }
