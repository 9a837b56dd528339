"""`entrim reproduce`: a table of the paper, run again and set beside what was printed."""

import argparse
import sys
from pathlib import Path

from entrim import atomic
from entrim.command.progress import Progress
from entrim.errors import SaveError
from entrim.experiments.cutting import WAYS
from entrim.experiments.reproduce import EXPERIMENTS, Options
from entrim.experiments.studies import STUDIES
from entrim.experiments.work import Work, work_folder

HELP: str = "Run a table of the paper again: published, ours, difference."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what may be told."""
    parser.add_argument("experiment", choices=[*EXPERIMENTS, *STUDIES])
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], help="one run each; mean and spread are shown"
    )
    parser.add_argument("--quick", action="store_true", help="few images and epochs; no results")
    parser.add_argument(
        "--ways", nargs="+", choices=list(WAYS), default=list(WAYS), help="how rows are cut"
    )
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
        "--finished", action="store_true", help="run nothing; print what is finished"
    )
    parser.add_argument(
        "--work", type=Path, help="folder of finished stages (default: in the cache)"
    )
    parser.add_argument("--record", type=Path, help="file for the JSON record (default: in --work)")


def run(told: argparse.Namespace) -> None:
    """Say what will be run, run it, print the table and write the record."""
    experiment = {**EXPERIMENTS, **STUDIES}[told.experiment]
    options = Options(
        seeds=tuple(dict.fromkeys(told.seeds)),
        quick=told.quick,
        ways=tuple(told.ways),
        epochs=None if told.epochs is None else tuple(told.epochs),
        scratch=not told.no_scratch,
    )
    folder = told.work or work_folder()
    if not told.finished:
        print(experiment.plan(options), file=sys.stderr)
        print(f"what is finished in {folder} is not run again", file=sys.stderr)
    report = experiment.run(Work(folder, Progress(), told.finished), options)
    file = told.record or folder / f"{experiment.name}{'-quick' * told.quick}.json"
    try:
        atomic.write(file, report.to_json().encode() + b"\n")
    except OSError as error:
        raise SaveError(f"the record {file} cannot be written ({error}): pass --record") from error
    print(report.markdown())
    print(f"record: {file}", file=sys.stderr)
