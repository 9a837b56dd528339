"""Runs that are interrupted, killed, or refused by the disk, through the real command."""

import os
import pty
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
FULL = [("nets.py:fixed", 400), ("nets.py:fixed", 1_000), ("nets.py:heavy", 100_000)]
"""Bytes that a file may have: too few for the journal, for the report, for the network."""


assert_stopped = partial(assert_refused, before=r"(?!entrim: )")


def contents(place: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in place.iterdir() if entry.is_file()}


def names(place: Path) -> list[str]:
    return sorted(entry.name for entry in place.iterdir())


@pytest.fixture(scope="module")
def whole(command: Command, workshop: Path) -> Path:
    """Return the folder of a run that was not interrupted."""
    done = command(*WORDS, "--out", "whole")
    assert done.code == 0, done.err
    return workshop / "whole"


def assert_same(place: Path, whole: Path) -> None:
    """Check that both folders hold the same network, and nothing is left of the interruption."""
    mine, its = read_manifest(place), read_manifest(whole)
    assert mine["plan"] == its["plan"]
    assert mine["weights"] == its["weights"]
    assert read(place).record.groups == read(whole).record.groups
    assert names(place) == names(whole)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_in_one_sentence_that_the_same_command_resumes(
    command: Command, workshop: Path, whole: Path, number: int
) -> None:
    name = f"stopped-{number}"
    assert_stopped(
        command(*WORDS, "--out", name, stop=(number, 4)),
        f"interrupted: what is finished is kept in {name}, and the same command goes on",
    )
    assert names(workshop / name) == [".unfinished"]
    done = command(*WORDS, "--out", name)
    assert done.code == 0, done.err
    assert "resume: 2 of 2" in done.err
    assert "taken from the interrupted run" in done.err
    assert_same(workshop / name, whole)


def test_an_interruption_before_anything_is_finished_leaves_no_folder(
    command: Command, workshop: Path
) -> None:
    done = command(*WORDS, "--out", "early", stop=(signal.SIGINT, 2))
    assert_stopped(done, "interrupted: nothing was finished yet, and what was saved before is")
    assert not (workshop / "early").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_while_pytorch_is_imported_is_one_sentence(tmp_path: Path, number: int) -> None:
    (tmp_path / "torch.py").write_text("import time\nprint('slow', flush=True)\ntime.sleep(60)\n")
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from entrim_start import main; sys.exit(main())"
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
        assert process.communicate(timeout=30) == ("", "entrim: interrupted: nothing was begun\n")
        assert process.returncode == 1


def test_a_run_killed_at_every_stage_in_turn_ends_with_the_same_network(
    command: Command, workshop: Path, whole: Path
) -> None:
    codes, saved = [], []
    for count in range(2, 20):
        codes.append(command(*WORDS, "--out", "slain", stop=(signal.SIGKILL, count)).code)
        saved.append((workshop / "slain" / "entrim.json").exists())
        if codes[-1] != -signal.SIGKILL:
            break
    assert codes[-1] == 0
    assert len(codes) >= 6
    assert saved.count(True) > 1  # killed behind the network itself, before its report, too
    assert_same(workshop / "slain", whole)


def test_an_unfinished_run_of_another_command_is_kept_unless_forced(
    command: Command, workshop: Path
) -> None:
    command(*OTHER, "--out", "shared", stop=(signal.SIGTERM, 4))
    journal = workshop / "shared" / ".unfinished"
    before = contents(journal)
    assert_stopped(
        command(*WORDS, "--out", "shared"), "unfinished run of another command", "--force"
    )
    assert contents(journal) == before
    done = command(*WORDS, "--out", "shared", "--force")
    assert done.code == 0, done.err
    assert "resume" not in done.err
    assert not journal.exists()


