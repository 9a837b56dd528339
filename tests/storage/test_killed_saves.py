"""A save that is killed or fails leaves the old network or the new one."""

import copy
import multiprocessing as mp
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import nn

from entrim import Plan, apply_plan, load, save
from entrim.errors import LoadError, SaveError

PLAN = Plan({"0": list(range(700))})
KILLS = 60
ACCESSES = {"open", "os.rename", "os.remove", "os.mkdir", "os.listdir", "os.scandir"}
"""The events of Python's audit hook that concern files."""


def big() -> nn.Module:
    return nn.Sequential(nn.Linear(500, 800), nn.ReLU(), nn.Linear(800, 3))


def small() -> nn.Module:
    return apply_plan(big(), PLAN, torch.randn(2, 500))


def save_filled(net: nn.Module, value: int, folder: Path) -> None:
    """Save a copy of `net` with every weight equal to `value`, so that a mixture is recognized.

    A copy, because processes that receive the same network share its memory.
    """
    net = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(value)
    save(net, PLAN, folder)


def loaded_value(folder: Path) -> int:
    values = {v for p in load(big(), folder).parameters() for v in p.unique().tolist()}
    assert len(values) == 1
    return int(values.pop())


def save_repeatedly(net: nn.Module, folder: Path, progress: Any) -> None:
    torch.set_num_threads(1)
    for value in range(progress[1] + 1, sys.maxsize):
        progress[0] = value
        save_filled(net, value, folder)
        progress[1] = value


def save_until_nth_access(net: nn.Module, value: int, folder: Path, count: int) -> None:
    accesses = iter(range(count))

    def audit(event: str, _: Any) -> None:
        if event in ACCESSES and next(accesses, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(1)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(value)
    sys.addaudithook(audit)
    save(net, PLAN, folder)
    os._exit(0)


def save_on_full_disk(net: nn.Module, folder: Path, connection: Any) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    report_refusal(net, folder, connection)


def save_without_permission(net: nn.Module, folder: Path, connection: Any) -> None:
    folder.chmod(0o555)
    if os.getuid() == 0:
        os.setuid(65534)
    report_refusal(net, folder, connection)


def report_refusal(net: nn.Module, folder: Path, connection: Any) -> None:
    try:
        save_filled(net, 2, folder)
    except SaveError as error:
        connection.send(str(error))
    else:
        connection.send("saved")


@pytest.fixture(scope="module")
def context() -> Any:
    """Return a context whose processes start with torch imported."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder that other users can read."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name) / "small"


@pytest.mark.slow
@pytest.mark.parametrize("first", [False, True], ids=["over a save", "first save"])
def test_a_kill_at_a_random_time_leaves_the_old_or_the_new_network(
    context: Any, folder: Path, first: bool
) -> None:
    net, draw, interrupted, place = small(), random.Random(0), 0, folder
    progress = context.Array("q", 2, lock=False)
    if not first:
        save_filled(net, 0, folder)
    for kill in range(KILLS // 4 if first else KILLS):
        if first:
            place = folder.with_name(f"small{kill}")
        progress[:] = [0, 0] if first else [progress[1], progress[1]]
        begun = progress[0]
        child = context.Process(target=save_repeatedly, args=(net, place, progress))
        child.start()
        while progress[0] == begun and child.is_alive():
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.03))
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        started, done = progress
        interrupted += started > done
        if done == 0 and first and not (place / "entrim.json").exists():
            with pytest.raises(LoadError, match=r"contains no complete network|does not exist"):
                load(big(), place)
        else:
            progress[1] = loaded_value(place)
            assert progress[1] in (done, started)
    assert interrupted > 0
    save_filled(net, -1, place)
    assert loaded_value(place) == -1
    assert len(list(place.iterdir())) == 4


@pytest.mark.parametrize("first", [False, True], ids=["over a save", "first save"])
def test_a_kill_before_each_file_access_leaves_the_old_or_the_new_network(
    context: Any, folder: Path, first: bool
) -> None:
    net, outcomes = small(), []
    for count in range(100):
        place = folder.with_name(f"small{count}") if first else folder
        if not first:
            save_filled(net, 0, place)
        arguments = (net, 1, place, count)
        child = context.Process(target=save_until_nth_access, args=arguments)
        child.start()
        child.join()
        new = (place / "entrim.json").exists() and loaded_value(place) == 1
        outcomes.append(new)
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
    assert outcomes == sorted(outcomes)
    assert outcomes.count(False) > 5
    assert outcomes.count(True) > 1


@pytest.mark.parametrize(
    ("function", "reason"),
    [(save_on_full_disk, "File too large"), (save_without_permission, "Permission denied")],
)
def test_a_save_that_fails_leaves_the_old_network(
    context: Any, folder: Path, function: Callable[..., None], reason: str
) -> None:
    net = small()
    save_filled(net, 1, folder)
    before = sorted(folder.iterdir())
    receiver, connection = context.Pipe(duplex=False)
    child = context.Process(target=function, args=(net, folder, connection))
    child.start()
    child.join()
    message = receiver.recv()
    assert reason in message
    assert "a network that was saved there before is intact" in message
    assert sorted(folder.iterdir()) == before
    assert loaded_value(folder) == 1


def test_processes_that_save_at_the_same_time_wait_for_each_other(
    context: Any, folder: Path
) -> None:
    net = small()
    children = [
        context.Process(target=save_filled, args=(net, value, folder)) for value in range(1, 7)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 6
    assert 1 <= loaded_value(folder) <= 6
    assert len(list(folder.iterdir())) == 4


def test_loading_while_another_process_saves_returns_one_of_its_networks(
    context: Any, folder: Path
) -> None:
    net, progress = small(), context.Array("q", 2, lock=False)
    save_filled(net, 0, folder)
    child = context.Process(target=save_repeatedly, args=(net, folder, progress))
    child.start()
    seen = [loaded_value(folder) for _ in range(60)]
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert seen == sorted(seen)
    assert progress[1] > 1
