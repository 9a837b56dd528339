"""One process against two processes of `torch.distributed`, and a model of many.

`python -m experiments bench distributed` measures what is missing in its ledger and writes the
tables; with names of networks only those, with "model" only ResNet-50 and the bandwidth. Every rank
is a process of its own. Needs ENTRIM_ASSETS.
"""

import cProfile
import json
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed

import entrim
from entrim.callbacks import Progress
from entrim.distributed import world as world_module
from entrim.distributed.world import World
from experiments.benchmarks.record import Ledger, check_line, has_weights, table, write
from experiments.benchmarks.scale import Case, load

NETWORKS = ("cifar10_resnet56", "cifar10_vgg16")
SETTINGS = ((1, 1), (2, 1), (1, 2))
"""Ranks, and threads of each."""
DIVIDED = ("collect", "sensitivity", "reconstruct")
"""The stages whose speed-up has a target."""
SPEED_UP, OVERHEAD = 1.6, 0.01
"""The targets."""
MESSAGE, MESSAGES = 2**26, 5
"""Bytes of a message with which the bandwidth is measured, and their number."""


@dataclass
class StageClock(Progress):
    """Times the stages in processor seconds, too."""

    cpu: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the block to the stage called `name`."""
        begin = time.process_time()
        with Progress.stage(self, name):
            yield
        self.cpu[name] = self.cpu.get(name, 0.0) + time.process_time() - begin


def join(rank: int, size: int, threads: int, store: str) -> None:
    """Join the process group of a measurement."""
    torch.set_num_threads(threads)
    if size > 1:
        init = f"file://{store}"
        distributed.init_process_group("gloo", init_method=init, rank=rank, world_size=size)


def measure_rank(network: str, images: int) -> dict[str, Any]:
    """Return the costs of this rank in a run that halves the MACs of a network."""
    model, x, _ = load(Case(network, images))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with entrim.Pruner(model, x, callbacks=()) as pruner:
            clock = pruner.progress = StageClock()
            begin, cpu = time.perf_counter(), time.process_time()
            result = pruner.prune(entrim.Budget(macs=0.5))
            return {
                "wall": round(time.perf_counter() - begin, 2),
                "cpu": round(time.process_time() - cpu, 2),
                "stages": {k: round(v, 2) for k, v in result.record.seconds.items()},
                "cpu stages": {k: round(v, 2) for k, v in clock.cpu.items()},
                "sent": pruner.world.traffic.sent,
                "kept": sum(map(sum, result.plan.kept.values())),
            }


def measure_overhead(network: str) -> dict[str, Any]:
    """Return the share of `entrim.distributed` in the time of a run in a single process."""
    profile = cProfile.Profile()
    with profile:
        found = measure_rank(network, 500)
    stats = pstats.Stats(profile).stats  # pyright: ignore[reportAttributeAccessIssue]
    own = [s[2] for (file, *_), s in stats.items() if file == world_module.__file__]
    return {"seconds": round(sum(own), 5), "run": found["wall"], "share": sum(own) / found["wall"]}


def measure_bandwidth() -> dict[str, Any]:
    """Return the bytes per second of an exchange between two processes of one machine."""
    world, value, seconds = World.current(), torch.zeros(MESSAGE // 8), list[float]()
    for _ in range(MESSAGES):
        begin = time.perf_counter()
        world.sum([value])
        seconds.append(time.perf_counter() - begin)
    return {"bytes per second": 2 * MESSAGE // 2 / statistics.median(seconds)}


WORKS = {"overhead": measure_overhead, "bandwidth": measure_bandwidth}


def run_ranks(size: int, threads: int, *work: object) -> list[dict[str, Any]]:
    """Return what each of several processes prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory() as folder:
        given = (size, threads, Path(folder, "store"), *work)
        running = [
            subprocess.Popen(
                [sys.executable, "-m", __name__, *map(str, (rank, *given))],
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for rank in range(size)
        ]
        printed = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise RuntimeError(f"a process of {size} with the work {work} failed: see its output")
    return [json.loads(text.splitlines()[-1]) for text in printed]


def measure(size: int, threads: int, network: str, images: int) -> dict[str, Any]:
    """Return the costs of a run, of all its ranks, and the load of the machine before it."""
    load_before = round(os.getloadavg()[0], 2)
    return {"load": load_before, "ranks": run_ranks(size, threads, "prune", network, images)}


def total_of(point: Mapping[str, Any], stages: Sequence[str] = DIVIDED) -> tuple[float, float]:
    """Return the seconds of some stages: of the clock, and of the processor of the busiest rank.

    Ranks wait for each other, so the second is what a run takes on idle cores, at least.
    """
    wall = max(sum(rank["stages"].get(s, 0.0) for s in stages) for rank in point["ranks"])
    cpu = sum(max(rank["cpu stages"].get(s, 0.0) for rank in point["ranks"]) for s in stages)
    return wall, cpu


if __name__ == "__main__":
    rank, size, threads, store, kind, *given = sys.argv[1:]
    join(int(rank), int(size), int(threads), store)
    if kind == "prune":
        print(json.dumps(measure_rank(given[0], int(given[1]))))
    else:
        print(json.dumps(WORKS[kind](*given)))
    if int(size) > 1:
        distributed.barrier()
