"""Runs that are interrupted, killed, or stopped by a full disk."""

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from entrim.report.report_data import read
from entrim.storage.model_folder import read_manifest
from tests.cli.conftest import SOURCES, Command, assert_refused

WORDS = ("sparsify", "nets.py:fixed", "--images", "x.npy", "--params", "50%")
OTHER = (*WORDS[:-1], "60%")
FULL = [("nets.py:fixed", 400), ("nets.py:fixed", 2_000), ("nets.py:heavy", 100_000)]
"""Networks and limits of the file size: for the checkpoints, the report and the network."""


assert_stopped = partial(assert_refused, before=r"(?!entrim: )")


def contents(place: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in place.iterdir() if entry.is_file()}


def names(place: Path) -> list[str]:
    return sorted(entry.name for entry in place.iterdir())


@pytest.fixture(scope="module")
def finished(command: Command, workshop: Path) -> Path:
    """Return the folder of a run that was not interrupted."""
    done = command(*WORDS, "--out", "finished")
    assert done.code == 0, done.err
    return workshop / "finished"


def assert_same(place: Path, finished: Path) -> None:
    """Check that both folders contain the same network, and nothing else is left."""
    mine, its = read_manifest(place), read_manifest(finished)
    assert mine["plan"] == its["plan"]
    assert mine["weights"] == its["weights"]
    assert read(place).record.groups == read(finished).record.groups
    assert names(place) == names(finished)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_resumes_with_the_same_command(
    command: Command, workshop: Path, finished: Path, number: int
) -> None:
    name = f"stopped-{number}"
    assert_stopped(
        command(*WORDS, "--out", name, stop=(number, 4)),
        f"interrupted: finished steps are kept in {name}, and the same command continues",
    )
    assert names(workshop / name) == [".unfinished"]
    done = command(*WORDS, "--out", name)
    assert done.code == 0, done.err
    assert "resume: 2 of 2" in done.err
    assert "restored" in done.err
    assert_same(workshop / name, finished)


def test_early_interruption_leaves_no_folder(command: Command, workshop: Path) -> None:
    done = command(*WORDS, "--out", "early", stop=(signal.SIGINT, 2))
    assert_stopped(done, "interrupted: nothing was finished yet, and saved files are intact")
    assert not (workshop / "early").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interruption_of_the_import_is_one_sentence(tmp_path: Path, number: int) -> None:
    (tmp_path / "torch.py").write_text("import time\nprint('slow', flush=True)\ntime.sleep(60)\n")
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from entrim.__main__ import main; sys.exit(main())"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCES}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "slow\n"
        process.send_signal(number)
        assert process.communicate(timeout=30) == (
            "",
            "entrim: interrupted before any work was started\n",
        )
        assert process.returncode == 1


def test_killed_run_ends_with_the_same_network(
    command: Command, workshop: Path, finished: Path
) -> None:
    codes, saved = [], []
    for count in range(2, 20):
        codes.append(command(*WORDS, "--out", "killed", stop=(signal.SIGKILL, count)).code)
        saved.append((workshop / "killed" / "entrim.json").exists())
        if codes[-1] != -signal.SIGKILL:
            break
    assert codes[-1] == 0
    assert len(codes) >= 6
    assert saved.count(True) > 1  # also killed between the network and its report
    assert_same(workshop / "killed", finished)


def test_unfinished_run_with_other_options_is_kept_without_force(
    command: Command, workshop: Path
) -> None:
    command(*WORDS, "--ridge", "1e-3", "--out", "shared", stop=(signal.SIGTERM, 4))
    checkpoints = workshop / "shared" / ".unfinished"
    before = contents(checkpoints)
    assert_stopped(
        command(*WORDS, "--out", "shared"), "unfinished run with other files or options", "--force"
    )
    assert contents(checkpoints) == before
    done = command(*WORDS, "--out", "shared", "--force")
    assert done.code == 0, done.err
    assert "resume" not in done.err
    assert not checkpoints.exists()


def test_another_target_reuses_an_unfinished_run(
    command: Command, workshop: Path, finished: Path
) -> None:
    command(*OTHER, "--out", "reused", stop=(signal.SIGTERM, 4))
    done = command(*WORDS, "--out", "reused")
    assert done.code == 0, done.err
    assert "resume: 2 of 2" in done.err
    assert_same(workshop / "reused", finished)


def test_interrupted_saving_is_completed_by_the_same_command_only(
    command: Command, workshop: Path
) -> None:
    place = workshop / "half-saved"
    for count in range(2, 20):
        command(*OTHER, "--out", "half-saved", stop=(signal.SIGKILL, count))
        if (place / "entrim.json").exists():
            break
    assert not (place / "report.html").exists()
    assert_stopped(command(*WORDS, "--out", "half-saved"), "contains another run")
    done = command(*OTHER, "--out", "half-saved")
    assert done.code == 0, done.err
    assert (place / "report.html").exists()


