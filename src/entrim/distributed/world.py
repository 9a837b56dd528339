"""The processes of a run: which of them computes a unit of work, and the exchange of results.

All ranks execute the same program on the same images. Independent units, such as the ranking of a
group, are computed by one rank each, which sends the result to the others. A unit is the same on
every rank, so results do not depend on the number of ranks. Sums over images depend on it only by
rounding in double precision.
"""

import operator
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeVar

import torch
from torch import distributed

from entrim.errors import DistributedError, EntrimError

T = TypeVar("T")
_ROOT = 0
"""The rank that passes results on, reads and writes files, and measures latency."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """Sent instead of a result by a rank that cannot continue."""

    message: str


@dataclass(slots=True)
class Traffic:
    """What one rank has sent to others."""

    sent: int = 0
    """Bytes, without the sizes of the messages."""


@dataclass(frozen=True, slots=True)
class World:
    """The ranks of a run; a single process is a world of one and communicates nothing.

    Ranks exchange results through the first one, so that the rank that does not answer is known.
    Messages are pickled: all ranks belong to one job of the same user.
    """

    rank: int = 0
    size: int = 1
    group: Any = field(default=None, repr=False)
    traffic: Traffic = field(default_factory=Traffic, repr=False, compare=False)

    @classmethod
    def current(cls) -> "World":
        """Return the initialized process group, or the world of a single process."""
        if not distributed.is_available() or not distributed.is_initialized():
            return cls()
        size = distributed.get_world_size()
        if size == 1:
            return cls()
        group = None  # messages are on the CPU, also with nccl
        if distributed.get_backend() != "gloo":
            group = distributed.new_group(backend="gloo")
        return cls(distributed.get_rank(), size, group)

    @property
    def is_root(self) -> bool:
        """Whether this rank reads and writes files, reports progress and measures latency."""
        return self.rank == _ROOT

    def owns(self, number: int) -> bool:
        """Whether this rank computes the unit with this number."""
        return number % self.size == self.rank

    def exchange(self, own: Iterator[tuple[str, T]]) -> Iterator[tuple[str, T]]:
        """Yield the named results of all ranks, as they are computed; `own` are of this rank.

        Every rank yields the same results in the same order. If a rank fails, all raise an error.
        """
        return own if self.size == 1 else self._exchange(own)

    def _exchange(self, own: Iterator[tuple[str, T]]) -> Iterator[tuple[str, T]]:
        while any(found := self._gather(lambda: next(own, None))):
            yield from (one for one in found if one is not None)

    def from_root(self, compute: Callable[[], T]) -> T:
        """Return the result of `compute` on the first rank."""
        if self.size == 1:
            return compute()
        return self._gather(compute if self.is_root else lambda: None, lambda found: found[_ROOT])

    def sum(self, own: Sequence[Any]) -> list[Any]:
        """Return the sums over all ranks, in the order of the ranks; None if all have None."""
        return list(own) if self.size == 1 else self._gather(lambda: own, _add)

    def check_equal(self, identity: Mapping[str, str]) -> None:
        """Raise a DistributedError that names the rank and the difference if `identity` differ."""
        if self.size == 1:
            return
        found = self._gather(lambda: dict(identity))
        for rank, others in enumerate(found):
            names = [name for name in found[_ROOT] if others.get(name) != found[_ROOT][name]]
            if names:
                raise DistributedError(
                    f"rank {rank} has other {' and other '.join(names)} than rank {_ROOT}: start "
                    "all ranks with the same network, images, options and packages"
                )

    def _gather(
        self, compute: Callable[[], Any], combine: Callable[[list[Any]], Any] = list
    ) -> Any:
        """Return the results of `compute` on all ranks, combined by the first one."""
        error: Exception | None = None
        try:
            own = compute()
        except Exception as caught:
            error, own = caught, _Failure(_describe(self.rank, caught))
        if self.is_root:
            found = [own, *(self._receive(rank) for rank in range(1, self.size))]
            failures = [one for one in found if isinstance(one, _Failure)]
            reply = failures[0] if failures else combine(found)
            for rank in range(1, self.size):
                self._send(reply, rank)
        else:
            self._send(own, _ROOT)
            reply = self._receive(_ROOT)
        if error is not None:
            raise error
        if isinstance(reply, _Failure):
            raise DistributedError(reply.message)
        return reply

    def _send(self, value: Any, rank: int) -> None:
        content = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        try:
            distributed.send(torch.tensor([len(content)]), rank, group=self.group)
            distributed.send(content, rank, group=self.group)
            self.traffic.sent += len(content)
        except RuntimeError:
            if not self.is_root:  # the first rank names the rank that ended
                raise DistributedError(_ended(rank)) from None

    def _receive(self, rank: int) -> Any:
        size = torch.zeros(1, dtype=torch.int64)
        try:
            distributed.recv(size, rank, group=self.group)
            content = torch.empty(int(size), dtype=torch.uint8)
            distributed.recv(content, rank, group=self.group)
        except RuntimeError:
            failure = _Failure(_ended(rank))
            if self.is_root:
                return failure
            raise DistributedError(failure.message) from None
        return pickle.loads(content.numpy().tobytes())


def _add(found: Sequence[Sequence[Any]]) -> list[Any]:
    present = ([one for one in parts if one is not None] for parts in zip(*found, strict=True))
    return [reduce(operator.add, parts) if parts else None for parts in present]


def _describe(rank: int, error: Exception) -> str:
    if isinstance(error, EntrimError):
        return f"rank {rank} failed: {error}"
    reason = (str(error).splitlines() or [""])[0]
    return f"rank {rank} failed ({type(error).__name__}: {reason}): see its output"


def _ended(rank: int) -> str:
    return (
        f"rank {rank} ended, or did not answer in time: see its output, and start all ranks again; "
        "with a checkpoint folder they continue after the finished steps"
    )


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
