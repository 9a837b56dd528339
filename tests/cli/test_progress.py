"""Progress: one line a stage on a terminal and in a log, with times as people tell them."""

import io

import pytest

from entrim.cli import console as showing
from entrim.cli.console import Progress
from entrim.records import ProgressEvent


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time, which only stands still."""
    now = [0.0]
    monkeypatch.setattr(showing.time, "monotonic", lambda: now[0])
    return now


def step(done: int, total: int, stage: str = "sense", **more: str | bool) -> ProgressEvent:
    return ProgressEvent(stage=stage, name=f"conv{done}", done=done, total=total, **more)  # pyright: ignore[reportArgumentType]


def lines(stream: io.StringIO) -> list[str]:
    """Return every line that a terminal showed, also those that were written over."""
    return [line for line in stream.getvalue().replace("\r\x1b[K", "\n").split("\n") if line]


@pytest.mark.parametrize(
    ("pace", "told"),
    [(0.01, "less than a second left"), (2.0, "8 s left"), (100.0, "7 min left")],
)
def test_the_time_left_is_told_from_the_second_step_on(
    clock: list[float], pace: float, told: str
) -> None:
    progress = Progress(stream := Terminal())
    for done in range(1, 7):
        clock[0] += 1000.0 if done == 1 else pace  # what was before the stage does not count
        progress(step(done, 6))
    first, second, *_, last = lines(stream)
    assert "1/6  conv1" in first
    assert f"2/6  {told}" in second
    assert "left" not in last


def test_what_the_run_knows_of_the_time_left_is_believed(clock: list[float]) -> None:
    progress = Progress(stream := Terminal())
    progress(ProgressEvent(stage="search", name="trial 1", done=1, total=9, seconds_left=41.7))
    assert "1/9  42 s left  trial 1" in lines(stream)[0]


def test_a_stage_that_begins_again_is_timed_anew(clock: list[float]) -> None:
    progress = Progress(stream := Terminal())
    for done, now in ((1, 0.0), (2, 50.0), (1, 90.0), (2, 91.0)):
        clock[0] = now
        progress(step(done, 3, "collect"))
    assert "2/3  50 s left" in lines(stream)[1]
    assert "2/3  1 s left" in lines(stream)[3]


def test_no_stage_touches_its_bar() -> None:
    progress = Progress(stream := Terminal())
    for stage in ("trace", "allocate", "fine tune"):
        progress(step(1, 1, stage))
    assert all(f"{line.split(' █')[0].strip()} " in line for line in lines(stream))
    assert len({line.index("█") for line in lines(stream)}) == 1


def test_what_is_settled_stays_above_the_line_and_a_stage_that_ends_early_stays_too() -> None:
    progress = Progress(stream := Terminal())
    progress(step(1, 3, "rebuild", detail="error 2%", settled=True))
    progress(step(1, 1, "cut"))
    kept = [line.rpartition("\r\x1b[K")[2] for line in stream.getvalue().split("\n")]
    assert kept[0].split() == ["conv1", "error", "2%"]
    assert kept[1].startswith("rebuild ")
    assert kept[2].startswith("cut ")


@pytest.mark.parametrize(("every", "told"), [(3600.0, ["3"]), (0.0, ["1", "2", "3"])])
def test_a_log_gets_a_line_now_and_then_and_always_the_last(every: float, told: list[str]) -> None:
    progress = Progress(stream := io.StringIO(), every=every)
    for done in (1, 2, 3):
        progress(step(done, 3, "train"))
    assert [line.split()[1] for line in lines(stream)] == told


def test_a_log_holds_a_line_for_every_stage_also_where_one_ends_before_its_total() -> None:
    with Progress(stream := io.StringIO()) as progress:
        for done in (1, 2):
            progress(step(done, 9, "rebuild"))
        progress(step(1, 1, "cut"))
        progress(step(5, 9, "distill", detail="stopped early"))
    assert lines(stream) == ["rebuild: 2 of 9", "cut: 1 of 1", "distill: 5 of 9  stopped early"]


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_steps_are_told_under_the_name_of_what_they_belong_to(kind: type[io.StringIO]) -> None:
    progress = Progress(stream := kind())
    for name in ("as in the paper", "random channels"):
        progress.head(name)
        progress(step(1, 2, "trace"))
    heads = [k for k, line in enumerate(lines(stream)) if line.endswith(":")]
    assert [lines(stream)[k] for k in heads] == ["as in the paper:", "random channels:"]
    assert heads == [0, 2]
