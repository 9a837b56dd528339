"""`entrim`: parse the command line and run one command.

Exit codes: 0 success, 1 refused or failed with one sentence on stderr, 2 wrong usage.
"""

import argparse
import logging
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import entrim
from entrim.cli import (
    collect,
    compare,
    completion,
    demo,
    distill,
    export,
    inspect,
    merge,
    report,
    search,
    sparsify,
)
from entrim.cli.console import (
    Parser,
    discard_stdout,
    error_message,
    print_message,
    repair_streams,
    reserve_stdout,
    translate_options,
)
from entrim.distributed.world import launched_ranks
from entrim.errors import CommandError, EntrimError

COMMANDS = (
    demo, inspect, sparsify, search, distill, export, report, compare, collect, merge, completion
)  # fmt: skip
_EPILOG = """\
Exit codes: 0 success; 1 refused or failed, with one sentence that names the remedy; 2 wrong usage.
Results go to stdout, progress and warnings to stderr. entrim COMMAND --help shows examples."""


def parser() -> Parser:
    """Return the parser of all commands."""
    full = Parser(
        prog="entrim",
        description="Make a pre-trained CNN physically smaller, with a few unlabeled images.",
        epilog=_EPILOG,
    )
    full.add_argument(
        "--version",
        action="version",
        version=f"entrim {entrim.__version__}",
        help="print the version and exit",
    )
    commands = full.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS:
        added = module.add(commands)
        added.set_defaults(run=module.run, own=added)
        added.add_argument("--json", action="store_true", help="print the result as JSON")
        added.add_argument(
            "--debug", action="store_true", help="show the log and the traceback of an error"
        )
    return full


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug, options = "--debug" in words, set[str]()
    repair_streams()
    try:
        args = _parse(words)
        if debug:
            _show_log()
        options |= set(args.own._option_string_actions)
        return _run(args, options)
    except KeyboardInterrupt as stop:
        kept = str(stop) or "saved files are intact"
        return _fail(f"interrupted: {kept}", debug)
    except EntrimError as error:
        return _fail(error_message(error, options), debug)
    except BrokenPipeError:  # the reader of stdout has closed it
        discard_stdout()
        return 1
    except Exception as error:
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        return _fail(f"{what} (unexpected: run again with --debug for the traceback)", debug)


def _show_log() -> None:
    """Print the log of the package, which contains what torch.export prints."""
    logging.basicConfig(format="%(name)s: %(message)s")
    logging.getLogger("entrim").setLevel(logging.DEBUG)


def _parse(words: list[str]) -> argparse.Namespace:
    """Return the parsed arguments; without any, print the help and exit."""
    full = parser()
    if not words:
        full.print_help(sys.stderr)
        raise SystemExit(2)
    args, unknown = full.parse_known_args(_join_negatives(words))
    if unknown:
        args.own.error(f"unrecognized arguments: {' '.join(unknown)}")
    args.words, args.parser = words, full
    return args


def _run(args: argparse.Namespace, options: Collection[str]) -> int:
    """Run the command; print the warnings of entrim as sentences."""

    def show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
        if category.__module__.startswith("entrim"):  # others concern developers
            text = translate_options(str(message), options)
            print_message("entrim: warning", "bold yellow", text)

    with warnings.catch_warnings(), _convert_sigterm(), reserve_stdout():
        warnings.showwarning = show_warning
        if args.command != "sparsify" and launched_ranks() > 1:
            raise CommandError(
                f"entrim {args.command} needs one process: start it without torchrun"
            )
        try:
            return args.run(args)
        except SystemExit as stop:
            raise CommandError(
                f"user code called sys.exit({stop.code!r}): let it return or raise instead "
                "(--debug shows where)"
            ) from stop


@contextmanager
def _convert_sigterm() -> Iterator[None]:
    """Let SIGTERM interrupt the block like Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _fail(message: str, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print_message("entrim", "bold red", message)
    return 1


def _join_negatives(words: Sequence[str]) -> list[str]:
    """Return the words with `--option -1e-4` as `--option=-1e-4`, as argparse needs it."""
    found: list[str] = []
    for word in words:
        before = found[-1] if found else ""
        if (
            word.startswith("-")
            and before.startswith("--")
            and "=" not in before
            and _is_number(word)
        ):
            found[-1] = f"{before}={word}"
        else:
            found.append(word)
    return found


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
