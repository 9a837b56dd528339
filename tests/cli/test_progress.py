"""The progress display: one line per stage, on a terminal and in a log."""

import io
import re

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
    """Return every line that a terminal showed, also overwritten ones, without styles."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    return [line.rstrip() for line in re.split("[\r\n]+", plain) if line.strip()]


def count_and_time(line: str) -> str:
    """Return the part of a line from the finished steps on, with single spaces."""
    found = re.search(r"\d+/\d+.*", line)
    assert found is not None
    return " ".join(found[0].split())


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.mark.parametrize(
    ("pace", "expected"), [(0.01, "1 s left"), (2.0, "8 s left"), (100.0, "7 min left")]
)
def test_time_left_is_shown_from_the_second_step_on(
    clock: list[float], pace: float, expected: str
) -> None:
    progress = ProgressDisplay(stream := Terminal(), refresh=0.0)
    for done in range(1, 7):
        clock[0] += 1000.0 if done == 1 else pace  # the time before the stage does not count
        progress.on_step(step(done, 6))
    shown = [count_and_time(line) for line in lines(stream)]
    assert "1/6 conv1" in shown
    assert f"2/6 {expected} conv2" in shown
    assert shown[-1] == "6/6 conv6"


def test_time_left_of_the_event_has_priority(clock: list[float]) -> None:
    progress = ProgressDisplay(stream := Terminal(), refresh=0.0)
    progress.on_step(
        ProgressEvent(stage="search", name="trial 1", done=1, total=9, seconds_left=41.7)
    )
    assert count_and_time(lines(stream)[-1]) == "1/9 42 s left trial 1"


def test_repeated_stage_restarts_the_estimate(clock: list[float]) -> None:
    progress = ProgressDisplay(stream := Terminal(), refresh=0.0)
    for done, now in ((1, 0.0), (2, 50.0), (1, 90.0), (2, 91.0)):
        clock[0] = now
        progress.on_step(step(done, 3, "collect"))
    shown = [count_and_time(line) for line in lines(stream)]
    assert shown.index("2/3 50 s left conv2") < shown.index("2/3 1 s left conv2")


def test_bar_is_updated_at_most_every_refresh_interval(clock: list[float]) -> None:
    progress = ProgressDisplay(stream := Terminal(), refresh=1.0)
    for done in range(1, 41):
        clock[0] += 0.1
        progress.on_step(step(done, 50))
    assert 4 <= len(lines(stream)) <= 6


def test_bars_of_all_stages_are_aligned() -> None:
    progress = ProgressDisplay(stream := Terminal())
    for stage in ("trace", "allocate", "sensitivity", "reconstruct", "fine-tune"):
        progress.on_step(step(1, 1, stage))
    assert {line.index("━") for line in lines(stream)} == {12}


def test_final_steps_and_unfinished_stages_keep_their_lines() -> None:
    progress = ProgressDisplay(stream := Terminal())
    progress.on_step(step(1, 3, "reconstruct", detail="error 2%", is_final=True))
    progress.on_step(step(1, 1, "prune"))
    first, *bars = lines(stream)
    assert first.split() == ["conv1", "error", "2%"]
    stages = [line.split()[0] for line in bars]
    assert stages == sorted(stages, reverse=True)  # reconstruct, then prune
    assert {"reconstruct", "prune"} == set(stages)


def test_lines_fit_into_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    with ProgressDisplay(stream := Terminal(), refresh=0.0) as progress:
        progress.on_step(step(1, 3, "reconstruct", detail="x" * 200, is_final=True))
    assert lines(stream)
    assert max(map(len, lines(stream))) <= 50


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colors_can_be_disabled(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    colors = re.compile(r"\x1b\[[0-9;]*3[0-9][0-9;]*m")
    for disabled in (False, True):
        if disabled:
            monkeypatch.setenv(variable, value)
        with ProgressDisplay(stream := Terminal(), refresh=0.0) as progress:
            progress.on_step(step(1, 3))
        assert lines(stream)
        assert bool(colors.search(stream.getvalue())) is not disabled


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"])
def test_log_has_no_escape_sequences(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "1")
    with ProgressDisplay(stream := io.StringIO()) as progress:
        progress.print_heading("random channels")
        progress.on_step(step(1, 1, "prune", detail="[bold]verified[/bold] :ok: " + "x" * 200))
    detail = "[bold]verified[/bold] :ok: " + "x" * 200
    assert stream.getvalue() == f"random channels:\nprune: 1 of 1  {detail}\n"


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
    assert heads[0] == 0
    assert heads[1] >= 2
