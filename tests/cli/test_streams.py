"""Results, progress and errors with unusual stdout and stderr."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import entrim
from tests.cli.conftest import SOURCES, Command, assert_refused, trained_network

CODE = "import sys; from entrim.__main__ import main; sys.exit(main())"


def start(workshop: Path, line: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a shell command in which `entrim` is replaced by the entry point."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": SOURCES, **environment}
    words = ["sh", "-c", line.replace("entrim", f'{sys.executable} -c "{CODE}"', 1)]
    return subprocess.run(words, capture_output=True, cwd=workshop, env=variables, timeout=120)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_unencodable_characters_are_replaced(workshop: Path, pruned: Path, encoding: str) -> None:
    done = start(workshop, "entrim compare pruned --layers", PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "8 ? 2" in done.stdout.decode(encoding)  # an arrow elsewhere


def test_full_stdout_is_one_sentence(command: Command, pruned: Path) -> None:
    for words in (("compare", "pruned"), ("compare", "pruned", "--json"), ("compare", "--help")):
        assert_refused(
            command(*words, full=True),
            "the result cannot be written to stdout (No space left on device): redirect it",
        )


def test_full_stdout_keeps_the_saved_run(command: Command, workshop: Path) -> None:
    words = ("sparsify", "nets.py:small", "--images", "x.npy", "--width", "0.5", "--out", "unsaid")
    done = command(*words, full=True)
    assert_refused(done, "saved files are intact", before="")
    entrim.load(trained_network(), workshop / "unsaid")


def test_closed_streams_are_handled(workshop: Path, pruned: Path) -> None:
    done = start(workshop, "entrim compare pruned >&-")
    assert done.returncode == 1
    assert done.stderr.startswith(b"entrim: the result cannot be written to stdout (it is closed)")
    done = start(workshop, "entrim inspect nets.py:small --shape 1,8,8 --json 2>&-")
    assert (done.returncode, done.stdout[:1]) == (0, b"{")


def test_closed_pipe_is_silent(workshop: Path, pruned: Path) -> None:
    done = start(workshop, "{ entrim compare pruned; echo $? >&2; } | true")
    assert done.stderr in (b"1\n", b"0\n")  # 0 where `true` took longer than the command


def test_version_needs_no_pytorch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('imported')")
    paths = f"{tmp_path}{os.pathsep}{SOURCES}"
    done = start(tmp_path, "entrim --version", PYTHONPATH=paths)
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
        (
            ("distill", "pruned", "--model", "nets.py:quits", "--out", "never"),
            "reading nets.py:quits",
        ),
        (
            ("export", "pruned", "--model", "nets.py:quits", "--onnx", "o.onnx"),
            "reading pruned and x.npy",
        ),
    ],
)
def test_inputs_are_named_before_any_code_is_executed(
    command: Command, pruned: Path, words: tuple[str, ...], line: str
) -> None:
    done = command(*words)
    assert_refused(done, "nets.py:quits() raised SystemExit: 3", before="(images: |reading )")
    assert any(found.startswith(line) for found in done.err.splitlines())


def test_user_code_that_exits_is_one_sentence(command: Command, workshop: Path) -> None:
    words = ("search", "nets.py:small", "--images", "x.npy", "--metric", "nets.py:quits")
    done = command(*words, "--out", "never")
    assert (done.code, done.out) == (1, "")
    assert "user code called sys.exit(3)" in done.err.splitlines()[-1]
    assert not (workshop / "never").exists()
    (workshop / "script.py").write_text("import sys\nsys.exit('usage: script.py FILE')\n")
    done = command("inspect", "script.py:net", "--shape", "1,8,8")
    assert_refused(done, "importing script.py raised SystemExit: usage: script.py FILE")
