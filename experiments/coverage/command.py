"""The command `coverage`: what is missing in the ledger is measured, one process for each row."""

import multiprocessing
import resource
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Callable
from fnmatch import fnmatchcase
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from experiments.benchmarks.record import RESULTS, Ledger
from experiments.coverage import tables
from experiments.coverage.measure import Row, measure_peer, measure_pruning, measure_trace
from experiments.coverage.networks import NETWORKS
from experiments.operators import define_missing_operators

STEPS: dict[str, Callable[[str], Row]] = {
    "trace": measure_trace,
    "budget": measure_pruning,
    "torch-pruning": measure_peer,
}
EVERY_THIRD = 3
"""A run with a budget is made for every third network of the list, which is sorted by library."""
LIMIT, MEMORY, WALL = 180, 12 * 2**30, 3
"""Processor seconds and bytes of one row; and how many times longer it may take with other load."""
LIBRARIES = ("timm", "transformers", "segmentation_models_pytorch", "monai", "ultralytics")


def add(commands: "_SubParsersAction[ArgumentParser]") -> ArgumentParser:
    """Add the command to the parser, and return its own."""
    parser = commands.add_parser(
        "coverage", help="trace and prune networks of seven libraries, and write the table"
    )
    parser.add_argument("--networks", default="*", metavar="PATTERN", help="only these networks")
    parser.add_argument("--steps", nargs="+", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--ledger", type=Path, default=RESULTS / "coverage.jsonl")
    parser.set_defaults(run=run)
    return parser


def run(args: Namespace) -> int:
    """Measure the missing rows, and write the tables."""
    ledger = Ledger(args.ledger)
    known = ledger.points()
    missing = [
        (step, name)
        for step in args.steps
        for number, name in enumerate(NETWORKS)
        if fnmatchcase(name, args.networks)
        and f"{name}: {step}" not in known
        and (step != "budget" or number % EVERY_THIRD == 0)
    ]
    if missing:
        _import_libraries()
    for step, name in missing:
        ledger.point(f"{name}: {step}", lambda step=step, name=name: in_process(step, name))
    tables.write_tables(ledger.points(), args.ledger)
    return 0


def in_process(step: str, name: str) -> Row:
    """Return the row that a process of its own measures; a failure is a row."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(step, name, sender))
    process.start()
    sender.close()
    try:
        row = receiver.recv() if receiver.poll(LIMIT * WALL) else {"status": "time limit"}
    except EOFError:
        process.join()
        row = {"status": "time limit" if process.exitcode == -24 else f"exit {process.exitcode}"}
    process.kill()
    process.join()
    return row


def _measure(step: str, name: str, sender: Connection) -> None:
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT + 5))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    try:
        row = STEPS[step](name)
    except Exception as error:
        message = f"{type(error).__name__}: {error}".partition("\n")[0]
        row = {"status": "error", "message": message[:300]}
    sender.send({**row, "library": _version(name.partition("/")[0])})
    sender.close()


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "not installed"


def _import_libraries() -> None:
    """Import the libraries once, so that the processes need not."""
    define_missing_operators()
    for name in LIBRARIES:
        try:
            import_module(name)
        except ImportError:
            print(f"{name} is not installed: its networks are rows with an error")
