"""Several processes: the result of one, refused differences, and bounded failures."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import entrim
from entrim.calibration.data import Images, read_images
from entrim.distributed.world import Traffic, World
from entrim.errors import BadImagesError, DistributedError
from entrim.reconstruction import sequential
from entrim.reconstruction.layer import LayerUpdate
from entrim.selection.base import GroupStatistics
from entrim.selection.elimination import EliminationSelector
from tests.pipeline.networks import images, residual

X = images(120, 3, 8, 8)
TARGETS = (entrim.Budget(macs=0.6), entrim.EntropicPenalty(eps_w=-3e-3, eps_l2=3e-3))
LIMIT = 240
"""Seconds within which all processes end."""
events: dict[str, Callable[[], None]] = {}
"""What happens in this process before a unit of work."""


ranked: list[str] = []
"""The groups that this process has ranked."""
shares: list[tuple[int, int]] = []
"""The batches of each refit that this process has executed, and their total."""


class Greedy(EliminationSelector):
    """Backward elimination with an event before it."""

    def rank(self, statistics: GroupStatistics) -> Tensor:
        events.get("rank", lambda: None)()
        ranked.append(statistics.group.name)
        return super().rank(statistics)


class CountingTask(sequential.LayerTask):
    """A refit that notes the share of this process."""

    def run(self, ridge: float | None, rounds: int) -> LayerUpdate:
        shares.append((len(set(self.batches) & set(self.own)), len(self.batches)))
        return super().run(ridge, rounds)


def distance(outputs: Tensor, reference: Tensor) -> Tensor:
    """Return the squared distance of the outputs, with an event before it."""
    events.get("measure", lambda: None)()
    return (outputs - reference).square().sum(1)


FEW = entrim.Calibration(batch_size=30, sensitivity_widths=(0.5,), sensitivity=distance)


def prune_all() -> list[Any]:
    """Return the kept channels, the weights and the record for every target."""
    found = []
    for target in TARGETS:
        selector = Greedy() if isinstance(target, entrim.Budget) else "auto"
        result = entrim.sparsify(
            residual(), X, target, selector=selector, calibration=FEW, callbacks=()
        )
        weights = list(result.model.state_dict().values())
        found.append((dict(result.plan.kept), weights, result.record.to_json()))
    return found


def fail() -> None:
    raise ZeroDivisionError("no such channel")


def shifted() -> nn.Module:
    """Return the network with other weights."""
    model = residual()
    with torch.no_grad():
        model.stem.weight.add_(1e-3)
    return model


def refused_differences(rank: int) -> list[str]:
    """Return the errors of runs in which the last rank differs."""
    odd = rank == 1
    runs: list[tuple[nn.Module, Tensor, entrim.Widths, dict[str, Any]]] = [
        (shifted() if odd else residual(), X, entrim.Widths(0.5), {}),
        (residual(), X[odd:], entrim.Widths(0.5), {}),
        (residual(), X, entrim.Widths(0.5), {"exclude": "conv1" if odd else ()}),
        (residual(), X, entrim.Widths(0.4 if odd else 0.5), {}),
    ]
    errors = []
    for model, x, target, options in runs:
        with pytest.raises(DistributedError) as caught:
            entrim.sparsify(model, x, target, callbacks=(), **options)
        errors.append(str(caught.value))
    return errors


class Numbers(Dataset[Tensor]):
    """Images with their numbers, and the numbers that this process has read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 50

    def __getitem__(self, number: int) -> Tensor:
        self.read.append(number)
        return torch.full((2,), float(number))


def read_numbers(images: Images, size: int = 50, **options: Any) -> list[int]:
    """Return the numbers of the images that this rank obtains together with the others."""
    data = read_images(images, None, batch_size=8, world=World.current(), **options)
    batch = data.batch(slice(0, size))
    assert isinstance(batch, Tensor)
    return batch[:, 0].int().tolist()


