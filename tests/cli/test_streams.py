"""Where results, progress and errors go, whatever stdout and stderr are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import entrim
from tests.cli.conftest import SOURCES, Command, assert_refused, taught

CODE = "import sys; from entrim_start import main; sys.exit(main())"


def started(workshop: Path, line: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of the shell in which `entrim` stands for the script, in a process of its own."""
    told = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": SOURCES, **environment}
    words = ["sh", "-c", line.replace("entrim", f'{sys.executable} -c "{CODE}"', 1)]
    return subprocess.run(words, capture_output=True, cwd=workshop, env=told, timeout=120)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_letters_that_cannot_be_shown_are_replaced(
    workshop: Path, cut: Path, encoding: str
) -> None:
    done = started(workshop, "entrim compare cut --layers", PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "8 ? 2" in done.stdout.decode(encoding)  # an arrow elsewhere


def test_a_stdout_that_is_full_is_one_sentence(command: Command, cut: Path) -> None:
    for words in (("compare", "cut"), ("compare", "cut", "--json"), ("compare", "--help")):
        assert_refused(
            command(*words, full=True),
            "stdout does not take the result (No space left on device): send it elsewhere",
        )


def test_a_full_stdout_leaves_the_run_that_was_saved(command: Command, workshop: Path) -> None:
    words = ("sparsify", "nets.py:small", "--images", "x.npy", "--width", "0.5", "--out", "unsaid")
    done = command(*words, full=True)
    assert_refused(done, "what was saved is intact", before="")
    entrim.load(taught(), workshop / "unsaid")


def test_streams_that_are_closed_break_nothing(workshop: Path, cut: Path) -> None:
    done = started(workshop, "entrim compare cut >&-")
    assert done.returncode == 1
    assert done.stderr.startswith(b"entrim: stdout does not take the result (it is closed)")
    done = started(workshop, "entrim inspect nets.py:small --shape 1,8,8 --json 2>&-")
    assert (done.returncode, done.stdout[:1]) == (0, b"{")


def test_a_reader_that_has_seen_enough_is_left_in_peace(workshop: Path, cut: Path) -> None:
    done = started(workshop, "{ entrim compare cut; echo $? >&2; } | true")
    assert done.stderr in (b"1\n", b"0\n")  # 0 where `true` took longer than the command


def test_the_version_is_told_without_pytorch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('imported')")
    paths = f"{tmp_path}{os.pathsep}{SOURCES}"
    done = started(tmp_path, "entrim --version", PYTHONPATH=paths)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == f"entrim {entrim.__version__}\n"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("inspect", "nets.py:quits", "--shape", "1,8,8"), "reading nets.py:quits"),
        (
            ("sparsify", "nets.py:quits", "--images", "x.npy", "--out", "never"),
            "reading nets.py:quits and x.npy",
        ),
        (
            ("search", "nets.py:quits", "--images", "x.npy", "--out", "never"),
            "reading nets.py:quits and x.npy",
        ),
        (("distill", "cut", "--model", "nets.py:quits", "--out", "never"), "reading nets.py:quits"),
        (
            ("export", "cut", "--model", "nets.py:quits", "--onnx", "o.onnx"),
            "reading cut and x.npy",
        ),
    ],
)
def test_what_is_read_is_told_before_any_code_is_run(
    command: Command, cut: Path, words: tuple[str, ...], line: str
) -> None:
    done = command(*words)
    assert_refused(done, "nets.py:quits() raised SystemExit: 3", before="(images: |reading )")
    assert any(told.startswith(line) for told in done.err.splitlines())


def test_code_that_calls_exit_is_one_sentence(command: Command, workshop: Path) -> None:
    words = ("search", "nets.py:small", "--images", "x.npy", "--metric", "nets.py:quits")
    done = command(*words, "--out", "never")
    assert (done.code, done.out) == (1, "")
    assert "code that was run called sys.exit(3)" in done.err.splitlines()[-1]
    assert not (workshop / "never").exists()
    (workshop / "script.py").write_text("import sys\nsys.exit('usage: script.py FILE')\n")
    done = command("inspect", "script.py:net", "--shape", "1,8,8")
    assert_refused(done, "importing script.py raised SystemExit: usage: script.py FILE")
