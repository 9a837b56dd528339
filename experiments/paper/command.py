"""`python -m experiments reproduce`: a table of the paper, run again beside what was printed."""

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
from experiments.paper.cutting import WAYS
from experiments.paper.earlier import NOTHING, Earlier
from experiments.paper.reproduce import EXPERIMENTS, Options
from experiments.paper.robustness import ROBUSTNESS
from experiments.paper.studies import STUDIES
from experiments.storage import write
from experiments.work import Work, work_folder

_EXAMPLES = """\
examples:
  python -m experiments reproduce lenet-conv --seeds 0 1 2
  python -m experiments reproduce lenet-full --quick
  python -m experiments reproduce vgg16-full --finished   prints what is finished, runs nothing
  python -m experiments reproduce comparison --networks VGG-16 ResNet18"""


def add(subparsers: Any) -> ArgumentParser:
    """Add the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "reproduce",
        help="run a table of the paper again",
        description="Run a table of the paper again: published, ours, difference.",
        formatter_class=RawDescriptionHelpFormatter,
        epilog=_EXAMPLES,
    )
    known = [*EXPERIMENTS, *STUDIES, ROBUSTNESS.name]
    parser.add_argument(
        "experiment", choices=known, metavar="EXPERIMENT", help=f"one of {', '.join(known)}"
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], help="one run each; mean and spread are shown"
    )
    parser.add_argument("--quick", action="store_true", help="few images and epochs; no results")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), help="how rows are cut (all)")
    parser.add_argument("--networks", nargs="+", metavar="NAME", help="of a study of several (all)")
    parser.add_argument(
        "--epochs",
        type=int,
        nargs="*",
        help="to train for, instead of the published; none: cut only",
    )
    parser.add_argument(
        "--no-scratch", action="store_true", help="train no network from new weights"
    )
    parser.add_argument(
        "--finished", action="store_true", help="run and write nothing; print what is finished"
    )
    parser.add_argument(
        "--work",
        type=Path,
        metavar="DIR",
        help="folder of finished stages (default: in the cache)",
    )
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="JSON record; an earlier one is added to (default: in --work; --finished: none)",
    )
    parser.add_argument("--json", action="store_true", help="print the record instead of a table")
    return parser


def run(args: Namespace) -> int:
    """Say what will be run, run it, print the table and write the record."""
    experiment = {**EXPERIMENTS, **STUDIES, ROBUSTNESS.name: ROBUSTNESS}[args.experiment]
    options = Options(
        seeds=tuple(dict.fromkeys(args.seeds)),
        quick=args.quick,
        ways=tuple(args.ways or WAYS),
        epochs=None if args.epochs is None else tuple(args.epochs),
        scratch=not args.no_scratch,
        networks=tuple(args.networks) if args.networks else None,
    )
    for option, given in (("--ways", args.ways), ("--no-scratch", args.no_scratch)):
        if given and args.experiment not in EXPERIMENTS:
            raise CommandError(f"{args.experiment} knows no {option}: leave it out")
    if args.networks and args.experiment in EXPERIMENTS:
        raise CommandError(f"{args.experiment} is of one network: leave --networks out")
    folder = args.work or work_folder()
    file = args.record
    if file is not None:
        _refuse_unwritable(file)
    elif not args.finished:
        file = folder / f"{experiment.name}{'-quick' * args.quick}.json"
    earlier = Earlier.read(file, experiment.name, quick=args.quick) if file else NOTHING
    if not args.finished:
        print(experiment.plan(options), file=sys.stderr)
        print(f"what is finished in {folder} is not run again", file=sys.stderr)
    work = Work(folder, _Progress(), args.finished)
    report = experiment.run(work, options, earlier)
    if file is not None:
        with nullcontext() if args.finished else work.alone("record", file):
            now = Earlier.read(file, experiment.name, quick=args.quick)
            if now != earlier:  # another run has added to it meanwhile
                report = experiment.run(replace(work, only_finished=True), options, now)
            _record(file, report.to_json())
    print(report.to_json() if args.json else report.markdown(), flush=True)
    return 0


def _record(file: Path, content: str) -> None:
    try:
        write(file, content.encode() + b"\n")
    except OSError as error:
        raise SaveError(
            f"the record {file} cannot be written ({error}): make room, or name another with "
            "--record; what was run is kept and is not run again"
        ) from error
    print(f"record: {file}", file=sys.stderr)


def _refuse_unwritable(file: Path) -> None:
    """Refuse a file that could not be written, before hours of work."""
    if file.is_dir():
        raise CommandError(f"{file} is a folder: name a file")
    if not file.parent.is_dir():
        raise CommandError(f"there is no folder {file.parent}: make it, or name another file")
    try:
        with tempfile.TemporaryFile(dir=file.parent):
            pass
    except OSError as error:
        raise CommandError(
            f"{file.parent} cannot be written ({error.strerror}): name a file elsewhere"
        ) from error


@dataclass(slots=True)
class _Progress:
    """Steps as lines on stderr: the first and the last of a stage, and some in between."""

    every: float = 20.0
    """Seconds between two lines of one stage."""
    _stage: str = ""
    _told: float = 0.0

    def __call__(self, step: ProgressEvent) -> None:
        now = time.monotonic()
        same = step.stage == self._stage
        if same and step.done < step.total and now - self._told < self.every:
            return
        self._stage, self._told = step.stage, now
        line = f"{step.stage}: {step.done} of {step.total}  {step.detail}"
        print(line.rstrip(), file=sys.stderr, flush=True)
