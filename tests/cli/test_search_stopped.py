"""A search that is interrupted, killed or fails."""

import json
import signal
from pathlib import Path

import pytest

from entrim.callbacks import ProgressEvent
from entrim.cli import search as search_command
from entrim.cli.main import main
from entrim.display.bars import ProgressDisplay
from entrim.hpo.search import remove_unused
from entrim.storage import atomic
from tests.cli.conftest import Command

WORDS = ("search", "nets.py:small", "--weights", "w.pt", "--images", "x.npy")
RANGES = ("--eps-w", "1e-3,1e-1", "--eps-l2", "1e-4,1e-2")


def test_interrupted_search_continues(
    workshop: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Stopping(ProgressDisplay):
        def on_step(self, event: ProgressEvent) -> None:
            if event.stage == "search" and event.done == 2:
                raise KeyboardInterrupt

    monkeypatch.chdir(workshop)
    words = [*WORDS, "--metric", "nets.py:more", "--trials", "3", "--pick", "1", "--out", "stopped"]
    with monkeypatch.context() as patch:
        patch.setattr(search_command, "ProgressDisplay", Stopping)
        assert main(words) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == (
        "entrim: interrupted: finished trials are kept in stopped, and the same command continues "
        "from there"
    )
    assert main([*words, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["trials"] == 3
    first = next(line for line in err.splitlines() if line.startswith("search: "))
    assert first.startswith("search: 3 of 3")


def test_search_without_a_finished_trial_leaves_no_folder(command: Command, workshop: Path) -> None:
    ranges = (*RANGES, "--trials", "1", "--pick", "1", "--out", "vain")
    failed = command(*WORDS, "--metric", "nets.py:broken", *ranges)
    assert "correct --metric first" in failed.err
    assert not (workshop / "vain").exists()
    stopped = command(*WORDS, "--metric", "nets.py:terminate", *ranges)
    assert "interrupted: nothing was finished yet" in stopped.err
    assert not (workshop / "vain").exists()
    assert command(*WORDS, "--metric", "nets.py:kill", *ranges).code == -signal.SIGKILL
    assert [file.name[:7] for file in sorted((workshop / "vain").iterdir())] == [
        ".entrim",
        "search-",
    ]
    other = command(*WORDS, "--metric", "nets.py:more", *ranges)
    assert other.code == 0, other.err


def test_storage_in_use_is_not_removed(tmp_path: Path) -> None:
    file = tmp_path / "search-0.log"
    with atomic.shared_lock(file):
        assert not remove_unused(file)
    assert file.exists()
    assert remove_unused(file)
    assert not file.exists()