def test_unfinished_replacement_resumes_next_to_the_old_run(
    command: Command, workshop: Path
) -> None:
    assert command(*OTHER, "--out", "old").code == 0
    before = contents(workshop / "old")
    assert_stopped(
        command(*WORDS, "--out", "old", "--force", stop=(signal.SIGINT, 4)), "interrupted"
    )
    assert contents(workshop / "old") == before
    assert_stopped(command(*WORDS, "--out", "old"), "contains another run")
    done = command(*WORDS, "--out", "old", "--force")
    assert done.code == 0, done.err
    assert "resume: 2 of 2" in done.err
    assert contents(workshop / "old") != before


@pytest.mark.parametrize(("net", "limit"), FULL)
def test_run_continues_after_a_full_disk(
    command: Command, workshop: Path, finished: Path, net: str, limit: int
) -> None:
    words, place = (WORDS[0], net, *WORDS[2:]), workshop / f"full-{limit}"
    assert_stopped(
        command(*words, "--out", place.name, limit=limit),
        "cannot be written (",
        "File too large",
        "make room",
    )
    assert not place.exists() or names(place) == [".unfinished"]
    assert place.exists() == (limit > 400)
    done = command(*words, "--out", place.name)
    assert done.code == 0, done.err
    assert ("resume" in done.err) == (limit > 400)
    assert read_manifest(place)["plan"] == read_manifest(finished)["plan"]
    assert len(names(place)) == len(names(finished))


@pytest.mark.parametrize(("net", "limit"), FULL[1:])
def test_full_disk_keeps_the_old_run(
    command: Command, workshop: Path, net: str, limit: int
) -> None:
    place = workshop / f"older-{limit}"
    assert command(*OTHER, "--out", place).code == 0
    before = contents(place)
    words = (WORDS[0], net, *WORDS[2:], "--out", place, "--force")
    assert_stopped(command(*words, limit=limit), "File too large")
    assert contents(place) == before


@contextmanager
def read_only(place: Path) -> Iterator[None]:
    """Make a folder read-only; for root this needs more than permissions."""
    if os.geteuid():
        place.chmod(0o500)
    elif subprocess.run(["chattr", "+i", place], capture_output=True, check=False).returncode:
        pytest.skip("root may write everywhere, and this disk cannot keep it out (chattr +i)")
    try:
        yield
    finally:
        if os.geteuid():
            place.chmod(0o700)
        else:
            subprocess.run(["chattr", "-i", place], check=True)


def test_read_only_folder_is_refused_before_any_work(
    command: Command, workshop: Path, finished: Path
) -> None:
    (workshop / "barred").mkdir()
    with read_only(workshop / "barred"):
        done = command(*WORDS, "--out", "barred/run")
        assert_stopped(done, "barred/run cannot be written", "--out")
    before = contents(finished)
    with read_only(finished):
        done = command(*OTHER, "--out", "finished", "--force")
    assert_stopped(done, "finished cannot be written", "--out")
    assert "trace" not in done.err
    assert contents(finished) == before
    assert names(finished) == sorted(before)


def test_missing_temporary_folder_is_explained(
    workshop: Path,
) -> None:
    line = f"ulimit -f 0; {sys.executable} -m entrim inspect nets.py:small --shape 1,8,8"
    paths = {**os.environ, "PYTHONPATH": SOURCES}
    done = subprocess.run(["sh", "-c", line], capture_output=True, cwd=workshop, env=paths)
    assert done.returncode == 1
    assert done.stderr.splitlines()[1:] == [
        b"entrim: PyTorch needs a folder for temporary files, and none can be written: free space "
        b"on the disk, or set TMPDIR"
    ]


def test_folder_below_a_file_is_refused(command: Command) -> None:
    assert_stopped(command(*WORDS, "--out", "x.npy/run"), "x.npy/run cannot be written", "--out")


def test_terminal_shows_a_line_for_every_group_and_layer(command: Command, finished: Path) -> None:
    master, slave = pty.openpty()
    seen: list[bytes] = []

    def listen() -> None:
        while part := os.read(master, 4096):
            seen.append(part)
            if b"verified" in b"".join(seen[-2:]):
                return

    ear = threading.Thread(target=listen, daemon=True)
    ear.start()
    done = command(*WORDS, "--verbose", "--out", "shown", terminal=os.ttyname(slave))
    assert done.code == 0
    ear.join(30)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(seen).decode())
    lines = [line.split() for line in re.split("[\r\n]+", plain)]
    record = read(finished).record
    for group in record.groups:
        kept = [group.name, str(len(group.kept)), "of", f"{group.channels},", "divergence"]
        assert kept in [words[:5] for words in lines]
    for layer in record.layers:
        assert [layer.layer, "error", f"{layer.error:.1%}"] in [words[:3] for words in lines]
    bars = {words[0] for words in lines if any("━" in word for word in words)}
    assert bars == {"sparsify"}
    os.close(master)
    os.close(slave)


def test_pipes_get_no_control_characters(command: Command) -> None:
    done = command(*WORDS, "--out", "piped")
    assert done.code == 0
    assert not any(ord(c) < 32 and c != "\n" for c in done.err)
    assert "reconstruct: " in done.err
