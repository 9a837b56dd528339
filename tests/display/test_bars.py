"""The progress displays: one bar for the run in a terminal, lines in a log, one in a notebook."""

import io
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from entrim.callbacks import Progress, ProgressEvent
from entrim.display.bars import ProgressDisplay, make_display


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a clock that is set by hand."""
    now = [0.0]
    monkeypatch.setattr("entrim.display.bars.time.monotonic", lambda: now[0])
    return now


def step(done: int, total: int, stage: str = "sensitivity", **more: object) -> ProgressEvent:
    return ProgressEvent(stage=stage, name=f"conv{done}", done=done, total=total, **more)  # pyright: ignore[reportArgumentType]


def lines(stream: io.StringIO) -> list[str]:
    """Return every line that a terminal showed, also overwritten ones, without styles."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    return [line.rstrip() for line in re.split("[\r\n]+", plain) if line.strip()]


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm-256color")


def test_share_and_time_of_the_run_are_shown(clock: list[float]) -> None:
    display = ProgressDisplay(stream := Terminal(), refresh=0.0)
    display.on_run_begin("sparsify")
    clock[0] = 30.0
    display.on_step(step(3, 9, run_share=0.25, run_seconds_left=90))
    display.on_run_end("sparsify", 30.0)
    shown = [line for line in lines(stream) if "25%" in line]
    assert shown
    assert re.search(r"sparsify ━.* 25% 0:30, 90 s left sensitivity 3/9", shown[0])


def test_only_stage_of_a_run_is_its_progress(clock: list[float]) -> None:
    display = ProgressDisplay(stream := Terminal(), refresh=0.0)
    display.on_run_begin("search")
    display.on_step(step(1, 4, "search", seconds_left=41.7))
    display.on_run_end("search", 1.0)
    assert any("25% 0:00, 42 s left search 1/4" in line for line in lines(stream))


def test_bar_is_updated_at_most_every_refresh_interval(clock: list[float]) -> None:
    with ProgressDisplay(stream := Terminal(), refresh=1.0) as display:
        for done in range(1, 41):
            clock[0] += 0.1
            display.on_step(step(done, 50))
    assert 4 <= sum("━" in line for line in lines(stream)) <= 6


def test_every_stage_leaves_one_line(clock: list[float]) -> None:
    display = ProgressDisplay(stream := Terminal(), refresh=0.0)
    display.on_run_begin("sparsify")
    for stage in ("trace", "reconstruct"):
        for done in (1, 2):
            clock[0] += 1.5
            display.on_step(step(done, 2, stage, detail="19 groups", is_final=True))
    display.on_step(step(1, 9, "measure"))
    display.on_run_end("sparsify", 6.0)
    kept = [line.split() for line in lines(stream) if line[0] in "✓·"]
    assert kept == [
        ["✓", "trace", "3", "s", "2", "of", "2", "19", "groups"],
        ["✓", "reconstruct", "3", "s", "2", "of", "2", "19", "groups"],
        ["·", "measure", "0", "ms", "1", "of", "9"],
    ]


@pytest.mark.parametrize("stream_type", [io.StringIO, Terminal])
def test_verbose_display_has_a_line_for_every_layer(stream_type: type[io.StringIO]) -> None:
    for verbose in (False, True):
        with ProgressDisplay(stream := stream_type(), verbose=verbose) as display:
            for done in (1, 2, 3):
                display.on_step(step(done, 4, "reconstruct", detail="error 2 %", is_final=True))
        found = [line for line in lines(stream) if "conv1" in line and "━" not in line]
        assert len(found) == verbose


def test_events_outside_of_a_run_are_not_shown() -> None:
    display = ProgressDisplay(stream := Terminal())
    display.on_step(step(1, 2))
    assert stream.getvalue() == ""


