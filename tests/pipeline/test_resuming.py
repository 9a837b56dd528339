"""An interrupted run continues after its finished units, and computes the same result."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import entrim
from entrim import pipeline
from entrim.allocation import allocate
from entrim.allocation.sensitivity import SensitivityAnalyzer
from entrim.calibration import collect
from entrim.errors import BudgetError, OtherRunError
from entrim.reconstruction import layer
from entrim.selection import elimination
from entrim.storage import checkpoint
from tests.callbacks import Recorder, StopAt, StopError

ROOT = Path(__file__).parents[2]
INDEPENDENT = entrim.Reconstruction(order="independent")
PENALTY = entrim.EntropicPenalty(eps_w=-1e-3, eps_l2=1e-3)
RUNS: dict[str, dict[str, Any]] = {
    "budget": {"budget": entrim.Budget(macs=0.5)},
    "error": {
        "budget": entrim.Budget(max_error=1.5),
        "selector": "random",
        "calibration": entrim.Calibration(holdout=100),
    },
    "agreement": {
        "budget": entrim.Budget(agreement=0.5),
        "calibration": entrim.Calibration(holdout=40),
    },
    "knee": {},
    "penalty": {
        "budget": PENALTY,
        "calibration": entrim.Calibration(n_bootstrap=2, n_positions=2, holdout=0),
    },
    "widths": {
        "budget": entrim.Widths(0.5),
        "reconstruction": INDEPENDENT,
        "selector": "random",
        "calibration": entrim.Calibration(holdout=0),
    },
    "paper": entrim.paper_preset(-1e-2, 1e-2),
}


@cache
def network(seed: int = 0) -> nn.Sequential:
    """Return a network with two channels that are nearly copies of others."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(2, 6, 2), nn.ReLU(), nn.Conv2d(6, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(20, 3)
    )
    with torch.no_grad():
        for tensor in net[0].parameters():
            tensor[4:] = 1.01 * tensor[:2]
    return net.eval()


@pytest.fixture(autouse=True)
def _exported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Export each network once: that takes most of the time, and is not what is tested here."""
    for module, name in ((pipeline, "trace"), (collect, "programs")):
        monkeypatch.setattr(module, name, partial(call_once, getattr(module, name)))


EXPORTED: dict[str, Any] = {}


def call_once(function: Callable[..., Any], model: nn.Module, inputs: Any) -> Any:
    key = str((function.__name__, id(model), [tuple(part.shape) for part in inputs]))
    if key not in EXPORTED:
        EXPORTED[key] = function(model, inputs)
    return EXPORTED[key]


def images(seed: int = 0) -> Tensor:
    return torch.randn(150, 2, 4, 4, generator=torch.Generator().manual_seed(seed))


def run(
    folder: Path | None = None, callback: entrim.Callback | None = None, **options: Any
) -> entrim.SparsifyResult:
    arguments = {"model": network(), "images": images(), "seed": 1, **options}
    callbacks = None if callback is None else [callback]
    return entrim.sparsify(**arguments, callbacks=callbacks, checkpoint_dir=folder)


def stop_from(numbers: dict[tuple[str, str], int], first: int) -> StopAt:
    """Return a callback that ends a run at step `first` of a complete one, or at a later one."""
    return StopAt(lambda event: numbers.get((event.stage, event.name), -1) >= first)


def stop_run(folder: Path, stage: str, done: int, **options: Any) -> list[Path]:
    """Stop a run at step `done` of a stage, and return the files of its finished units."""
    with pytest.raises(StopError):
        run(folder, StopAt(lambda event: (event.stage, event.done) == (stage, done)), **options)
    return units_in(folder)


def units_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def assert_same(one: entrim.SparsifyResult, other: entrim.SparsifyResult) -> None:
    first, second = one.model.state_dict(), other.model.state_dict()
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert one.plan.kept == other.plan.kept
    for part in ("groups", "layers", "tradeoff", "proof", "notes"):
        assert getattr(one.record, part) == getattr(other.record, part)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return how often the work of a unit is done."""
    found: Counter[str] = Counter()
    work: list[tuple[Any, str]] = [
        (pipeline, "select_channels"),
        (allocate, "select_channels"),
        (elimination, "elimination_order"),
        (SensitivityAnalyzer, "_change"),
        (layer, "solve_layer"),
    ]
    for place, name in work:
        count_calls(monkeypatch, found, place, name)
    return found


def count_calls(
    monkeypatch: pytest.MonkeyPatch, counts: Counter[str], place: Any, name: str
) -> None:
    original = getattr(place, name)

    def counting(*args: Any, **kwargs: Any) -> Any:
        counts[f"{place.__name__}.{name}"] += 1
        return original(*args, **kwargs)

    monkeypatch.setattr(place, name, counting)


