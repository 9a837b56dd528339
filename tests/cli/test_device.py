"""`--device`: the network computes there; other devices are refused with the remedy."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from entrim.report.report_data import read
from tests import simulated_device
from tests.cli.conftest import SOURCES, Command, assert_refused

COMMANDS = """
import sys
from tests import simulated_device
from entrim.cli.main import main

simulated_device.enable()
net = ("nets.py:fixed", "--device", "simulated")
code = main(["inspect", *net, "--shape", "1,8,8"])
images = ("--images", "x.npy", "--labels", "classes.npy")
sys.exit(code + main(["sparsify", *net, *images, "--width", "0.5", "--out", "there"]))
"""


@pytest.mark.skipif(
    not simulated_device.IS_SUPPORTED, reason="this PyTorch has no backends in Python"
)
def test_commands_run_on_a_device(command: Command, workshop: Path) -> None:
    np.save(workshop / "classes.npy", np.arange(60) % 4)
    words = ("--images", "x.npy", "--width", "0.5", "--labels", "classes.npy")
    here = command("sparsify", "nets.py:fixed", *words, "--out", "here")
    assert here.code == 0, here.err
    there = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        capture_output=True,
        text=True,
        cwd=workshop,
        env={**os.environ, "PYTHONPATH": SOURCES},
    )
    assert there.returncode == 0, there.stderr
    assert "accuracy, %" in there.stdout
    one, other = (read(workshop / name).record for name in ("here", "there"))
    assert [group.kept for group in one.groups] == [group.kept for group in other.groups]
    assert one.score is not None
    assert one.score == other.score


@pytest.mark.parametrize("device", ["cuda", "tpu", "meta", "cuda:99"])
def test_unavailable_devices_are_refused(command: Command, device: str) -> None:
    words = ("--images", "x.npy", "--params", "50%", "--out", "nowhere", "--device", device)
    done = command("sparsify", "nets.py:small", *words)
    assert_refused(done, f"--device {device} cannot be used", "such as cpu")
