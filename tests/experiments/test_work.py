"""The folder of a reproduction: read twice, written once, by one process at a time."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from entrim import ProgressEvent
from entrim.errors import SaveError
from entrim.storage.atomic import exclusive_lock
from experiments.datasets import FetchEvent
from experiments.models import lenet
from experiments.paper.pruning import prune_row, sparsify_options
from experiments.paper.rows import rows_of
from experiments.paper.timing import measure_speedup
from experiments.work import NotFinishedError, Work
from tests.experiments.toys import pictures, toy

ROOT = Path(__file__).parents[2]


def _state(folder: Path) -> dict[Path, tuple[int, int]]:
    found = {path: path.stat() for path in folder.rglob("*")}
    return {path: (stat.st_ino, stat.st_mtime_ns) for path, stat in found.items()}


def test_a_finished_training_is_only_read(tmp_path: Path) -> None:
    trained, work = toy(Work(tmp_path)), Work(tmp_path)
    config = trained.fine_tuning(1, 0)
    first = work.train("toy", trained.model, trained.task(), config)
    before = _state(tmp_path)
    again = replace(work, only_finished=True).train("toy", trained.model, trained.task(), config)
    assert all(map(torch.equal, first.state_dict().values(), again.state_dict().values()))
    assert _state(tmp_path) == before


def test_an_unfinished_training_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    trained = toy(Work(tmp_path))
    config = trained.fine_tuning(2, 0)

    def stop(step: ProgressEvent) -> None:
        if step.name == "epoch 2":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Work(tmp_path, stop).train("toy", trained.model, trained.task(), config)
    before = _state(tmp_path)
    task = replace(trained.task(), loss=lambda *_: pytest.fail("a batch was computed"))
    with pytest.raises(NotFinishedError, match="--finished"):
        Work(tmp_path, only_finished=True).train("toy", trained.model, task, config)
    assert _state(tmp_path) == before


def test_a_damaged_point_is_measured_again(tmp_path: Path) -> None:
    work = Work(tmp_path)
    work.point("point", {}, lambda: {"value": 1})
    (file,) = tmp_path.rglob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(NotFinishedError):
        replace(work, only_finished=True).point("point", {}, lambda: {"value": 2})
    assert work.point("point", {}, lambda: {"value": 2})["value"] == 2
    assert work.point("point", {}, lambda: {"value": 3})["value"] == 2


CHILD = """
import os, signal, sys
from pathlib import Path
from experiments.work import Work
from tests.experiments.toys import toy

def stop(step):
    if step.name == "epoch 2":
        os.kill(os.getpid(), signal.SIGKILL)

