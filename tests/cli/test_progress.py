"""The progress display: one line per stage, on a terminal and in a log."""

import io

import pytest

from entrim.callbacks import ProgressEvent
from entrim.cli import console
from entrim.cli.console import ProgressDisplay


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a clock that is set by hand."""
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    return now


def step(done: int, total: int, stage: str = "sensitivity", **more: str | bool) -> ProgressEvent:
    return ProgressEvent(stage=stage, name=f"conv{done}", done=done, total=total, **more)  # pyright: ignore[reportArgumentType]


def lines(stream: io.StringIO) -> list[str]:
    """Return every line that a terminal showed, also overwritten ones."""
    return [line for line in stream.getvalue().replace("\r\x1b[K", "\n").split("\n") if line]


@pytest.mark.parametrize(
    ("pace", "expected"),
    [(0.01, "less than a second left"), (2.0, "8 s left"), (100.0, "7 min left")],
)
def test_time_left_is_shown_from_the_second_step_on(
    clock: list[float], pace: float, expected: str
) -> None:
    progress = ProgressDisplay(stream := Terminal())
    for done in range(1, 7):
        clock[0] += 1000.0 if done == 1 else pace  # the time before the stage does not count
        progress.on_step(step(done, 6))
    first, second, *_, last = lines(stream)
    assert "1/6  conv1" in first
    assert f"2/6  {expected}" in second
    assert "left" not in last


def test_time_left_of_the_event_has_priority(clock: list[float]) -> None:
    progress = ProgressDisplay(stream := Terminal())
    progress.on_step(
        ProgressEvent(stage="search", name="trial 1", done=1, total=9, seconds_left=41.7)
    )
    assert "1/9  42 s left  trial 1" in lines(stream)[0]


def test_repeated_stage_restarts_the_estimate(clock: list[float]) -> None:
    progress = ProgressDisplay(stream := Terminal())
    for done, now in ((1, 0.0), (2, 50.0), (1, 90.0), (2, 91.0)):
        clock[0] = now
        progress.on_step(step(done, 3, "collect"))
    assert "2/3  50 s left" in lines(stream)[1]
    assert "2/3  1 s left" in lines(stream)[3]


def test_bars_of_all_stages_are_aligned() -> None:
    progress = ProgressDisplay(stream := Terminal())
    for stage in ("trace", "allocate", "sensitivity", "reconstruct", "fine-tune"):
        progress.on_step(step(1, 1, stage))
    assert all(f"{line.split(' █')[0].strip()} " in line for line in lines(stream))
    assert len({line.index("█") for line in lines(stream)}) == 1


def test_final_steps_and_unfinished_stages_keep_their_lines() -> None:
    progress = ProgressDisplay(stream := Terminal())
    progress.on_step(step(1, 3, "reconstruct", detail="error 2%", is_final=True))
    progress.on_step(step(1, 1, "prune"))
    kept = [line.rpartition("\r\x1b[K")[2] for line in stream.getvalue().split("\n")]
    assert kept[0].split() == ["conv1", "error", "2%"]
    assert kept[1].startswith("reconstruct ")
    assert kept[2].startswith("prune ")


@pytest.mark.parametrize(("every", "expected"), [(3600.0, ["3"]), (0.0, ["1", "2", "3"])])
def test_log_contains_some_steps_and_the_last(every: float, expected: list[str]) -> None:
    progress = ProgressDisplay(stream := io.StringIO(), every=every)
    for done in (1, 2, 3):
        progress.on_step(step(done, 3, "train"))
    assert [line.split()[1] for line in lines(stream)] == expected


def test_log_contains_every_stage() -> None:
    with ProgressDisplay(stream := io.StringIO()) as progress:
        for done in (1, 2):
            progress.on_step(step(done, 9, "reconstruct"))
        progress.on_step(step(1, 1, "prune"))
        progress.on_step(step(5, 9, "distill", detail="stopped early"))
    assert lines(stream) == [
        "reconstruct: 2 of 9",
        "prune: 1 of 1",
        "distill: 5 of 9  stopped early",
    ]


@pytest.mark.parametrize("stream_type", [io.StringIO, Terminal])
def test_headings_separate_several_runs(stream_type: type[io.StringIO]) -> None:
    progress = ProgressDisplay(stream := stream_type())
    for name in ("as in the paper", "random channels"):
        progress.print_heading(name)
        progress.on_step(step(1, 2, "trace"))
    heads = [k for k, line in enumerate(lines(stream)) if line.endswith(":")]
    assert [lines(stream)[k] for k in heads] == ["as in the paper:", "random channels:"]
    assert heads == [0, 2]
