"""What the script `entrim` runs first: PyTorch takes seconds to import, and Ctrl-C may come then.

It stands beside the package because importing any module of the package imports all of it.
"""

import os
import signal
from types import FrameType
from typing import NoReturn


def main() -> int:
    """Import the command line, left by Ctrl-C with one sentence, and run it."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # and not switched off, as in the background
        signal.signal(signal.SIGINT, _leave)
    from entrim.commands.main import main as command

    signal.signal(signal.SIGINT, before)
    return command()


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    os.write(2, b"entrim: interrupted: nothing was begun\n")
    os._exit(1)