RANKED = "entrim.selection.elimination.elimination_order"
MEASURED = "SensitivityAnalyzer._change"


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_is_stopped_at_every_step_computes_the_same_result(
    tmp_path: Path, name: str, counts: Counter[str]
) -> None:
    options, folder, complete = RUNS[name], tmp_path / "checkpoints", Recorder()
    expected = run(None, complete, **options)
    once = dict(counts)
    numbers = {(event.stage, event.name): n for n, event in enumerate(complete.events)}
    counts.clear()
    for first in range(len(complete.events)):
        with pytest.raises(StopError):
            run(folder, stop_from(numbers, first), **options)
    last = Recorder()
    assert_same(run(folder, last, **options), expected)
    if name not in ("error", "agreement"):  # a point whose test was stopped is tested again
        assert dict(counts) == once
    assert not folder.exists()
    assert "resume" in last.stages
    assert "collect" not in last.stages
    decisions = last.in_stage("select")
    decisions += [event for event in last.in_stage("reconstruct") if event.is_final]
    assert decisions
    assert all(event.detail.endswith("restored") for event in decisions)


CHILD = """
import os, signal, sys, torch
from pathlib import Path
import entrim
from tests.pipeline.test_resuming import RUNS, run

class Kill(entrim.Callback):
    def on_step(self, event):
        if (event.stage, event.done) == ("reconstruct", 1):
            os.kill(os.getpid(), signal.SIGKILL)

torch.set_num_threads(1)
run(Path(sys.argv[1]), Kill(), **RUNS["budget"])
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="kills by signal")
def test_a_killed_run_restores_its_finished_units_and_computes_the_same_result(
    tmp_path: Path, counts: Counter[str]
) -> None:
    folder, path = tmp_path / "checkpoints", os.pathsep.join(map(str, (ROOT / "src", ROOT)))
    command = [sys.executable, "-c", CHILD, str(folder)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert units_in(folder)
    recorder = Recorder()
    resumed = run(folder, recorder, **RUNS["budget"])
    assert counts[RANKED] == counts[MEASURED] == 0
    details = [event.detail for event in recorder.in_stage("reconstruct")]
    assert details[0].endswith("restored")
    assert not details[-1].endswith("restored")
    assert not folder.exists()
    assert_same(resumed, run(**RUNS["budget"]))


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the layers whose statistics are collected, one list for each collection."""
    found: list[list[str]] = []
    original = collect.capture

    def capture(task: Any, consumers: Sequence[Any], *rest: Any) -> None:
        if consumers:
            found.append([consumer.spec.layer for consumer in consumers])
        original(task, consumers, *rest)

    monkeypatch.setattr(collect, "capture", capture)
    return found


def test_only_unfinished_groups_are_collected_again(
    tmp_path: Path, collected: list[list[str]]
) -> None:
    folder = tmp_path / "checkpoints"
    stop_run(folder, "select", 1, budget=PENALTY)
    run(folder, budget=PENALTY)
    assert collected == [["2", "5"], ["5"]]


