"""Callbacks for experiment trackers, each tested with the tracker itself where it is installed."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import entrim
from entrim import tracking
from entrim.errors import MissingExtraError
from tests.pipeline.networks import chain, images

TRAINING = entrim.Distillation(epochs=1, batch_size=40)
TRACKERS = {
    "tensorboard": tracking.TensorBoardCallback,
    "mlflow": tracking.MLflowCallback,
    "wandb": tracking.WandbCallback,
}


def is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def needs(name: str) -> pytest.MarkDecorator:
    reason = f"needs {name}: pip install {name}"
    return pytest.mark.skipif(not is_installed(name), reason=reason)


class Failure(entrim.Callback):
    """Ends a call with an error."""

    def on_step(self, event: entrim.ProgressEvent) -> None:
        raise KeyError


def prune(
    callback: entrim.Callback, width: float = 0.5, *, fails: bool = False
) -> entrim.SparsifyResult:
    callbacks = [callback, Failure()] if fails else [callback]
    return entrim.sparsify(chain(), images(90, 3, 8, 8), entrim.Widths(width), callbacks=callbacks)


def distill(result: entrim.SparsifyResult, callback: entrim.Callback) -> entrim.SparsifyResult:
    return entrim.distill(result, None, TRAINING, callbacks=[callback])


class Results(entrim.Callback):
    """Collects the results."""

    def __init__(self) -> None:
        self.found: list[tuple[str, dict[str, Any], dict[str, float]]] = []

    def on_result(
        self, run: str, settings: Mapping[str, Any], metrics: Mapping[str, float]
    ) -> None:
        self.found.append((run, dict(settings), dict(metrics)))


def test_a_callback_receives_settings_and_figures_of_every_result() -> None:
    callback = Results()
    result = prune(callback)
    better = distill(result, callback)
    (first, settings, figures), (second, training, trained) = callback.found
    assert (first, second) == ("sparsify", "distill")
    assert settings["selector"] == "auto"
    assert training["epochs"] == 1
    assert json.loads(json.dumps([settings, training]))
    assert figures["params/after"] == result.record.after.params < figures["params/before"]
    assert result.record.holdout is not None
    assert result.record.holdout.error is not None
    assert figures["error/unseen"] == result.record.holdout.error.value
    assert better.record.distilled is not None
    assert trained["loss/after"] == better.record.distilled.after
    assert "loss/after" not in figures


@pytest.mark.parametrize("name", [name for name in TRACKERS if not is_installed(name)])
def test_a_missing_tracker_is_named_with_its_extra(name: str) -> None:
    with pytest.raises(MissingExtraError, match=rf"pip install {name}, .*\[{name}\]"):
        TRACKERS[name]()


@needs("tensorboard")
@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_the_figures(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import (  # pyright: ignore[reportMissingImports]
        EventAccumulator,
    )

    callback = tracking.TensorBoardCallback(tmp_path)
    result = prune(callback)
    distill(result, callback)
    (file,) = tmp_path.iterdir()
    events = EventAccumulator(str(file)).Reload()
    assert events.Scalars("params/after")[0].value == result.record.after.params
    assert len(events.Scalars("distill/loss")) == len(range(0, 73, 40))
    text = events.Tensors("sparsify/settings/text_summary")[0].tensor_proto.string_val[0]
    assert b'"widths": ' in text


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a running MLflow server."""
    place = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    words += ["--backend-store-uri", f"sqlite:///{place}/runs.db"]
    log = (place / "log").open("w")
    process = subprocess.Popen(
        [sys.executable, "-m", "mlflow", *words], cwd=place, stdout=log, stderr=log
    )
    try:
        _wait_for(f"http://127.0.0.1:{port}/health", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)
        log.close()


def _wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError("the MLflow server did not start")


@needs("mlflow")
@pytest.mark.filterwarnings("ignore")
def test_mlflow_server_stores_the_figures(server: str) -> None:
    import mlflow  # pyright: ignore[reportMissingImports]

    mlflow.set_tracking_uri(server)
    mlflow.set_experiment("pruning")
    callback = tracking.MLflowCallback()
    result = prune(callback)  # a run of its own
    assert mlflow.active_run() is None
    with mlflow.start_run() as active:
        distill(prune(callback), callback)
        prune(callback, 0.4)  # a nested run: its settings differ
    with pytest.raises(KeyError):
        prune(callback, fails=True)
    client = mlflow.MlflowClient()
    runs = client.search_runs([client.get_experiment_by_name("pruning").experiment_id])
    failed, nested, outer, alone = runs
    assert [run.info.status for run in runs] == ["FAILED", *["FINISHED"] * 3]
    assert outer.info.run_id == active.info.run_id
    assert nested.data.tags["mlflow.parentRunId"] == active.info.run_id
    assert alone.data.metrics["macs/after"] == result.record.after.macs
    assert outer.data.params["sparsify.budget.widths"] == "{'*': 0.5}"
    assert outer.data.params["distill.epochs"] == "1"
    assert nested.data.params["sparsify.budget.widths"] == "{'*': 0.4}"
    losses = client.get_metric_history(outer.info.run_id, "distill/loss")
    assert [loss.step for loss in losses] == [1, 2]
    assert not failed.data.metrics


@needs("wandb")
@pytest.mark.filterwarnings("ignore")
def test_wandb_writes_an_offline_run(tmp_path: Path) -> None:
    script = """
import wandb
from tests.test_tracking import distill, prune, tracking
callback = tracking.WandbCallback(mode="offline")
result = prune(callback)
assert wandb.run is None
run = wandb.init(mode="offline", project="mine")
distill(prune(callback), callback)
assert run.summary["params/after"] == result.record.after.params
assert run.config["sparsify.selector"] == "auto"
assert run.summary["distill/loss"] > 0
run.finish()
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("wandb/offline-run-*/*.wandb"))) == 2
