"""A search that is stopped, killed or fails: what is kept of it, and what is not."""

import json
import signal
from pathlib import Path

import pytest

from entrim.cli import search as searching
from entrim.cli.console import Progress
from entrim.cli.main import main
from entrim.hpo.search import forget
from entrim.records import ProgressEvent
from entrim.storage import atomic
from tests.cli.conftest import Command

WORDS = ("search", "nets.py:small", "--weights", "w.pt", "--images", "x.npy")
RANGES = ("--eps-w", "1e-3,1e-1", "--eps-l2", "1e-4,1e-2")


def test_an_interrupted_search_goes_on(
    workshop: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Stopping(Progress):
        def __call__(self, step: ProgressEvent) -> None:
            if step.stage == "search" and step.done == 2:
                raise KeyboardInterrupt

    monkeypatch.chdir(workshop)
    words = [*WORDS, "--metric", "nets.py:more", "--trials", "3", "--pick", "1", "--out", "stopped"]
    with monkeypatch.context() as patch:
        patch.setattr(searching, "Progress", Stopping)
        assert main(words) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == (
        "entrim: interrupted: the trials that ended are kept in stopped, and the same command goes "
        "on from there"
    )
    assert main([*words, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["trials"] == 3
    first = next(line for line in err.splitlines() if line.startswith("search: "))
    assert first.startswith("search: 3 of 3")


def test_a_search_without_a_finished_trial_leaves_no_folder_and_bars_no_other(
    command: Command, workshop: Path
) -> None:
    ranges = (*RANGES, "--trials", "1", "--pick", "1", "--out", "vain")
    failed = command(*WORDS, "--metric", "nets.py:broken", *ranges)
    assert "mend --metric first" in failed.err
    assert not (workshop / "vain").exists()
    stopped = command(*WORDS, "--metric", "nets.py:stopped", *ranges)
    assert "interrupted: nothing was finished yet" in stopped.err
    assert not (workshop / "vain").exists()
    assert command(*WORDS, "--metric", "nets.py:killed", *ranges).code == -signal.SIGKILL
    assert [file.name[:7] for file in sorted((workshop / "vain").iterdir())] == [
        ".entrim",
        "search-",
    ]
    other = command(*WORDS, "--metric", "nets.py:more", *ranges)
    assert other.code == 0, other.err


def test_a_search_that_another_process_is_at_work_on_is_not_forgotten(tmp_path: Path) -> None:
    file = tmp_path / "search-0.log"
    with atomic.shared_lock(file):
        assert not forget(file)
    assert file.exists()
    assert forget(file)
    assert not file.exists()
