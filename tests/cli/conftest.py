import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

ROOT = Path(__file__).parents[2]
SOURCES = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
"""The module path for processes that tests start in any folder."""
NETS = """
import os
import signal
import sys
import torch
from torch import nn

def small():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(32, 4),
    )

def fixed():
    torch.manual_seed(0)
    return small()

def heavy():
    net = fixed()
    net.register_buffer("ballast", torch.zeros(50_000))
    return net

def wide():
    return nn.Sequential(
        nn.Conv2d(1, 9, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(36, 4),
    )

def broken():
    raise RuntimeError("no such width")

def wrong():
    return 3

def more(model):
    return float(sum(p.numel() for p in model.parameters()))

def fewer(model):
    return -more(model)

def terminate(model):
    os.kill(os.getpid(), signal.SIGTERM)
    return 1.0

def kill(model):
    os.kill(os.getpid(), signal.SIGKILL)

def quits(model=None):
    sys.exit(3)

number = 3
"""


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str


Command = Callable[..., CommandResult]


def assert_refused(done: CommandResult, *parts: str, before: str = r"reading ") -> None:
    """Check exit code 1, no result, and a last sentence with `parts` after lines like `before`."""
    assert (done.code, done.out) == (1, "")
    *lines, last = done.err.splitlines()
    assert last.startswith("entrim: ")
    assert all(re.match(before, line) for line in lines), done.err
    for part in parts:
        assert part in last


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a network and images."""
    place = tmp_path_factory.mktemp("workshop")
    (place / "nets.py").write_text(NETS)
    random = np.random.default_rng(0)
    np.save(place / "x.npy", random.normal(size=(60, 1, 8, 8)).astype(np.float32))
    np.save(place / "color.npy", random.normal(size=(60, 3, 8, 8)).astype(np.float32))
    torch.save(trained_network().state_dict(), place / "w.pt")
    return place


def trained_network() -> nn.Module:
    """Return the network of the workshop with the weights in w.pt."""
    scope: dict[str, Any] = {}
    exec(NETS, scope)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return scope["small"]().eval()


@pytest.fixture(scope="session")
def command(workshop: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """Return a function that runs `entrim` in the workshop."""
    if not hasattr(os, "fork"):
        pytest.skip("the driver of these tests forks, and this system cannot")
    streams = tmp_path_factory.mktemp("streams")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cli.driver"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )

    def run(
        *words: object,
        cwd: Path = workshop,
        stop: tuple[int, int] | None = None,
        limit: int | None = None,
        terminal: str | None = None,
        full: bool = False,
    ) -> CommandResult:
        """Run a command, up to a signal before its n-th rename or with a limit of the file size.

        With `full`, stdout is a full device.
        """
        out, err = streams / "out", streams / "err"
        for stream in (out, err):
            stream.write_text("")
        job = {
            "words": [str(word) for word in words],
            "cwd": str(cwd),
            "out": "/dev/full" if full else str(out),
            "err": terminal or str(err),
            "stop": stop,
            "limit": limit,
        }
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        return CommandResult(int(process.stdout.readline()), out.read_text(), err.read_text())

    yield run
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.close()
    process.wait(30)


@pytest.fixture(scope="session")
def half_result(command: Command, workshop: Path) -> CommandResult:
    """Return the result of a run into workshop/half."""
    return command(
        "sparsify", "nets.py:small", "--images", "x.npy", "--params", "50%", "--out", "half"
    )


@pytest.fixture(scope="session")
def pruned(command: Command, workshop: Path) -> Path:
    """Return the folder of a run with known weights."""
    words = ("--weights", "w.pt", "--images", "x.npy", "--width", "0.25", "--out", "pruned")
    done = command("sparsify", "nets.py:small", *words)
    assert done.code == 0, done.err
    return workshop / "pruned"


@pytest.fixture(scope="session")
def part(command: Command, workshop: Path) -> Path:
    """Return the file of the moments of all images."""
    words = ("--weights", "w.pt", "--images", "x.npy", "--holdout", "0", "--out", "all.safetensors")
    done = command("collect", "nets.py:small", *words)
    assert done.code == 0, done.err
    return workshop / "all.safetensors"


@pytest.fixture(scope="session")
def demo_result(command: Command, workshop: Path) -> CommandResult:
    """Return the result of the demo, as JSON."""
    return command("demo", "--json")
