"""The process group of a command that `torchrun` started."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from torch import distributed

from entrim.distributed.world import World


def launched_ranks() -> int:
    """Return the number of processes that `torchrun` started; 1 without it."""
    if not distributed.is_available() or not distributed.is_torchelastic_launched():
        return 1
    return int(os.environ["WORLD_SIZE"])


@contextmanager
def process_group() -> Iterator[World]:
    """Join the process group of `torchrun`, and leave it after the block."""
    if launched_ranks() == 1:
        yield World()
        return
    distributed.init_process_group("gloo")
    try:
        yield World.current()
    finally:
        distributed.destroy_process_group()