class Branches(nn.Module):
    """Two layers that a third one consumes, one of them consumed by a fourth too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(32, 6), nn.Linear(32, 6)
        self.both, self.one = nn.Linear(12, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a(x.flatten(1)).relu(), self.b(x.flatten(1)).relu()
        return self.both(torch.cat([a, b], 1)) + self.one(b)


def test_only_layers_that_are_refitted_are_collected(collected: list[list[str]]) -> None:
    run(model=Branches().eval(), budget=entrim.Widths({"a": 3}), reconstruction=INDEPENDENT)
    assert collected == [["both"]]


def test_random_positions_do_not_depend_on_the_number_of_passes() -> None:
    options, recorder = RUNS["penalty"], Recorder()
    little = entrim.Calibration(n_bootstrap=2, n_positions=2, memory_limit=6_000, holdout=0)
    passes = run(None, recorder, **{**options, "calibration": little})
    assert_same(passes, run(**options))
    assert {event.total for event in recorder.in_stage("collect")} == {6}
    assert passes.record.groups != run(**options, seed=2).record.groups


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"model": network(1)}, "network"),
        ({"images": images(1)}, "images"),
        ({"images": images()[:100]}, "images"),
        ({"example_inputs": images()[:3]}, "images"),
        ({"selector": "magnitude"}, "settings"),
        ({"reconstruction": entrim.Reconstruction()}, "settings"),
        ({"exclude": "0"}, "settings"),
        ({"calibration": entrim.Calibration(n_positions=2, holdout=0)}, "settings"),
        ({"seed": 2}, "seed"),
    ],
)
def test_another_run_is_refused_and_leaves_the_folder_as_it_is(
    tmp_path: Path, change: dict[str, Any], difference: str
) -> None:
    folder, options = tmp_path / "checkpoints", RUNS["widths"]
    units = stop_run(folder, "select", 2, **options)
    with pytest.raises(OtherRunError, match=rf"another run \({difference} differ\)"):
        run(folder, **{**options, **change})
    assert units_in(folder) == units
    assert_same(run(folder, **options), run(**options))


def test_another_budget_continues_with_the_rankings_and_divergences(
    tmp_path: Path, counts: Counter[str]
) -> None:
    folder, other = tmp_path / "checkpoints", entrim.Budget(params=0.4)
    stop_run(folder, "reconstruct", 1, **RUNS["budget"])
    assert counts[RANKED] == 2
    assert counts[MEASURED] > 0
    counts.clear()
    recorder = Recorder()
    found = run(folder, recorder, budget=other)
    assert counts[RANKED] == counts[MEASURED] == 0
    assert all(event.detail.endswith("restored") for event in recorder.in_stage("sensitivity"))
    assert not any(event.detail.endswith("restored") for event in recorder.in_stage("reconstruct"))
    assert not folder.exists()
    assert_same(found, run(budget=other))


@pytest.mark.parametrize("other", [entrim.Widths(0.7), entrim.Budget(params=0.6), PENALTY, None])
def test_another_target_never_takes_the_selection_of_the_first(
    tmp_path: Path, other: entrim.Widths | entrim.Budget | entrim.EntropicPenalty | None
) -> None:
    folder = tmp_path / "checkpoints"
    stop_run(folder, "reconstruct", 2, budget=entrim.Widths(0.5))
    assert_same(run(folder, budget=other), run(budget=other))


def test_a_pruner_that_fails_at_its_second_target_keeps_the_units_of_both(
    tmp_path: Path, counts: Counter[str]
) -> None:
    folder = tmp_path / "checkpoints"
    targets = entrim.Budget(params=0.7), entrim.Budget(params=0.4)
    reconstructed: list[str] = []

    def is_second(event: entrim.ProgressEvent) -> bool:
        if event.stage == "reconstruct":
            reconstructed.append(event.name)
        return reconstructed.count("5") == 2

    def prune_all(*callbacks: entrim.Callback) -> list[entrim.SparsifyResult]:
        with entrim.Pruner(
            network(), images(), callbacks=callbacks, checkpoint_dir=folder
        ) as pruner:
            found = [pruner.prune(target) for target in targets]
            assert folder.exists()
            return found

    with pytest.raises(StopError):
        prune_all(StopAt(is_second))
    assert units_in(folder)
    expected = [run(budget=target, seed=0) for target in targets]
    counts.clear()
    found = prune_all()
    assert not counts
    assert not folder.exists()
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)


class Unnamed:
    """A selector without a representation of its own."""

    def __init__(self, first: int = 0) -> None:
        self.first = first

    def select(self, statistics: entrim.GroupStatistics, k: int) -> list[int]:
        return [(self.first + n) % statistics.channels for n in range(k)]


def distance(outputs: Tensor, reference: Tensor) -> Tensor:
    return (outputs - reference).abs().sum(1)


def test_selectors_and_functions_of_the_user_are_recognized_when_they_are_created_again(
    tmp_path: Path,
) -> None:
    folder, target = tmp_path / "checkpoints", entrim.Widths(0.5)
    calibration = entrim.Calibration(sensitivity=distance)
    stop_run(folder, "select", 2, budget=target, selector=Unnamed(), calibration=calibration)
    with pytest.raises(OtherRunError, match="settings differ"):
        run(folder, budget=target, selector=Unnamed(1), calibration=calibration)
    recorder = Recorder()
    run(folder, recorder, budget=target, selector=Unnamed(), calibration=calibration)
    assert all(event.detail.endswith("restored") for event in recorder.in_stage("select"))


def test_another_version_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, options = tmp_path / "checkpoints", RUNS["widths"]
    stop_run(folder, "select", 2, **options)
    monkeypatch.setattr(checkpoint, "version", lambda name: f"{name} 0")
    with pytest.raises(OtherRunError, match="versions differ"):
        run(folder, **options)


def test_the_same_images_in_batches_are_the_same_run(tmp_path: Path) -> None:
    folder, options = tmp_path / "checkpoints", RUNS["widths"]
    stop_run(folder, "select", 2, **options)
    recorder = Recorder()
    batches = [(part, torch.zeros(len(part))) for part in images().split(40)]
    assert_same(run(folder, recorder, images=batches, **options), run(**options))
    assert "resume" in recorder.stages


def test_a_refused_run_and_a_run_without_finished_units_leave_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with pytest.raises(BudgetError):
        run(folder, budget=entrim.Budget(params=3))
    assert not folder.exists()
    assert not stop_run(folder, "collect", 1, **RUNS["penalty"])
    assert not folder.exists()
