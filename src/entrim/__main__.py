"""The command `entrim`, also `python -m entrim`.

Importing PyTorch takes seconds; `main` handles Ctrl-C during this time.
"""

import os
import signal
import sys
from contextlib import suppress
from importlib.metadata import version
from types import FrameType
from typing import NoReturn


def main() -> int:
    """Import the command line and run it; `--version` alone needs no import.

    Ctrl-C or SIGTERM during the import ends the process with one line on stderr.
    """
    if sys.argv[1:] == ["--version"] and sys.stdout is not None:
        with suppress(OSError):  # the command line reports errors of stdout
            print(f"entrim {version('entrim')}", flush=True)
            return 0
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    ours = [number for number, handler in usual.items() if signal.getsignal(number) is handler]
    for number in ours:  # ignored signals, such as Ctrl-C in the background, stay ignored
        signal.signal(number, _leave)
    from entrim.cli.main import main as command

    for number in ours:
        signal.signal(number, usual[number])
    return command()


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    os.write(2, b"entrim: interrupted before any work was started\n")
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
