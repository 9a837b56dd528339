"""A process that imports entrim once and forks for every command.

Each command is a process with its own files for stdout and stderr and its own exit code; only the
imports of PyTorch and its exporters are shared.
"""

import gc
import json
import os
import resource
import signal
import sys
from functools import cache
from typing import Any, NoReturn

import torch
from torch import nn

import entrim
from entrim.cli.main import main
from entrim.export.parity import silence_exporter


def stop_before_rename(number: int, count: int) -> None:
    """Send this process a signal when it is about to rename its file number `count`.

    Processes in the background of a shell ignore Ctrl-C, and so would their children.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    renames = iter(range(1, count))

    def audit(event: str, _: object) -> None:
        if event == "os.rename" and next(renames, None) is None:
            os.kill(os.getpid(), number)

    sys.addaudithook(audit)


def warm_up() -> None:
    """Load what every run needs, and exempt it from the collection of garbage in the children."""
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
    entrim.sparsify(net, torch.randn(40, 2), entrim.Budget(params=0.8), callbacks=())
    gc.collect()
    gc.freeze()


@cache
def prepare_onnx() -> None:
    """Import the requirements of an ONNX export once for all commands."""
    with silence_exporter():
        import onnxruntime.quantization  # noqa: F401

        torch.onnx.export(nn.Linear(2, 2), (torch.zeros(1, 2),), dynamo=True, verbose=False)


def run_job(job: dict[str, Any]) -> NoReturn:
    code: object = 99
    try:
        os.chdir(str(job["cwd"]))
        if job["stop"]:
            stop_before_rename(*job["stop"])
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(str(job[name]), os.O_CREAT | os.O_WRONLY | os.O_TRUNC), stream)
        if job["limit"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (job["limit"], job["limit"]))
        code = main(list(job["words"]))
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 98)


if __name__ == "__main__":
    warm_up()
    for line in sys.stdin:
        job = json.loads(line)
        if "--onnx" in job["words"]:
            prepare_onnx()
        child = os.fork()
        if not child:
            run_job(job)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
