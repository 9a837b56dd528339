"""`python -m experiments`: reproduce tables of the paper, and run benchmarks.

Exit codes: 0 done, 1 error or interruption with one sentence on stderr, 2 wrong usage.
"""

import signal
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib import import_module

from entrim.errors import CommandError, EntrimError
from experiments.benchmarks import BENCHMARKS, IN_PARTS
from experiments.coverage import command as coverage
from experiments.paper import command


def parser() -> ArgumentParser:
    """Return the parser of all commands."""
    root = ArgumentParser(prog="python -m experiments", description=(__doc__ or "").split("\n")[0])
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    reproduce = command.add(commands)
    reproduce.set_defaults(run=command.run)
    bench = commands.add_parser(
        "bench",
        help="run a benchmark, and write a dated record into experiments/results",
        formatter_class=RawDescriptionHelpFormatter,
        epilog="\n".join(
            ["benchmarks:", *(f"  {name:<12}{text}" for name, text in BENCHMARKS.items())]
        ),
    )
    bench.add_argument(
        "benchmark", choices=list(BENCHMARKS), metavar="BENCHMARK", help="one of those below"
    )
    bench.add_argument(
        "parts", nargs="*", metavar="PART", help=f"only these parts of {', '.join(IN_PARTS)}"
    )
    bench.set_defaults(run=_bench)
    for one in (reproduce, bench, coverage.add(commands)):
        one.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = parser().parse_args(argv)
    try:
        return args.run(args)
    except (EntrimError, KeyboardInterrupt) as error:
        if args.debug:
            raise
        interrupted = isinstance(error, KeyboardInterrupt)
        print(f"experiments: {'interrupted' if interrupted else error}", file=sys.stderr)
        return 1


def _bench(args: Namespace) -> int:
    if args.parts and args.benchmark not in IN_PARTS:
        raise CommandError(f"{args.benchmark} has no parts: leave {' '.join(args.parts)} out")
    measure = import_module(f"experiments.benchmarks.{args.benchmark}").main
    measure(*([args.parts] if args.benchmark in IN_PARTS else []))
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