def read_together(rank: int) -> dict[str, Any]:
    """Return the images that this rank reads and obtains from different sources."""
    dataset, shuffled = Numbers(), Numbers()
    every = torch.arange(50.0)[:, None].expand(-1, 2).contiguous()
    torch.manual_seed(rank)
    found: dict[str, Any] = {
        "dataset": read_numbers(dataset),
        "loader": read_numbers(DataLoader(shuffled, batch_size=7, shuffle=True)),
        "own": [dataset.read, shuffled.read],
    }
    parts = every[:4].split(3), every[4:4], every[4:11].split(2)
    found["shards"] = read_numbers(parts[rank], 11, sharded=True)
    with pytest.raises(BadImagesError, match="without it") as caught:
        read_numbers(DataLoader(dataset, sampler=DistributedSampler(dataset)))
    return found | {"sampler": str(caught.value)}


def failure_of_a_unit(rank: int) -> str:
    """Return the error of a run in which a unit of rank 1 fails."""
    if rank == 1:
        events["rank"] = fail
    expected = ZeroDivisionError if rank == 1 else DistributedError
    with pytest.raises(expected) as caught:
        entrim.sparsify(residual(), X, TARGETS[0], selector=Greedy(), callbacks=())
    events.clear()
    return str(caught.value)


def run_pair(rank: int, folder: Path) -> dict[str, Any]:
    sequential.LayerTask = CountingTask
    results = prune_all()
    return {
        "results": results,
        "ranked": list(ranked),
        "shares": list(shares),
        "differences": refused_differences(rank),
        "failure": failure_of_a_unit(rank),
    }


def run_three(rank: int, folder: Path) -> dict[str, Any]:
    """Prune; then rank 1 is killed while it measures a sensitivity."""
    found: dict[str, Any] = {"results": prune_all(), **read_together(rank)}
    torch.save(found, folder / f"{rank}.pt")  # rank 1 does not return
    if rank == 1:
        events["measure"] = lambda: os.kill(os.getpid(), signal.SIGKILL)
    begin = time.perf_counter()
    with pytest.raises(DistributedError) as caught:
        entrim.sparsify(
            residual(),
            X,
            TARGETS[0],
            selector=Greedy(),
            calibration=FEW,
            callbacks=(),
            checkpoint_dir=folder / "units",
        )
    return found | {"error": str(caught.value), "seconds": time.perf_counter() - begin}


