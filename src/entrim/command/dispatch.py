"""From arguments to a subcommand: results on stdout, progress on stderr, exit codes 0, 1 and 2."""

import argparse
import sys
from collections.abc import Sequence
from typing import Protocol

from entrim.command import reproduce
from entrim.errors import EntrimError


class Subcommand(Protocol):
    """What a module of this room must have."""

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Say what the subcommand may be told."""
        ...

    def run(self, told: argparse.Namespace) -> None:
        """Do it; an EntrimError becomes one sentence and exit code 1."""
        ...


SUBCOMMANDS: dict[str, Subcommand] = {"reproduce": reproduce}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments say and return the exit code: 0 done, 1 refused, 2 misused."""
    told = _parser().parse_args(arguments)
    try:
        SUBCOMMANDS[told.subcommand].run(told)
    except KeyboardInterrupt:
        print("stopped: the same command goes on from here", file=sys.stderr)
        return 1
    except EntrimError as error:
        if told.debug:
            raise
        print(f"entrim: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="entrim", description="Make a pre-trained CNN smaller, without labels."
    )
    chosen = parser.add_subparsers(dest="subcommand", required=True)
    for name, module in SUBCOMMANDS.items():
        sub = chosen.add_parser(name, help=module.HELP, description=module.HELP)
        sub.add_argument("--debug", action="store_true", help="show the traceback of an error")
        module.add_arguments(sub)
    return parser
