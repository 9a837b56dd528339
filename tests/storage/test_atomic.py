"""Locks of files: exclusive, shared, released by killed processes."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from entrim.storage.atomic import exclusive_lock, shared_lock

HOLD = """
import sys, time
from pathlib import Path
from entrim.storage.atomic import exclusive_lock
with exclusive_lock(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(60)
"""


def test_second_exclusive_lock_is_refused(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with (
        exclusive_lock(lock),
        pytest.raises(BlockingIOError, match="locked by another process"),
    ):
        exclusive_lock(lock, wait=False).__enter__()
    with exclusive_lock(lock, wait=False):
        assert lock.exists()


def test_shared_locks_exclude_only_the_exclusive_lock(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with shared_lock(lock), shared_lock(lock), pytest.raises(BlockingIOError):
        exclusive_lock(lock, wait=False).__enter__()


def test_locks_do_not_change_the_file(tmp_path: Path) -> None:
    data = tmp_path / "search.log"
    data.write_bytes(b"trial 1")
    with exclusive_lock(data):
        assert data.read_bytes() == b"trial 1"
    with shared_lock(data):
        assert data.read_bytes() == b"trial 1"
    assert [entry.name for entry in tmp_path.iterdir()] == ["search.log"]


def test_lock_of_a_killed_process_is_released(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    words = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(BlockingIOError):
            exclusive_lock(lock, wait=False).__enter__()
        holder.send_signal(signal.SIGKILL)
        holder.wait(30)
    with exclusive_lock(lock, wait=False):
        assert lock.stat().st_size == 0


def test_unwritable_lock_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        exclusive_lock(tmp_path / "missing" / "lock").__enter__()