work = Work(Path(sys.argv[1]), stop)
work.point("point", {}, lambda: {"value": 1})
trained = toy(work)
work.train("toy", trained.model, trained.task(), trained.fine_tuning(2, 0))
"""


@pytest.mark.skipif(os.name != "posix", reason="kills by signal")
def test_a_killed_experiment_continues_with_the_same_result(tmp_path: Path) -> None:
    path = os.pathsep.join(map(str, (ROOT / "src", ROOT)))
    command, env = [sys.executable, "-c", CHILD, str(tmp_path)], {**os.environ, "PYTHONPATH": path}
    assert subprocess.run(command, env=env, check=False).returncode == -signal.SIGKILL
    steps: list[ProgressEvent] = []
    work, trained = Work(tmp_path, steps.append), toy(Work(tmp_path))
    arguments = ("toy", trained.model, trained.task(), trained.fine_tuning(2, 0))
    found = work.point("point", {}, lambda: pytest.fail("the point was measured again"))
    assert found["value"] == 1
    resumed, expected = work.train(*arguments), Work(tmp_path / "other").train(*arguments)
    assert {step.name for step in steps} == {"epoch 2"}
    assert all(map(torch.equal, resumed.state_dict().values(), expected.state_dict().values()))


def test_a_cut_whose_network_is_gone_is_made_again(tmp_path: Path) -> None:
    trained, work, row = toy(Work(tmp_path)), Work(tmp_path), rows_of("lenet-conv")[0]
    options = sparsify_options(trained, row, "default")
    first, place = prune_row(work, trained, row, "toy", options)
    place.rename(tmp_path / "elsewhere")
    with pytest.raises(NotFinishedError):
        prune_row(replace(work, only_finished=True), trained, row, "toy", options)
    again, _ = prune_row(work, trained, row, "toy", options)
    assert place.is_dir()
    assert again["accuracy"] == first["accuracy"]


def test_a_folder_that_takes_no_more_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / ".locks").write_text("")
    with pytest.raises(SaveError, match="choose another --work folder"):
        Work(tmp_path).point("point", {}, lambda: pytest.fail("measured in vain"))


def test_a_figure_tells_what_it_was_made_with(tmp_path: Path) -> None:
    made = Work(tmp_path).point("point", {}, lambda: {"value": 1})["made with"]
    assert made["threads"] == torch.get_num_threads()
    assert made["torch"] == torch.__version__


def test_who_comes_second_waits_and_takes_what_the_first_found(tmp_path: Path) -> None:
    measuring, reported = threading.Event(), threading.Event()

    def slow() -> dict[str, Any]:
        measuring.set()
        assert reported.wait(20)
        return {"value": 1}

    first = threading.Thread(target=lambda: Work(tmp_path).point("point", {}, slow))
    first.start()
    assert measuring.wait(20)
    steps: list[ProgressEvent] = []

    def hear(step: ProgressEvent) -> None:
        steps.append(step)
        reported.set()

    found = Work(tmp_path, hear).point("point", {}, lambda: pytest.fail("measured twice"))
    first.join()
    assert found["value"] == 1
    assert "another process is computing this" in steps[0].detail


def test_a_training_is_taken_up_by_one_process_at_a_time(tmp_path: Path) -> None:
    trained, config = toy(Work(tmp_path)), toy(Work(tmp_path)).fine_tuning(1, 0)
    held: list[bool] = []

    def try_lock(_: ProgressEvent) -> None:
        (lock,) = (tmp_path / ".locks").iterdir()
        with pytest.raises(BlockingIOError), exclusive_lock(lock, wait=False):
            pass
        held.append(True)

    Work(tmp_path, try_lock).train("toy", trained.model, trained.task(), config)
    assert held


def test_a_dataset_on_its_way_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(part: str, report: Any) -> Any:
        report(FetchEvent(dataset="mnist", source="somewhere", note="trying"))
        report(FetchEvent(dataset="mnist", source="somewhere", note="fetching", done=5, total=20))
        return pictures(60, 0)

    monkeypatch.setattr("experiments.models.load_mnist", load)
    monkeypatch.setattr("experiments.models._LENET_TRAIN_IMAGES", 50)
    steps: list[ProgressEvent] = []
    with pytest.raises(NotFinishedError):
        lenet(Work(tmp_path, steps.append, only_finished=True))
    trying, fetching, *_ = steps
    assert (trying.stage, trying.detail) == ("fetch mnist", "somewhere: trying")
    assert (fetching.done, fetching.total, fetching.detail) == (5, 20, "bytes of somewhere")


def test_the_runs_of_two_networks_are_interleaved(monkeypatch: pytest.MonkeyPatch) -> None:
    now, order = [0.0], list[str]()

    class Timed(nn.Module):
        def __init__(self, name: str, seconds: float) -> None:
            super().__init__()
            self.name, self.seconds = name, seconds

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            order.append(self.name)
            now[0] += self.seconds
            return images

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    found = measure_speedup(Timed("big", 3.0), Timed("small", 2.0), torch.zeros(4, 1))
    assert (found["speedup"], found["deviation"], found["batch"]) == (1.5, 0, 4)
    assert order == ["big", "small"] * (len(order) // 2)
