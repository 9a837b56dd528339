"""`entrim reproduce`: a table of the paper, run again and set beside what was printed."""

import sys
from argparse import ArgumentParser, Namespace
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from entrim import atomic
from entrim.commands.places import refuse_unwritable
from entrim.commands.showing import Progress, tell
from entrim.errors import CommandError, SaveError
from entrim.experiments.cutting import WAYS
from entrim.experiments.earlier import NOTHING, Earlier
from entrim.experiments.reproduce import EXPERIMENTS, Options
from entrim.experiments.robustness import ROBUSTNESS
from entrim.experiments.studies import STUDIES
from entrim.experiments.work import Work, work_folder

_EXAMPLES = """\
examples:
  entrim reproduce lenet-conv --seeds 0 1 2
  entrim reproduce lenet-full --quick
  entrim reproduce vgg16-full --finished   prints what is finished, runs nothing
  entrim reproduce comparison --networks VGG-16 ResNet18"""


def add(subparsers: Any) -> ArgumentParser:
    """Add the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "reproduce",
        help="run a table of the paper again",
        description="Run a table of the paper again: published, ours, difference.",
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
        refuse_unwritable(file)
    elif not args.finished:
        file = folder / f"{experiment.name}{'-quick' * args.quick}.json"
    earlier = Earlier.read(file, experiment.name, quick=args.quick) if file else NOTHING
    if not args.finished:
        print(experiment.plan(options), file=sys.stderr)
        print(f"what is finished in {folder} is not run again", file=sys.stderr)
    work = Work(folder, Progress(), args.finished)
    report = experiment.run(work, options, earlier)
    if file is not None:
        with nullcontext() if args.finished else work.alone("record", file):
            now = Earlier.read(file, experiment.name, quick=args.quick)
            if now != earlier:  # another run has added to it meanwhile
                report = experiment.run(replace(work, only_finished=True), options, now)
            _record(file, report.to_json())
    tell(report.to_json() if args.json else report.markdown())
    return 0


def _record(file: Path, content: str) -> None:
    try:
        atomic.write(file, content.encode() + b"\n")
    except OSError as error:
        raise SaveError(
            f"the record {file} cannot be written ({error}): make room, or name another with "
            "--record; what was run is kept and is not run again"
        ) from error
    print(f"record: {file}", file=sys.stderr)