def test_cursor_is_visible_after_an_error() -> None:
    progress = Progress.of([ProgressDisplay(stream := Terminal())])

    def stop() -> None:
        with progress.run("sparsify"), progress.stage("trace"):
            progress.step("trace", "Net", 1, 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    shown = stream.getvalue()
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def test_elapsed_time_advances_while_no_step_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("entrim.display.bars.TICK", 0.05)
    display = ProgressDisplay(stream := Terminal())
    display.on_run_begin("sparsify")
    before = len(stream.getvalue())
    time.sleep(0.4)
    after = len(stream.getvalue())
    display.on_run_end("sparsify", 0.4)
    assert after > before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_process_that_forks_during_a_run_does_not_hang() -> None:
    code = (
        "import os, sys\n"
        "from entrim.display import bars\n"
        "bars.TICK = 0.002\n"
        "class Terminal:\n"
        "    write, flush = sys.stderr.write, sys.stderr.flush\n"
        "    isatty = staticmethod(lambda: True)\n"
        "display = bars.ProgressDisplay(Terminal())\n"
        "display.on_run_begin('search')\n"
        "for _ in range(30):\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        display._draw()\n"
        "        os._exit(0)\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "display.on_run_end('search', 1.0)\n"
    )
    env = {**os.environ, "TERM": "xterm"}
    words = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(words, timeout=60, env=env, stderr=subprocess.DEVNULL)
    assert done.returncode == 0


def test_lines_fit_into_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    with ProgressDisplay(stream := Terminal(), refresh=0.0, verbose=True) as display:
        display.on_step(step(1, 3, "reconstruct", detail="x" * 200, is_final=True))
    assert lines(stream)
    assert max(map(len, lines(stream))) <= 50


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colors_can_be_disabled(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    colors = re.compile(r"\x1b\[[0-9;]*3[0-9][0-9;]*m")
    for disabled in (False, True):
        if disabled:
            monkeypatch.setenv(variable, value)
        with ProgressDisplay(stream := Terminal(), refresh=0.0) as display:
            display.on_step(step(1, 3))
        assert lines(stream)
        assert bool(colors.search(stream.getvalue())) is not disabled


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"])
def test_log_has_no_escape_sequences(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "1")
    with ProgressDisplay(stream := io.StringIO()) as display:
        display.print_heading("random channels")
        display.on_step(step(1, 1, "prune", detail="[bold]verified[/bold] :ok: " + "x" * 200))
    detail = "[bold]verified[/bold] :ok: " + "x" * 200
    assert stream.getvalue() == f"random channels:\nprune: 1 of 1  {detail}\n"


@pytest.mark.parametrize(("every", "expected"), [(3600.0, ["3"]), (0.0, ["1", "2", "3"])])
def test_log_contains_some_steps_and_the_last(every: float, expected: list[str]) -> None:
    with ProgressDisplay(stream := io.StringIO(), every=every) as display:
        for done in (1, 2, 3):
            display.on_step(step(done, 3, "train"))
    assert [line.split()[1] for line in lines(stream)] == expected


def test_log_contains_every_stage() -> None:
    with ProgressDisplay(stream := io.StringIO()) as display:
        for done in (1, 2):
            display.on_step(step(done, 9, "reconstruct"))
        display.on_step(step(1, 1, "prune"))
        display.on_step(step(5, 9, "distill", detail="stopped early"))
    assert lines(stream) == [
        "reconstruct: 2 of 9",
        "prune: 1 of 1",
        "distill: 5 of 9  stopped early",
    ]


@pytest.mark.parametrize("stream_type", [io.StringIO, Terminal])
def test_headings_separate_several_runs(stream_type: type[io.StringIO]) -> None:
    with ProgressDisplay(stream := stream_type()) as display:
        for name in ("as in the paper", "random channels"):
            display.print_heading(name)
            display.on_step(step(1, 2, "trace"))
    heads = [k for k, line in enumerate(lines(stream)) if line.endswith(":")]
    assert [lines(stream)[k] for k in heads] == ["as in the paper:", "random channels:"]
    assert heads[0] == 0
    assert heads[1] >= 2


def test_progress_is_shown_by_default_only_if_somebody_watches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert Progress.of(None, make_display).callbacks == ()
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert [type(one) for one in Progress.of(None, make_display).callbacks] == [ProgressDisplay]
    assert Progress.of((), make_display).callbacks == ()


TERMINAL = """
import torch, entrim
torch.manual_seed(0)
nn = torch.nn
net = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU())))
entrim.sparsify(net, torch.randn(400, 64), entrim.Budget(macs=0.6){})
print("finished")
"""


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed: apt install tmux")
@pytest.mark.parametrize(("options", "shown"), [("", True), (", callbacks=()", False)])
def test_run_shows_its_stages_in_a_terminal(tmp_path: Path, options: str, shown: bool) -> None:
    script, socket = tmp_path / "run.py", f"entrim{os.getpid()}"
    script.write_text(TERMINAL.format(options))
    tmux = ["tmux", "-L", socket]
    command = f"{sys.executable} -W ignore {script}; sleep 60"
    subprocess.run([*tmux, "new-session", "-d", "-x", "100", "-y", "40", command], check=True)
    try:
        screen = ""
        for _ in range(400):
            shot = subprocess.run([*tmux, "capture-pane", "-p"], capture_output=True, text=True)
            if "finished" in (screen := shot.stdout):
                break
            time.sleep(0.1)
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
    assert "finished" in screen
    stages = [line.split()[1] for line in screen.splitlines() if line.startswith("✓")]
    assert ("reconstruct" in stages) is shown
    assert "━" not in screen