def test_a_run_that_was_to_replace_another_resumes_beside_it(
    command: Command, workshop: Path
) -> None:
    assert command(*OTHER, "--out", "old").code == 0
    before = contents(workshop / "old")
    assert_stopped(
        command(*WORDS, "--out", "old", "--force", stop=(signal.SIGINT, 4)), "interrupted"
    )
    assert contents(workshop / "old") == before
    assert_stopped(command(*WORDS, "--out", "old"), "holds another run")
    done = command(*WORDS, "--out", "old", "--force")
    assert done.code == 0, done.err
    assert "resume: 2 of 2" in done.err
    assert contents(workshop / "old") != before


@pytest.mark.parametrize(("net", "limit"), FULL)
def test_a_full_disk_is_one_sentence_and_the_run_goes_on_once_there_is_room(
    command: Command, workshop: Path, whole: Path, net: str, limit: int
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
    assert read_manifest(place)["plan"] == read_manifest(whole)["plan"]
    assert len(names(place)) == len(names(whole))


@pytest.mark.parametrize(("net", "limit"), FULL[1:])
def test_a_full_disk_leaves_the_run_that_was_to_be_replaced(
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
    """Let nobody add to the folder; for root that takes more than permissions."""
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


def test_a_read_only_folder_is_refused_before_any_work(
    command: Command, workshop: Path, whole: Path
) -> None:
    (workshop / "barred").mkdir()
    with read_only(workshop / "barred"):
        done = command(*WORDS, "--out", "barred/run")
        assert_stopped(done, "barred/run cannot be written", "--out")
    before = contents(whole)
    with read_only(whole):
        done = command(*OTHER, "--out", "whole", "--force")
    assert_stopped(done, "whole cannot be written", "--out")
    assert "trace" not in done.err
    assert contents(whole) == before
    assert names(whole) == sorted(before)


def test_a_disk_without_room_for_temporary_files_is_not_blamed_on_the_network(
    workshop: Path,
) -> None:
    line = f"ulimit -f 0; {sys.executable} -m entrim inspect nets.py:small --shape 1,8,8"
    paths = {**os.environ, "PYTHONPATH": SOURCES}
    done = subprocess.run(["sh", "-c", line], capture_output=True, cwd=workshop, env=paths)
    assert done.returncode == 1
    assert done.stderr.splitlines()[1:] == [
        b"entrim: PyTorch needs a folder for temporary files, and none can be written: make room "
        b"on the disk, or name one in TMPDIR"
    ]


def test_a_folder_below_a_file_is_refused(command: Command) -> None:
    assert_stopped(command(*WORDS, "--out", "x.npy/run"), "x.npy/run cannot be written", "--out")


def test_a_terminal_keeps_a_line_for_every_group_and_layer_above_the_progress(
    command: Command, whole: Path
) -> None:
    master, slave = pty.openpty()
    seen: list[bytes] = []

    def listen() -> None:
        while part := os.read(master, 4096):
            seen.append(part)
            if b"proven" in b"".join(seen[-2:]):
                return

    ear = threading.Thread(target=listen, daemon=True)
    ear.start()
    done = command(*WORDS, "--out", "shown", terminal=os.ttyname(slave))
    assert done.code == 0
    ear.join(30)
    lines = b"".join(seen).decode().replace("\r\n", "\n").split("\n")
    stay = [line.rpartition("\x1b[K")[2].split() for line in lines]
    record = read(whole).record
    for group in record.groups:
        kept = [group.name, str(len(group.kept)), "of", f"{group.channels},", "damage"]
        assert kept in [words[:5] for words in stay]
    for layer in record.layers:
        assert [layer.layer, "error", f"{layer.error:.1%}"] in [words[:3] for words in stay]
    bars = [line for line in lines if "█" in line]
    assert all(line.startswith(("\r\x1b[K", "allocate", "rebuild")) for line in bars)
    os.close(master)
    os.close(slave)


def test_elsewhere_there_are_no_control_characters(command: Command) -> None:
    done = command(*WORDS, "--out", "piped")
    assert done.code == 0
    assert not any(ord(c) < 32 and c != "\n" for c in done.err)
    assert "rebuild: " in done.err
