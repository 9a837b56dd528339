"""`entrim`: which command is meant, and how it ends.

Exit codes: 0 done, 1 refused or failed with one sentence on stderr, 2 wrong usage.
"""

import argparse
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import entrim
from entrim.commands import (
    compare,
    completion,
    demo,
    distill,
    export,
    inspect,
    report,
    reproduce,
    search,
    sparsify,
)
from entrim.errors import EntrimError

COMMANDS = (
    demo, inspect, sparsify, search, distill, export, report, compare, reproduce, completion
)  # fmt: skip
_EPILOG = """\
Results go to stdout, progress and warnings to stderr.
Exit codes: 0 done; 1 refused or failed, with one sentence that names the remedy; 2 wrong usage.
entrim COMMAND --help shows examples."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    whole = argparse.ArgumentParser(
        prog="entrim",
        description="Make a pre-trained CNN physically smaller, from a few unlabelled images.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--version", action="version", version=f"entrim {entrim.__version__}")
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS:
        added = module.add(commands)
        added.formatter_class = argparse.RawDescriptionHelpFormatter
        added.set_defaults(run=module.run)
        added.add_argument("--json", action="store_true", help="print the result as JSON")
        added.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return whole


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    whole = parser()
    args = whole.parse_args(_negatives(words))
    args.words, args.parser = words, whole
    try:
        with warnings.catch_warnings(), _terminable():
            warnings.showwarning = _told
            return args.run(args)
    except KeyboardInterrupt as stop:
        kept = str(stop) or "what was saved before is intact"
        return _failed(f"interrupted: {kept}", args.debug)
    except EntrimError as error:
        return _failed(str(error), args.debug)
    except BrokenPipeError:  # whoever read our output has seen enough
        sys.stderr.close()
        return 1
    except Exception as error:
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        return _failed(f"{what} (unexpected: run again with --debug to see where)", args.debug)


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


def _told(message: Warning | str, category: type[Warning], *_: object) -> None:
    """Show our own warnings as sentences; those of other packages are for their developers."""
    if category.__module__.startswith("entrim"):
        print(f"entrim: warning: {message}", file=sys.stderr)


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
