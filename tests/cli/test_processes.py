"""`sparsify` under torchrun."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from entrim.cli.main import main
from tests.cli.conftest import SOURCES, Command

NET = ("nets.py:small", "--weights", "w.pt", "--images", "x.npy")


def test_two_processes_save_the_network_of_one(command: Command, workshop: Path) -> None:
    words = ("sparsify", *NET, "--width", "0.5", "--json")
    start = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    done = subprocess.run(
        [*start, "-m", "entrim", *words, "--out", "by-two"],
        cwd=workshop,
        env={**os.environ, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    alone = command(*words, "--out", "by-one")
    assert alone.code == 0, alone.err
    found = json.loads(done.stdout)  # one process prints
    assert found["kept"] == json.loads(alone.out)["kept"]
    manifests = [
        json.loads((workshop / f / "entrim.json").read_text()) for f in ("by-two", "by-one")
    ]
    assert manifests[0]["plan"] == manifests[1]["plan"]
    assert done.stderr.count("select: 1 of 1") == 1


def test_commands_of_one_process_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable, value in {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(variable, value)
    assert main(["report", "by-two"]) == 1
    shown = capsys.readouterr().err
    assert shown == "entrim: entrim report needs one process: start it without torchrun\n"
