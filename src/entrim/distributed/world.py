"""The processes of a run: which of them computes a unit of work, and the exchange of results.

All ranks execute the same program. Independent units, such as the ranking of a group, are computed
by one rank each, which sends the result to the others. Sums over images are added in the order of
the ranks, so that they depend on the number of ranks only by rounding in double precision.
"""

import io
import logging
import operator
import os
import pickle
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, distributed

from entrim.errors import DistributedError, EntrimError

T = TypeVar("T")
_ROOT = 0
"""The rank that passes results on, reads and writes files, and measures latency."""
_LOG = logging.getLogger("entrim")
STRAGGLER_SECONDS, STRAGGLER_SHARE = 10, 0.1
"""All ranks wait longer than this for one of them, and for more than this share of the run: it is
reported."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """Sent instead of a result by a rank that cannot continue."""

    message: str


@dataclass(slots=True)
class Traffic:
    """What one rank has sent to others, and on the first rank, how long all waited for each."""

    sent: int = 0
    """Bytes."""
    waited: dict[int, float] = field(default_factory=dict)
    """Rank -> seconds for which all others waited for it while every rank computed its share."""
    since: float = field(default_factory=time.perf_counter)
    """Time of the last exchange."""

    def add(self, busy: Sequence[float]) -> None:
        """Add the seconds that each rank computed since the last exchange."""
        *_, second, longest = sorted(busy)
        slowest, waited = busy.index(longest), longest - second
        self.waited[slowest] = self.waited.get(slowest, 0.0) + waited
        if waited > STRAGGLER_SECONDS:
            _LOG.warning("the other ranks waited %.0f s for rank %d", waited, slowest)

    def notes(self, seconds: float) -> list[str]:
        """Return a sentence for every rank that made a run of this many seconds much longer.

        The next run starts from 0.
        """
        limit = max(STRAGGLER_SECONDS, STRAGGLER_SHARE * seconds)
        known, self.waited = sorted(self.waited.items()), {}
        return [
            f"the other ranks waited {waited:.0f} of {seconds:.0f} s for rank {rank}: its machine "
            "may be slower, or run other programs"
            for rank, waited in known
            if waited > limit
        ]


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
        own = compute if self.is_root else lambda: None
        return self._gather(own, lambda found: found[_ROOT], is_shared=False)

    def gather(self, own: T) -> list[T]:
        """Return the values of all ranks."""
        return [own] if self.size == 1 else self._gather(lambda: own)

    def sum(self, own: Sequence[Any]) -> list[Any]:
        """Return the sums over all ranks, in the order of the ranks; None if all have None."""
        return list(own) if self.size == 1 else self._gather(lambda: own, _add)

    def sum_for(self, ranks: Collection[int], own: Sequence[Any]) -> list[Any] | None:
        """Return the sums over all ranks on some of the `ranks`, None on others."""
        return list(own) if self.size == 1 else self._gather(lambda: own, _add, ranks)

    def sum_on_root(self, own: Sequence[Any]) -> list[Any]:
        """Return the sums over all ranks on the first rank, and an empty list on the others."""
        return self.sum_for((_ROOT,), own) or []

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
        self,
        compute: Callable[[], Any],
        combine: Callable[[list[Any]], Any] = list,
        to: Collection[int] | None = None,
        *,
        is_shared: bool = True,
    ) -> Any:
        """Return the results of `compute` on all ranks, combined by the first one.

        `is_shared` states that all ranks compute a share, so that none should take longer.
        """
        error: Exception | None = None
        try:
            own = compute()
        except Exception as caught:
            error, own = caught, _Failure(_describe(self.rank, caught))
        busy = time.perf_counter() - self.traffic.since
        if self.is_root:
            parts = [(busy, own), *(self._receive(rank) for rank in range(1, self.size))]
            failures = [one for _, one in parts if isinstance(one, _Failure)]
            if is_shared and not failures:
                self.traffic.add([seconds for seconds, _ in parts])
            reply = failures[0] if failures else combine([one for _, one in parts])
            for rank in range(1, self.size):
                is_wanted = bool(failures) or to is None or rank in to
                self._send(reply if is_wanted else None, rank)
        else:
            self._send((busy, own), _ROOT)
            reply = self._receive(_ROOT)
        self.traffic.since = time.perf_counter()
        if error is not None:
            raise error
        if isinstance(reply, _Failure):
            raise DistributedError(reply.message)
        return reply if to is None or self.rank in to else None

    def _send(self, value: Any, rank: int) -> None:
        """Send a value: the size of its head, the head with the sizes of the arrays, the arrays."""
        arrays: list[pickle.PickleBuffer] = []
        stream = io.BytesIO()
        _Pickler(stream, pickle.HIGHEST_PROTOCOL, buffer_callback=arrays.append).dump(value)
        parts = [torch.frombuffer(array.raw(), dtype=torch.uint8) for array in arrays]
        head = pickle.dumps(([len(part) for part in parts], stream.getvalue()))
        size = torch.tensor([len(head)])
        try:
            for part in (size, torch.frombuffer(bytearray(head), dtype=torch.uint8), *parts):
                distributed.send(part, rank, group=self.group)
                self.traffic.sent += part.nbytes
        except RuntimeError:
            if not self.is_root:  # the first rank names the rank that ended
                raise DistributedError(_ended(rank)) from None

    def _receive(self, rank: int) -> Any:
        def receive(size: int, dtype: torch.dtype = torch.uint8) -> np.ndarray:
            content = torch.empty(size, dtype=dtype)
            distributed.recv(content, rank, group=self.group)
            return content.numpy()

        try:
            size = int(receive(1, torch.int64)[0])
            sizes, content = pickle.loads(receive(size).tobytes())
            arrays = [receive(one) for one in sizes]
        except RuntimeError:
            failure = _Failure(_ended(rank))
            if self.is_root:
                return 0.0, failure
            raise DistributedError(failure.message) from None
        return pickle.loads(content, buffers=arrays)


class _Pickler(pickle.Pickler):
    """Pickles the values of tensors out of band, so that they are not copied."""

    def reducer_override(self, value: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if type(value) is Tensor and value.numel() and _as_array(value):
            return torch.from_numpy, (value.detach().numpy(),)
        return NotImplemented


def _as_array(value: Tensor) -> bool:
    """Whether the values of a tensor are those of an array in the same order."""
    known = value.dtype in (torch.float32, torch.float64, torch.int64, torch.bool, torch.uint8)
    return known and value.device.type == "cpu" and value.is_contiguous() and not value.is_conj()


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
