"""One process against two processes of `torch.distributed`, and a model of many.

`python -m experiments bench distributed` measures what is missing in its ledger and writes the
tables; with names of networks only those, with "model" only ResNet-50 and the bandwidth. Every rank
is a process of its own. Needs ENTRIM_ASSETS.
"""

import cProfile
import hashlib
import json
import math
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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import distributed

import entrim
from entrim.callbacks import Progress
from entrim.distributed import world as world_module
from entrim.distributed.world import World
from entrim.planning.workload import DOUBLE, RIDGE_SOLVES
from experiments.benchmarks.record import Ledger, check_line, has_weights, table, write
from experiments.benchmarks.scale import Case, load

NETWORKS, SMALL = ("cifar10_resnet56", "cifar10_vgg16"), "cifar10_resnet20"
SETTINGS = ((1, 1), (2, 1), (1, 2))
"""Ranks, and threads of each."""
DIVIDED = ("collect", "sensitivity", "reconstruct")
"""The stages whose speed-up has a target."""
SPEED_UP, OVERHEAD = 1.6, 0.01
"""The targets."""
IMAGES, CLOCKS = 500, ("stages", "cpu stages")
LARGE, FEW, MANY, RANKS = "imagenet_resnet50", 100, 100_000, (1, 2, 4, 8, 16, 32, 64)
"""The network of the model, the images on which its speed is measured, and those of the model."""
FITTED = "of which 450 in 9 batches are fitted on: two ranks execute 5 and 4"
LOAD = (
    "The load before each run is stated. The runs of the networks had the cores nearly to "
    "themselves; those of the model and of the overhead shared them with other programs."
)
NETWORK, RELAXATION = 1.25e9, 3
"""Bytes per second of a network of 10 Gbit/s, and rounds of relaxation."""
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
        few_views = entrim.Reconstruction(mixtures=0)
        with entrim.Pruner(model, x, reconstruction=few_views, callbacks=()) as pruner:
            clock = pruner.progress = StageClock()
            begin, cpu = time.perf_counter(), time.process_time()
            result = pruner.prune(entrim.Budget(macs=0.5))
            return {
                "wall": round(time.perf_counter() - begin, 2),
                "cpu": round(time.process_time() - cpu, 2),
                "stages": {k: round(v, 2) for k, v in result.record.seconds.items()},
                "cpu stages": {k: round(v, 2) for k, v in clock.cpu.items()},
                "sent": pruner.world.traffic.sent,
                "kept": checksum(result.plan),
            }


