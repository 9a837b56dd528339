"""The file of a search: stopped, killed, shared, and that of another search."""

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import entrim
from entrim.errors import StorageError
from entrim.hpo import study
from tests.hpo.digits import accuracy, default_search, digits, run_search, trained, without_times

ROOT = Path(__file__).parents[2]


def test_a_search_that_was_stopped_continues_with_the_same_trials(tmp_path: Path) -> None:
    file = tmp_path / "search.log"
    for trials in (1, 5, 12):
        found = run_search(trials=trials, early_stop=None, storage=file)
        assert len(found.record.trials) == trials
    assert without_times(found) == without_times(default_search())


def test_an_interrupted_trial_does_not_count(tmp_path: Path) -> None:
    calls: list[int] = []

    def score(model: nn.Module) -> float:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return accuracy(model)

    options: dict[str, Any] = {"storage": tmp_path / "search.log", "early_stop": None}
    with pytest.raises(KeyboardInterrupt):
        run_search(score, **options)
    with options["storage"].open("a") as stream:
        stream.write('{"op_code":9,"worker_id":"x')  # a line that was being written
    numbers = {t.number for t in run_search(**options).record.trials}
    assert len(numbers) == 6
    assert len(set(range(1, 8)) - numbers) == 1
    assert all(json.loads(line) for line in options["storage"].read_text().splitlines())


CHILD = """
import os, signal, sys
from tests.hpo.digits import accuracy, run_search

calls = []

def score(model):
    calls.append(1)
    if len(calls) == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    return accuracy(model)

found = run_search(score, trials=int(sys.argv[2]), storage=sys.argv[1], early_stop=None)
print(len(calls) - 1)
"""


def child(file: Path, trials: int, dies_at: int) -> subprocess.Popen[str]:
    path = os.pathsep.join(map(str, (ROOT / "src", ROOT)))
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(file), str(trials), str(dies_at)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="kills by signal")
def test_a_killed_search_continues_and_its_incomplete_line_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "search.log"
    process = child(file, 6, dies_at=4)
    _, err = process.communicate(timeout=900)
    assert process.returncode == -9, err
    with file.open("a") as stream:
        stream.write('{"op_code":9,"worker_id":"x')  # a line that was being written
    found = run_search(storage=file, early_stop=None)
    numbers = [t.number for t in found.record.trials]
    assert len(numbers) == 6
    [killed] = set(range(1, 8)) - set(numbers)
    assert without_times(found)[: killed - 1] == without_times(default_search())[: killed - 1]
    assert all(json.loads(line) for line in file.read_text().splitlines())


@pytest.mark.skipif(os.name != "posix", reason="asks for processes by signal")
def test_only_processes_that_may_still_run_keep_their_trials() -> None:
    host, process, token = study.me().rsplit(" ", 2)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert study.alive(study.me())
    assert study.alive(f"{host} {os.getppid()} {token}")
    assert study.alive(f"other-{host} {ended.pid} {token}")
    assert not study.alive(f"{host} {ended.pid} {token}")
    assert not study.alive(f"{host} {process} of-an-earlier-process")


def test_an_old_trial_without_a_process_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = study.Storage.of(tmp_path / "search.log")
    found = storage.study("s", {"a": (1.0, 2.0)}, {"network": "n"})
    found.study.ask()
    for finished in (0, 1):  # at first, the one trial may be running
        found.sweep()
        found.optimize(lambda _: (1.0, 1.0), 1, lambda _: False)
        assert len(found.finished_trials()) == finished
        monkeypatch.setattr(study, "PATIENCE", timedelta(0))


@pytest.mark.slow
def test_two_processes_share_the_trials_of_one_file(tmp_path: Path) -> None:
    file = tmp_path / "search.log"
    both = [child(file, 14, dies_at=0) for _ in range(2)]
    for process in both:
        _, err = process.communicate(timeout=900)
        assert process.returncode == 0, err
    trials = run_search(storage=file, trials=14, early_stop=None).record.trials
    assert len(trials) == 14
    assert len({tuple(t.eps.items()) for t in trials}) == 14


def test_a_file_of_another_search_is_refused_unless_it_has_another_name(tmp_path: Path) -> None:
    file = tmp_path / "search.log"
    run_search(storage=file, trials=2)
    x = digits()[0]
    other = nn.Sequential(*(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 2)))
    flat = nn.Sequential(nn.Flatten(), *other).eval()
    with pytest.raises(StorageError, match=r"with other images: .* another storage="):
        entrim.search(trained(), x[1:201], accuracy, storage=file)
    with pytest.raises(StorageError, match="with other settings"):
        run_search(storage=file, eps_w=(1e-5, 1e-2))
    with pytest.raises(StorageError, match="with other settings"):
        run_search(storage=file, reconstruction=entrim.Reconstruction(ridge=1e-3))
    with pytest.raises(StorageError, match="with other network"):
        entrim.search(flat, x[:200], lambda _: 1.0, storage=file)
    found = entrim.search(flat, x[:200], lambda _: 1.0, storage=file, name="flat", trials=1)
    assert len(found.record.trials) == 1


def test_a_path_that_cannot_contain_a_search_is_refused(tmp_path: Path) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear Sir,\nno trials\n")
    for path in (tmp_path / "missing" / "search.log", tmp_path):
        with pytest.raises(StorageError, match=r"cannot be stored in .*: .* a file in a folder"):
            run_search(storage=path)
    with pytest.raises(StorageError, match="is not the file of a search"):
        run_search(storage=letter)
    assert letter.read_text() == "Dear Sir,\nno trials\n"
