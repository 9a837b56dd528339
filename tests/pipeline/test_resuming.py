"""A run that is interrupted goes on after what is finished, and ends with the same bits."""

from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

import entrim
from entrim import budgeting, deciding, pipeline
from entrim.allocation import sensitivity as sensing
from entrim.calibration import collect as capture
from entrim.errors import BudgetError, CheckpointError, OtherRunError, SaveError
from entrim.reconstruction import layer as refitting
from entrim.reconstruction import sequential as rebuild
from entrim.storage.checkpoint import CheckpointStore

WAYS: dict[str, dict[str, Any]] = {
    "budget": {"budget": entrim.Budget(macs=0.5)},
    "error": {"budget": entrim.Budget(max_error=0.2), "selector": "random"},
    "knee": {},
    "eps": {"eps_w": -1e-3, "eps_l2": 1e-3, "resamples": 2, "positions": 2},
    "widths": {"widths": {"*": 0.5}, "mode": "independent", "selector": "random"},
    "paper": {"preset": "paper", "eps_w": -1e-2, "eps_l2": 1e-2},
}


class StopError(Exception):
    """What a callback raises to interrupt a run."""


@cache
def network(seed: int = 0) -> nn.Sequential:
    """Return a network of which two channels are nearly copies of others."""
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
    for place, name in ((pipeline, "trace"), (deciding, "programs")):
        monkeypatch.setattr(place, name, partial(known, getattr(place, name)))


EXPORTED: dict[Any, Any] = {}


def known(real: Callable[..., Any], model: nn.Module, shown: Any) -> Any:
    key = (real.__name__, id(model), [tuple(part.shape) for part in shown])
    if str(key) not in EXPORTED:
        EXPORTED[str(key)] = real(model, shown)
    return EXPORTED[str(key)]


def images(seed: int = 0) -> Tensor:
    return torch.randn(150, 2, 4, 4, generator=torch.Generator().manual_seed(seed))


def run(journal: Path | None, on_step: Any = None, **how: Any) -> entrim.SparsifyResult:
    drawn = torch.Generator().manual_seed(1)
    given = {"model": network(), "images": images(), "generator": drawn, **how}
    return entrim.sparsify(**given, on_step=on_step, journal=journal)


def stop_from(
    steps: dict[tuple[str, str], int], number: int
) -> Callable[[entrim.ProgressEvent], None]:
    """Return a callback that raises at step `number` of a whole run, or at the next there is."""

    def on_step(step: entrim.ProgressEvent) -> None:
        if steps.get((step.stage, step.name), -1) >= number:
            raise StopError

    return on_step


def assert_same(one: entrim.SparsifyResult, other: entrim.SparsifyResult) -> None:
    mine, its = one.model.state_dict(), other.model.state_dict()
    assert list(mine) == list(its)
    assert all(torch.equal(mine[name], its[name]) for name in mine)
    assert one.plan.kept == other.plan.kept
    for part in ("groups", "layers", "tradeoff", "proof", "notes"):
        assert getattr(one.record, part) == getattr(other.record, part)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return how often the work of a unit is done."""
    calls: Counter[str] = Counter()
    work = [
        (deciding, "choose"),
        (budgeting, "order_of_loss"),
        (sensing.SensitivityAnalyzer, "_moved"),
    ]
    work += [(rebuild, "solved"), (refitting, "solved")]
    for place, name in work:
        count(monkeypatch, calls, place, name)
    return calls


def count(patch: pytest.MonkeyPatch, calls: Counter[str], place: Any, name: str) -> None:
    real = getattr(place, name)

    def counting(*args: Any, **kwargs: Any) -> Any:
        calls[f"{place.__name__}.{name}"] += 1
        return real(*args, **kwargs)

    patch.setattr(place, name, counting)


@pytest.mark.parametrize("way", WAYS)
def test_a_run_stopped_at_every_step_in_turn_ends_with_the_same_bits(
    tmp_path: Path, way: str, counted: Counter[str]
) -> None:
    steps: list[entrim.ProgressEvent] = []
    whole = run(None, steps.append, **WAYS[way])
    once, place = dict(counted), tmp_path / "journal"
    numbers = {(step.stage, step.name): number for number, step in enumerate(steps)}
    counted.clear()
    for number in range(len(steps)):
        with pytest.raises(StopError):
            run(place, stop_from(numbers, number), **WAYS[way])
    told: list[entrim.ProgressEvent] = []
    assert_same(run(place, told.append, **WAYS[way]), whole)
    if way != "error":  # what a trial was stopped in is tried again
        assert dict(counted) == once
    assert not place.exists()
    stages = {step.stage for step in told}
    assert "resume" in stages
    assert "collect" not in stages
    units = [s for s in told if s.stage == "choose" or (s.stage == "rebuild" and s.settled)]
    assert all("taken from" in step.detail for step in units)


def stopped_at(place: Path, stage: str, number: int, **how: Any) -> list[Path]:
    """Leave a journal behind that was stopped at step `number` of a stage; return its units."""

    def on_step(step: entrim.ProgressEvent) -> None:
        if (step.stage, step.done) == (stage, number):
            raise StopError

    with pytest.raises(StopError):
        run(place, on_step, **how)
    return sorted(place.glob("*.safetensors"))


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the layers whose moments are collected, a list for each time."""
    seen: list[list[str]] = []
    real = capture.capture

    def watched(task: Any, readers: Any, *rest: Any) -> None:
        if readers:
            seen.append([reader.site.layer for reader in readers])
        real(task, readers, *rest)

    monkeypatch.setattr(deciding, "capture", watched)
    return seen


