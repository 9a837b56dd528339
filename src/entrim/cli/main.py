"""`entrim`: which command is meant, and how it ends.

Exit codes: 0 done, 1 refused or failed with one sentence on stderr, 2 wrong usage.
"""

import argparse
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import entrim
from entrim.cli import compare, completion, demo, distill, export, inspect, report, search, sparsify
from entrim.cli.console import (
    Parser,
    give_up_stdout,
    in_options,
    mend_streams,
    sentence_of,
    stdout_for_results,
)
from entrim.errors import CommandError, EntrimError

COMMANDS = (
    demo, inspect, sparsify, search, distill, export, report, compare, completion
)  # fmt: skip
_EPILOG = """\
Exit codes: 0 done; 1 refused or failed, with one sentence that names the remedy; 2 wrong usage.
Results go to stdout, progress and warnings to stderr. entrim COMMAND --help shows examples."""


def parser() -> Parser:
    """Return the parser of all commands."""
    whole = Parser(
        prog="entrim",
        description="Make a pre-trained CNN physically smaller, from a few unlabelled images.",
        epilog=_EPILOG,
    )
    whole.add_argument(
        "--version",
        action="version",
        version=f"entrim {entrim.__version__}",
        help="print the version and exit",
    )
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS:
        added = module.add(commands)
        added.set_defaults(run=module.run, own=added)
        added.add_argument("--json", action="store_true", help="print the result as JSON")
        added.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return whole


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug, options = "--debug" in words, set[str]()
    mend_streams()
    try:
        args = _understood(words)
        options |= set(args.own._option_string_actions)
        return _ran(args, options)
    except KeyboardInterrupt as stop:
        kept = str(stop) or "what was saved before is intact"
        return _failed(f"interrupted: {kept}", debug)
    except EntrimError as error:
        return _failed(sentence_of(error, options), debug)
    except BrokenPipeError:  # whoever read our output has seen enough
        give_up_stdout()
        return 1
    except Exception as error:
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        return _failed(f"{what} (unexpected: run again with --debug to see where)", debug)


def _understood(words: list[str]) -> argparse.Namespace:
    """Return what the words ask for; those that ask for nothing are answered with the help."""
    whole = parser()
    if not words:
        whole.print_help(sys.stderr)
        raise SystemExit(2)
    args, odd = whole.parse_known_args(_negatives(words))
    if odd:
        args.own.error(f"unrecognized arguments: {' '.join(odd)}")
    args.words, args.parser = words, whole
    return args


def _ran(args: argparse.Namespace, options: Collection[str]) -> int:
    """Run the command that `args` name; our own warnings are told as sentences."""

    def told(message: Warning | str, category: type[Warning], *_: object) -> None:
        if category.__module__.startswith("entrim"):  # others are for their developers
            print(f"entrim: warning: {in_options(str(message), options)}", file=sys.stderr)

    with warnings.catch_warnings(), _terminable(), stdout_for_results():
        warnings.showwarning = told
        try:
            return args.run(args)
        except SystemExit as stop:
            raise CommandError(
                f"code that was run called sys.exit({stop.code!r}): let it return or raise instead "
                "(--debug shows where)"
            ) from stop


@contextmanager
def _terminable() -> Iterator[None]:
    """Let a SIGTERM end the block as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _failed(sentence: str, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"entrim: {sentence}", file=sys.stderr)
    return 1


def _negatives(words: Sequence[str]) -> list[str]:
    """Return the words with `--option -1e-4` written as `--option=-1e-4`, as argparse wants it."""
    found: list[str] = []
    for word in words:
        before = found[-1] if found else ""
        if word.startswith("-") and before.startswith("--") and "=" not in before and _number(word):
            found[-1] = f"{before}={word}"
        else:
            found.append(word)
    return found


def _number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
