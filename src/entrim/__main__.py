"""The command `entrim`, also `python -m entrim`.

PyTorch takes seconds to import, and Ctrl-C may come meanwhile.
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

    Ctrl-C or SIGTERM during the import end the process with one sentence.
    """
    if sys.argv[1:] == ["--version"] and sys.stdout is not None:
        with suppress(OSError):  # the command line reports what is wrong with stdout
            print(f"entrim {version('entrim')}", flush=True)
            return 0
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    ours = [number for number, handler in usual.items() if signal.getsignal(number) is handler]
    for number in ours:  # others are switched off, as Ctrl-C is in the background
        signal.signal(number, _leave)
    from entrim.cli.main import main as command

    for number in ours:
        signal.signal(number, usual[number])
    return command()


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    os.write(2, b"entrim: interrupted: nothing was begun\n")
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