def test_only_what_is_not_finished_is_collected(tmp_path: Path, collected: list[list[str]]) -> None:
    place, how = tmp_path / "journal", WAYS["eps"] | {"resamples": 0}
    stopped_at(place, "choose", 1, **how)
    run(place, **how)
    assert collected == [["2", "5"], ["5"]]


class Meeting(nn.Module):
    """Two layers that a third one reads, one of them read by a fourth too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(32, 6), nn.Linear(32, 6)
        self.both, self.one = nn.Linear(12, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a(x.flatten(1)).relu(), self.b(x.flatten(1)).relu()
        return self.both(torch.cat([a, b], 1)) + self.one(b)


def test_a_refit_collects_its_own_layers_only(collected: list[list[str]]) -> None:
    run(None, model=Meeting().eval(), widths={"a": 3}, mode="independent")
    assert collected == [["both"]]


def test_what_is_drawn_does_not_depend_on_how_much_is_collected_at_once() -> None:
    steps: list[entrim.ProgressEvent] = []
    passes = run(None, steps.append, **WAYS["eps"], memory_limit=6_000)
    assert_same(passes, run(None, **WAYS["eps"]))
    assert {step.total for step in steps if step.stage == "collect"} == {6}
    other = run(None, **WAYS["eps"], generator=torch.Generator().manual_seed(2))
    assert passes.record.groups != other.record.groups


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "swap"])
def test_a_damaged_unit_is_found_again(tmp_path: Path, harm: str) -> None:
    place, how = tmp_path / "journal", WAYS["budget"]
    whole = run(None, **how)
    units = stopped_at(place, "rebuild", 1, **how)
    assert len(units) == 5
    contents = [unit.read_bytes() for unit in units]
    for unit, content, next_ in zip(units, contents, [*contents[1:], b""], strict=True):
        flipped = content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]
        unit.write_bytes({"flip": flipped, "cut": content[:-5], "empty": b"", "swap": next_}[harm])
    told: list[entrim.ProgressEvent] = []
    assert_same(run(place, told.append, **how), whole)
    assert not any("taken from" in step.detail for step in told)


def test_without_its_head_a_journal_is_still_trusted_by_unit(tmp_path: Path) -> None:
    place, how = tmp_path / "journal", WAYS["widths"]
    stopped_at(place, "choose", 2, **how)
    (place / "run.json").write_text("{")
    other = {**how, "widths": {"*": 0.7}}
    assert_same(run(place, **other), run(None, **other))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": network(1)}, "network"),
        ({"images": images(1)}, "images"),
        ({"images": images()[:100]}, "images"),
        ({"widths": {"*": 0.6}}, "settings"),
        ({"generator": torch.Generator().manual_seed(2)}, "seed"),
        ({"example": images()[:3]}, "images"),
    ],
)
def test_another_run_is_refused_and_the_journal_is_left(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    place, how = tmp_path / "journal", WAYS["widths"]
    units = stopped_at(place, "choose", 2, **how)
    with pytest.raises(OtherRunError, match=rf"another run \({said} differ\): go on as in"):
        run(place, **{**how, **change})
    assert sorted(file for file in place.iterdir() if file in units) == units
    assert_same(run(place, **how), run(None, **how))


def test_another_version_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, how = tmp_path / "journal", WAYS["widths"]
    stopped_at(place, "choose", 2, **how)
    monkeypatch.setattr("entrim.recording.version", lambda name: f"{name} 0")
    with pytest.raises(OtherRunError, match="versions differ"):
        run(place, **how)


def test_the_same_images_in_batches_are_the_same_run(tmp_path: Path) -> None:
    place, how = tmp_path / "journal", WAYS["widths"]
    stopped_at(place, "choose", 2, **how)
    told: list[entrim.ProgressEvent] = []
    batches = [(part, torch.zeros(len(part))) for part in images().split(40)]
    assert_same(run(place, told.append, images=batches, **how), run(None, **how))
    assert "resume" in [step.stage for step in told]


def test_a_refused_run_and_one_that_finished_nothing_leave_no_journal(tmp_path: Path) -> None:
    place = tmp_path / "journal"
    with pytest.raises(BudgetError):
        run(place, budget=entrim.Budget(params=3))
    assert not place.exists()
    units = stopped_at(place, "collect", 1, **WAYS["eps"])
    assert not units
    assert not place.exists()


def test_a_folder_of_something_else_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "holiday.txt").write_text("sun")
    for place in (tmp_path, tmp_path / "holiday.txt"):
        with pytest.raises(CheckpointError, match="something else than a journal"):
            run(place)
    assert [entry.name for entry in tmp_path.iterdir()] == ["holiday.txt"]


def test_a_journal_serves_one_run_at_a_time(tmp_path: Path) -> None:
    journal = CheckpointStore(folder=tmp_path / "journal")
    with journal.open({"who": "me"}), pytest.raises(CheckpointError, match="another process"):
        run(tmp_path / "journal")


def test_a_journal_that_cannot_be_written_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Mock(side_effect=OSError(28, "No space left on device"))
    place, how, whole = tmp_path / "journal", WAYS["widths"], run(None, **WAYS["widths"])
    units = stopped_at(place, "choose", 1, **how)
    with monkeypatch.context() as patch:
        patch.setattr("entrim.storage.checkpoint.atomic.write", full)
        with pytest.raises(SaveError, match=r"No space left.*make room"):
            run(place, **how)
    assert sorted(place.glob("*.safetensors")) == units
    assert_same(run(place, **how), whole)
