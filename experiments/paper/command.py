"""`python -m experiments reproduce`: a table of the paper, compared with the printed one."""

import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from entrim import ProgressEvent
from entrim.errors import CommandError, SaveError
from entrim.storage.atomic import write
from experiments.paper.pruning import METHODS
from experiments.paper.records import NO_RECORD, PreviousRecord
from experiments.paper.reproduce import EXPERIMENTS, Options
from experiments.paper.robustness import ROBUSTNESS
from experiments.paper.studies import STUDIES
from experiments.work import Work, work_folder

_EXAMPLES = """\
examples:
  python -m experiments reproduce lenet-conv --seeds 0 1 2
  python -m experiments reproduce lenet-full --quick
  python -m experiments reproduce vgg16-full --finished   prints finished results, runs nothing
  python -m experiments reproduce comparison --networks VGG-16 ResNet18"""


def add(subparsers: Any) -> ArgumentParser:
    """Add the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "reproduce",
        help="reproduce a table of the paper",
        description="Reproduce a table of the paper: published, ours, difference.",
        formatter_class=RawDescriptionHelpFormatter,
        epilog=_EXAMPLES,
    )
    known = [*EXPERIMENTS, *STUDIES, ROBUSTNESS.name]
    parser.add_argument(
        "experiment", choices=known, metavar="EXPERIMENT", help=f"one of {', '.join(known)}"
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], help="one run each; shows mean and deviation"
    )
    parser.add_argument("--quick", action="store_true", help="few images and epochs; no results")
    parser.add_argument(
        "--methods", nargs="+", choices=list(METHODS), help="how rows are pruned (default: all)"
    )
    parser.add_argument("--rows", nargs="+", metavar="NAME", help="of a table (default: all)")
    parser.add_argument("--networks", nargs="+", metavar="NAME", help="of a study (default: all)")
    parser.add_argument(
        "--variants", nargs="+", metavar="PATTERN", help="of a study, such as 'entropic*'"
    )
    parser.add_argument(
        "--epochs",
        type=int,
        nargs="*",
        help="to train for, instead of the published ones; without a number, only prune",
    )
    parser.add_argument(
        "--bfloat16", action="store_true", help="train in bfloat16; test in float32"
    )
    parser.add_argument("--no-scratch", action="store_true", help="do not train from new weights")
    parser.add_argument(
        "--finished", action="store_true", help="run nothing; print finished results"
    )
    parser.add_argument(
        "--work",
        type=Path,
        metavar="DIR",
        help="folder of finished results (default: in the cache)",
    )
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="JSON record to write or extend (default: in --work; with --finished none)",
    )
    parser.add_argument("--json", action="store_true", help="print the record instead of a table")
    return parser


def run(args: Namespace) -> int:
    """Print the plan, run it, print the table and write the record."""
    experiment = {**EXPERIMENTS, **STUDIES, ROBUSTNESS.name: ROBUSTNESS}[args.experiment]
    options = Options(
        seeds=tuple(dict.fromkeys(args.seeds)),
        quick=args.quick,
        methods=tuple(args.methods or METHODS),
        epochs=None if args.epochs is None else tuple(args.epochs),
        scratch=not args.no_scratch,
        bfloat16=args.bfloat16,
        networks=tuple(args.networks) if args.networks else None,
        rows=tuple(args.rows) if args.rows else None,
        variants=tuple(args.variants) if args.variants else None,
    )
    _check_options(args)
    folder = args.work or work_folder()
    file = args.record
    if file is not None:
        _check_writable(file)
    elif not args.finished:
        file = folder / f"{experiment.name}{'-quick' * args.quick}.json"
    previous = PreviousRecord.read(file, experiment.name, quick=args.quick) if file else NO_RECORD
    if not args.finished:
        print(experiment.plan(options), file=sys.stderr)
        print(f"finished results in {folder} are not run again", file=sys.stderr)
    work = Work(folder, _Progress(), args.finished)
    report = experiment.run(work, options, previous)
    if file is not None:
        with nullcontext() if args.finished else work.lock("record", file):
            now = PreviousRecord.read(file, experiment.name, quick=args.quick)
            if now != previous:  # another process has extended it
                report = experiment.run(replace(work, only_finished=True), options, now)
            _write_record(file, report.to_json())
    print(report.to_json() if args.json else report.markdown(), flush=True)
    return 0


def _check_options(args: Namespace) -> None:
    """Raise an error for options that the experiment does not have."""
    for option in ("methods", "no_scratch", "rows"):
        if getattr(args, option) and args.experiment not in EXPERIMENTS:
            name = option.replace("_", "-")
            raise CommandError(f"{args.experiment} has no --{name}: leave it out")
    if args.networks and args.experiment in EXPERIMENTS:
        raise CommandError(f"{args.experiment} has one network: leave --networks out")
    if args.variants and args.experiment not in STUDIES:
        raise CommandError(f"{args.experiment} has no --variants: leave it out")


def _write_record(file: Path, content: str) -> None:
    try:
        write(file, content.encode() + b"\n")
    except OSError as error:
        raise SaveError(
            f"the record {file} cannot be written ({error}): free some space, or "
            "name another with --record; finished results are kept"
        ) from error
    print(f"record: {file}", file=sys.stderr)


def _check_writable(file: Path) -> None:
    """Raise an error if a file cannot be written, before hours of work."""
    if file.is_dir():
        raise CommandError(f"{file} is a folder: name a file")
    if not file.parent.is_dir():
        raise CommandError(f"there is no folder {file.parent}: create it, or name another file")
    try:
        with tempfile.TemporaryFile(dir=file.parent):
            pass
    except OSError as error:
        raise CommandError(
            f"{file.parent} cannot be written ({error.strerror}): name a file elsewhere"
        ) from error


@dataclass(slots=True)
class _Progress:
    """Prints steps to stderr: the first and the last of a stage, and some in between."""

    every: float = 20.0
    """Seconds between two lines of one stage."""
    _stage: str = ""
    _last_time: float = 0.0

    def __call__(self, event: ProgressEvent) -> None:
        now = time.monotonic()
        same = event.stage == self._stage
        if same and event.done < event.total and now - self._last_time < self.every:
            return
        self._stage, self._last_time = event.stage, now
        line = f"{event.stage}: {event.done} of {event.total}  {event.detail}"
        print(line.rstrip(), file=sys.stderr, flush=True)