def checksum(plan: entrim.Plan) -> str:
    """Return a checksum of the kept channels of every group."""
    kept = {name: list(channels) for name, channels in sorted(plan.kept.items())}
    return hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:16]


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
    world, seconds = World.current(), list[float]()
    value = torch.zeros(MESSAGE // 8, dtype=torch.float64)
    for _ in range(MESSAGES):
        begin = time.perf_counter()
        world.sum([value])
        seconds.append(time.perf_counter() - begin)
    return {"bytes per second": 2 * MESSAGE / statistics.median(seconds)}


WORKS = {"overhead": measure_overhead, "bandwidth": measure_bandwidth}


def run_ranks(size: int, threads: int, *work: object) -> list[dict[str, Any]]:
    """Return what each of several processes prints."""
    limits = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    environment = {**os.environ, **limits}
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


Points = Mapping[str, Mapping[str, Any]]


def seconds_of(point: Mapping[str, Any], stage: str) -> tuple[float, float]:
    """Return the seconds of a stage: of the clock, and of the processor of the busiest rank.

    The second is what the stage takes on idle cores if all ranks have to wait for this one.
    """
    found = [max(rank[name].get(stage, 0.0) for rank in point["ranks"]) for name in CLOCKS]
    return found[0], found[1]


def network_section(points: Points, network: str) -> str:
    """Return the seconds of every stage and the speed-ups of one network."""
    known = {s: points[key] for s in SETTINGS if (key := key_of(network, *s)) in points}
    stages = list(known[1, 1]["ranks"][0]["stages"])
    rows: list[list[object]] = []
    totals = {s: [0.0, 0.0] for s in known}
    for stage in stages:
        row: list[object] = [stage]
        for setting, point in known.items():
            found = seconds_of(point, stage)
            row += found
            if stage in DIVIDED:
                totals[setting] = [a + b for a, b in zip(totals[setting], found, strict=True)]
        rows.append(row)
    rows.append([" + ".join(DIVIDED), *(value for total in totals.values() for value in total)])
    names = [f"{size} x {threads}" for size, threads in known]
    head = [f"{name}, {clock}" for name in names for clock in ("wall", "cpu")]
    lines = [f"## {network}", table(["stage", *head], rows)]
    one = totals[1, 1]
    for setting, total in totals.items():
        if setting != (1, 1) and setting[0] > 1:
            wall, cpu = one[0] / total[0], one[1] / total[1]
            lines.append(
                f"{setting[0]} ranks: {cpu:.2f} times faster in processor seconds of the busiest "
                f"rank (efficiency {cpu / setting[0]:.0%}), {wall:.2f} times by the clock. Sent: "
                + ", ".join(f"{rank['sent'] / 1e6:.0f} MB" for rank in known[setting]["ranks"])
                + f". Kept channels: {_same(known[1, 1], known[setting])}."
            )
            lines.append(
                check_line(f"at least {SPEED_UP} times faster by the clock", wall >= SPEED_UP)
            )
    loads = ", ".join(f"{n} {p['load']}" for n, p in zip(names, known.values(), strict=True))
    lines.append(f"Load of the machine (processes that want a core) before each run: {loads}.")
    return "\n\n".join(lines)


def _same(one: Mapping[str, Any], two: Mapping[str, Any]) -> str:
    kept = {rank["kept"] for point in (one, two) for rank in point["ranks"]}
    return "the same" if len(kept) == 1 else "DIFFERENT"


@dataclass(frozen=True, slots=True)
class Sizes(Sequence[Any]):
    """The sizes of batches that do not exist, to count the operations of a run on them."""

    sizes: tuple[int, ...]

    def __getitem__(self, index: Any) -> Any:
        raise TypeError(f"batch {index} does not exist: batches of this type are only counted")

    def __len__(self) -> int:
        return len(self.sizes)


def count_operations(pruner: entrim.Pruner, images: int | None = None) -> dict[str, float]:
    """Return the operations of the stages, by default on the images of the pruner.

    The solutions of the linear systems, which every rank repeats, are counted separately, and so
    are the bytes that each rank sends to the first one.
    """
    workload, target = pruner.workload, entrim.Budget(macs=0.5)
    if images is not None:
        forward = pruner.statistics.forward
        size = forward.batch_sizes[0]
        batches = Sizes((size,) * (images // size))
        programs = [forward.programs[0]] * len(batches)
        task = replace(forward, programs=programs, batches=batches)
        statistics = replace(pruner.statistics, forward=task, collection=task)
        workload = replace(workload, statistics=statistics, holdout_images=0)
    targets = pruner.group_targets(target)
    groups = pruner.prunable_groups(targets)
    works = workload.stages(target, groups, targets)
    found = {stage: float(works[stage].total) for stage in DIVIDED}
    solved = sums = grams = 0.0
    for consumer in workload.statistics.consumers_of(*groups):
        count, outputs = consumer.geometry.groups, consumer.outputs
        n = consumer.columns * math.sqrt(0.5)  # channels that are kept at half of the MACs
        solved += DOUBLE * RIDGE_SOLVES * (count * n**3 / 3 + 2 * n * n * outputs)
        sums += 8 * count * n * n + 8 * (2 + RELAXATION) * n * outputs
        grams += 4 * count * consumer.columns**2
    return found | {"solved": solved, "bytes": sums + grams, "groups": len(groups)}


def measure_model() -> dict[str, Any]:
    """Return measured seconds of ResNet-50 on few images, and operations for few and many."""
    model, x, _ = load(Case(LARGE, FEW))
    few_views = entrim.Reconstruction(mixtures=0)
    with (
        warnings.catch_warnings(),
        entrim.Pruner(model, x, reconstruction=few_views, callbacks=()) as pruner,
    ):
        warnings.simplefilter("ignore")
        counted = {"few": count_operations(pruner), "many": count_operations(pruner, MANY)}
    return {**measure(1, 1, LARGE, FEW), **counted}


def model_section(point: Mapping[str, Any], bandwidth: float) -> str:
    """Return the modeled hours of a run for several numbers of ranks."""
    few, many, measured = point["few"], point["many"], point["ranks"][0]["cpu stages"]
    rates = {stage: few[stage] / measured[stage] for stage in DIVIDED}
    fixed = sum(v for stage, v in measured.items() if stage not in (*DIVIDED, "measure"))
    fixed += many["solved"] / rates["reconstruct"]
    divided = {stage: many[stage] / rates[stage] for stage in DIVIDED}
    divided["reconstruct"] -= many["solved"] / rates["reconstruct"]
    speed, images = min(bandwidth, NETWORK), 4.0 * 3 * 224 * 224 * MANY
    rows: list[tuple[object, ...]] = []
    one = sum(divided.values()) + fixed
    for ranks in RANKS:
        shares = dict.fromkeys(divided, 1 / ranks)
        shares["sensitivity"] = max(1 / ranks, 2 / many["groups"])
        parts = [value * shares[stage] for stage, value in divided.items()]
        sent, read = ((ranks - 1) * size / speed for size in (many["bytes"], images))
        total = sum(parts) + fixed + sent
        cells = (*parts, fixed, sent, total)
        gains = (f"{one / total / ranks:.0%}", read / 3600)
        rows.append((ranks, *(cell / 3600 for cell in cells), *gains))
    head = ("ranks", *divided, "repeated", "sums to the first rank", "total", "efficiency")
    return "\n\n".join(
        [
            f"## Model: ResNet-50, {MANY:,} images of 224 x 224, one thread per rank",
            "Not measured. Hours from the counted operations of every stage (`entrim.planning`), "
            f"at the rates measured on {FEW} images in one process: "
            + ", ".join(f"{stage} {measured[stage]:.0f} s" for stage in DIVIDED)
            + ". Work over images is divided evenly. The sensitivity is divided over "
            f"{many['groups']} groups, of which the first costs twice the mean. Linear systems, "
            "the trace and the ranking count as repeated on every rank. Each other rank sends "
            f"{many['bytes'] / 1e9:.1f} GB of sums to the first one, at the lower of the measured "
            f"bandwidth between two processes of this machine ({bandwidth / 1e9:.2f} GB/s) and of "
            f"a network ({NETWORK / 1e9:.2f} GB/s); nothing overlaps with computation. Not in the "
            f"total: the first rank sends the {images / 1e9:.0f} GB of images to all others if "
            "they are in a Dataset or in shards (last column); a memory-mapped array that every "
            "rank reads avoids it. Not modeled: uneven shares, the memory of each rank, and the "
            "random numbers that every rank draws for all images.",
            table([*head, "images to all ranks"], rows),
        ]
    )


def key_of(network: str, size: int, threads: int) -> str:
    """Return the key of a point in the ledger."""
    return f"{network}, {size} ranks with {threads} threads"


def main(parts: Sequence[str]) -> None:
    """Measure what is missing in the ledger and write the tables."""
    if not has_weights():
        return
    ledger = Ledger.open("distributed")
    for network in NETWORKS:
        for setting in SETTINGS if not parts or network in parts else ():
            ledger.point(
                key_of(network, *setting),
                lambda s=setting, n=network: measure(*s, n, IMAGES),
            )
    if not parts or "overhead" in parts:
        ledger.point("overhead", lambda: run_ranks(1, 1, "overhead", SMALL)[0])
    if not parts or "model" in parts:
        ledger.point("bandwidth", lambda: run_ranks(2, 1, "bandwidth")[1])
        ledger.point(LARGE, measure_model)
    command = "python -m experiments bench distributed"
    print(write("distributed", command, sections(ledger.points()), LOAD))


def sections(points: Points) -> list[str]:
    """Return the sections of the record."""
    found = [
        f"A pruner without mixtures of images, otherwise with all defaults, prunes to half of the "
        f"MACs on {IMAGES} images, {FITTED}. "
        "Every rank is a process of its own; `2 x 1` are two ranks with one thread each. Columns: "
        "seconds by the clock, and processor seconds of the busiest rank; those of two threads are "
        "the sum of both."
    ]
    found += [network_section(points, n) for n in NETWORKS if key_of(n, 1, 1) in points]
    if "overhead" in points:
        point = points["overhead"]
        line = check_line(
            f"`entrim.distributed` takes {point['seconds']} of {point['run']} s, "
            f"{point['share']:.4%}, in a profile of {SMALL} in a single process: below "
            f"{OVERHEAD:.0%}",
            point["share"] < OVERHEAD,
        )
        found.append(f"## Overhead of a single process\n\n{line}")
    if LARGE in points:
        found.append(model_section(points[LARGE], points["bandwidth"]["bytes per second"]))
    return found


if __name__ == "__main__":
    rank, size, threads, store, kind, *given = sys.argv[1:]
    join(int(rank), int(size), int(threads), store)
    if kind == "prune":
        print(json.dumps(measure_rank(given[0], int(given[1]))))
    else:
        print(json.dumps(WORKS[kind](*given)))
    if int(size) > 1:
        distributed.barrier()
