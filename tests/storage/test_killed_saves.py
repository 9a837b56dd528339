"""Saves that are killed, or that the disk refuses, leave the old network or the new one."""

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
TOUCHES = {"open", "os.rename", "os.remove", "os.mkdir", "os.listdir", "os.scandir"}
"""What Python tells an audit hook about files."""


def big() -> nn.Module:
    return nn.Sequential(nn.Linear(500, 800), nn.ReLU(), nn.Linear(800, 3))


def small() -> nn.Module:
    return apply_plan(big(), PLAN, torch.randn(2, 500))


def save_filled(net: nn.Module, value: int, folder: Path) -> None:
    """Save `net` with every weight equal to `value`, so that a mixture would show.

    A copy of it: processes that are handed one network share its memory, and would mix it there.
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


def save_for_ever(net: nn.Module, folder: Path, progress: Any) -> None:
    torch.set_num_threads(1)
    for value in range(progress[1] + 1, sys.maxsize):
        progress[0] = value
        save_filled(net, value, folder)
        progress[1] = value


def save_until_the_nth_touch(net: nn.Module, value: int, folder: Path, count: int) -> None:
    touches = iter(range(count))

    def audit(event: str, _: Any) -> None:
        if event in TOUCHES and next(touches, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(1)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(value)
    sys.addaudithook(audit)
    save(net, PLAN, folder)
    os._exit(0)


def save_on_a_full_disk(net: nn.Module, folder: Path, said: Any) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    report_refusal(net, folder, said)


def save_without_permission(net: nn.Module, folder: Path, said: Any) -> None:
    folder.chmod(0o555)
    if os.getuid() == 0:
        os.setuid(65534)
    report_refusal(net, folder, said)


def report_refusal(net: nn.Module, folder: Path, said: Any) -> None:
    try:
        save_filled(net, 2, folder)
    except SaveError as error:
        said.send(str(error))
    else:
        said.send("saved")


@pytest.fixture(scope="module")
def context() -> Any:
    """Processes that start with torch imported, forked from a server that never computed."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that another user may look into."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name) / "small"


@pytest.mark.parametrize("first", [False, True], ids=["over a save", "first save"])
def test_a_kill_at_a_random_moment_leaves_the_old_or_the_new(
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
        child = context.Process(target=save_for_ever, args=(net, place, progress))
        child.start()
        while progress[0] == begun and child.is_alive():
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.03))
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        started, done = progress
        interrupted += started > done
        if done == 0 and first and not (place / "entrim.json").exists():
            with pytest.raises(LoadError, match=r"holds no complete save|is not there"):
                load(big(), place)
        else:
            progress[1] = loaded_value(place)
            assert progress[1] in (done, started)
    assert interrupted > 0
    save_filled(net, -1, place)
    assert loaded_value(place) == -1
    assert len(list(place.iterdir())) == 3


@pytest.mark.parametrize("first", [False, True], ids=["over a save", "first save"])
def test_a_kill_before_each_touch_of_the_disk_leaves_the_old_or_the_new(
    context: Any, folder: Path, first: bool
) -> None:
    net, outcomes = small(), []
    for count in range(100):
        place = folder.with_name(f"small{count}") if first else folder
        if not first:
            save_filled(net, 0, place)
        arguments = (net, 1, place, count)
        child = context.Process(target=save_until_the_nth_touch, args=arguments)
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
    ("attempt", "reason"),
    [(save_on_a_full_disk, "File too large"), (save_without_permission, "Permission denied")],
)
def test_a_save_that_the_disk_refuses_leaves_the_old_one(
    context: Any, folder: Path, attempt: Callable[..., None], reason: str
) -> None:
    net = small()
    save_filled(net, 1, folder)
    before = sorted(folder.iterdir())
    hear, said = context.Pipe(duplex=False)
    child = context.Process(target=attempt, args=(net, folder, said))
    child.start()
    child.join()
    message = hear.recv()
    assert reason in message
    assert "a save that was there before is intact" in message
    assert sorted(folder.iterdir()) == before
    assert loaded_value(folder) == 1


def test_processes_that_save_at_the_same_time_take_turns(context: Any, folder: Path) -> None:
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
    assert len(list(folder.iterdir())) == 3


def test_loading_while_another_process_saves_gives_one_of_its_networks(
    context: Any, folder: Path
) -> None:
    net, progress = small(), context.Array("q", 2, lock=False)
    save_filled(net, 0, folder)
    child = context.Process(target=save_for_ever, args=(net, folder, progress))
    child.start()
    seen = [loaded_value(folder) for _ in range(60)]
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert seen == sorted(seen)
    assert progress[1] > 1