def start(rank: int, size: int, folder: Path, run: Callable[[int, Path], dict[str, Any]]) -> None:
    """Join the process group, and write what `run` returned."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=LIMIT),
    )
    torch.save(run(rank, folder), folder / f"{rank}.pt")


def run_processes(
    size: int, folder: Path, run: Callable[[int, Path], dict[str, Any]]
) -> dict[int, dict[str, Any]]:
    """Return what each process wrote, by rank."""
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=start, args=(rank, size, folder, run)) for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LIMIT)
        assert process.exitcode is not None, "a process did not end"
    return {
        rank: torch.load(folder / f"{rank}.pt", weights_only=True)
        for rank in range(size)
        if (folder / f"{rank}.pt").exists()
    }


@pytest.fixture(scope="module")
def alone() -> list[Any]:
    return prune_all()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """Return what two processes found."""
    return run_processes(2, tmp_path_factory.mktemp("pair"), run_pair)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, dict[str, Any]], Path]:
    """Return what three processes found, of which one was killed, and their folder."""
    folder = tmp_path_factory.mktemp("three")
    return run_processes(3, folder, run_three), folder


def assert_same(found: list[Any], expected: list[Any]) -> None:
    """Check kept channels, and weights to a relative precision of 1e-6."""
    for (kept, weights, _), (known, others, _) in zip(found, expected, strict=True):
        assert kept == known
        assert kept
        for a, b in zip(weights, others, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6 * float(b.abs().max()))


def test_results_of_two_ranks_are_those_of_one(
    alone: list[Any], pair: dict[int, dict[str, Any]]
) -> None:
    for found in pair.values():
        assert_same(found["results"], alone)


@pytest.mark.slow
def test_results_of_three_ranks_are_those_of_one(
    alone: list[Any], three: tuple[dict[int, dict[str, Any]], Path]
) -> None:
    for rank in (0, 2):
        assert_same(three[0][rank]["results"], alone)


def test_groups_and_batches_are_divided_among_the_ranks(pair: dict[int, dict[str, Any]]) -> None:
    groups = [group.name for group in entrim.trace(residual(), X[:4]).groups]
    assert pair[0]["ranked"] + pair[1]["ranked"] == groups[::2] + groups[1::2]
    assert pair[0]["shares"]
    for (own, total), (others, _) in zip(pair[0]["shares"], pair[1]["shares"], strict=True):
        assert own == others == total / 2


def test_all_ranks_obtain_the_same_record(pair: dict[int, dict[str, Any]]) -> None:
    first, second = pair[0]["results"], pair[1]["results"]
    assert [one[2] for one in first] == [one[2] for one in second]


def test_rank_with_a_difference_is_refused_by_its_name(pair: dict[int, dict[str, Any]]) -> None:
    assert pair[0]["differences"] == pair[1]["differences"]
    names = ["network", "images", "settings", "target"]
    for name, message in zip(names, pair[0]["differences"], strict=True):
        assert message.startswith(f"rank 1 has other {name} than rank 0: ")


def test_failed_unit_ends_the_run_on_all_ranks(pair: dict[int, dict[str, Any]]) -> None:
    assert pair[1]["failure"] == "no such channel"
    assert pair[0]["failure"] == (
        "rank 1 failed (ZeroDivisionError: no such channel): see its output"
    )


@pytest.mark.slow
def test_killed_rank_ends_the_others_and_is_named(
    three: tuple[dict[int, dict[str, Any]], Path],
) -> None:
    found, _ = three
    assert "error" in found[0]
    assert "error" not in found[1]
    for rank in (0, 2):
        assert found[rank]["error"].startswith("rank 1 ended, or did not answer in time: ")
        assert found[rank]["seconds"] < LIMIT / 2


@pytest.mark.slow
def test_every_image_of_a_dataset_is_read_by_one_rank(
    three: tuple[dict[int, dict[str, Any]], Path],
) -> None:
    found = three[0]
    for rank in range(3):
        assert found[rank]["dataset"] == list(range(50))
        assert found[rank]["loader"] == found[0]["loader"] != list(range(50))
    for source in range(2):
        read = [number for rank in range(3) for number in found[rank]["own"][source]]
        assert sorted(read) == list(range(50))
        assert all(len(found[rank]["own"][source]) < 50 for rank in range(3))


@pytest.mark.slow
def test_uneven_and_empty_shards_are_used_by_all_ranks(
    three: tuple[dict[int, dict[str, Any]], Path],
) -> None:
    orders = [three[0][rank]["shards"] for rank in range(3)]
    assert orders[0] == orders[1] == orders[2]
    assert sorted(orders[0]) == list(range(11))


@pytest.mark.slow
def test_interrupted_run_continues_with_another_number_of_ranks(
    alone: list[Any], three: tuple[dict[int, dict[str, Any]], Path]
) -> None:
    class Restored(entrim.Callback):
        def __init__(self) -> None:
            self.stages: list[str] = []

        def on_step(self, event: entrim.ProgressEvent) -> None:
            if event.detail.endswith("restored"):
                self.stages.append(event.stage)

    units, seen = three[1] / "units", Restored()
    assert any(units.glob("*.safetensors"))
    result = entrim.sparsify(
        residual(),
        X,
        TARGETS[0],
        selector=Greedy(),
        calibration=FEW,
        callbacks=[seen],
        checkpoint_dir=units,
    )
    assert seen.stages.count("select") == len(result.record.groups)
    assert_same([(dict(result.plan.kept), list(result.model.state_dict().values()), "")], alone[:1])
    assert not units.exists()


def test_a_single_process_communicates_nothing() -> None:
    world = World.current()
    assert (world.rank, world.size) == (0, 1)
    assert list(world.exchange(iter([("a", 1), ("b", 0)]))) == [("a", 1), ("b", 0)]
    assert world.from_root(lambda: 3) == 3
    world.check_equal({"a": "b"})
    assert all(world.owns(number) for number in range(5))


def test_a_rank_that_the_others_wait_for_is_named() -> None:
    traffic = Traffic()
    traffic.add([1.0, 2.0, 1.5])
    assert traffic.notes(100) == []
    for _ in range(2):
        traffic.add([1.0, 10.0, 1.5])
    assert traffic.notes(100) == [
        "the other ranks waited 17 of 100 s for rank 1: its machine may be slower, or run other "
        "programs"
    ]
    assert traffic.notes(100) == []
