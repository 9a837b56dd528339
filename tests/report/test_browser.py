"""The report in a real browser."""

import json
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import entrim
from entrim.report.assessment import next_steps
from entrim.report.page import write
from entrim.report.report_data import read
from tests.report.runs import (
    HOSTILE,
    images,
    network,
    save_budget_run,
    save_penalty_run,
    visible_text,
)

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is not installed: apt install chromium"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(save_penalty_run(tmp_path_factory.mktemp("browser") / "run"))


def browse(page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    profile = page.parent / "profile"
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--disable-background-networking", "--enable-logging=stderr", f"--user-data-dir={profile}",
        *options, page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


PHONE = """<!doctype html><iframe src="{}" style="border:0;width:390px;height:900px"></iframe>
<script>
onload = () => {
  const page = document.querySelector("iframe").contentDocument;
  const seen = [...page.querySelectorAll("svg text")].filter(t => t.getClientRects().length);
  const size = t => parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a;
  const wide = e => e.scrollWidth - e.clientWidth;
  document.body.innerText = "found" + JSON.stringify({
    texts: seen.length, least: Math.min(...seen.map(size)), page: wide(page.documentElement),
    refits: Math.max(...[...page.querySelectorAll("#refits .scroll")].map(wide)),
    captions: [...page.querySelectorAll("caption")].map(c => c.getBoundingClientRect().right),
  }) + "end";
};
</script>"""


def open_on_a_phone(page: Path) -> dict[str, Any]:
    """Return the smallest text of a page of 390 pixels, and how much does not fit."""
    opened = page.with_name("open.html")
    opened.write_text(page.read_text().replace("<details>", "<details open>"))
    frame = page.with_name("phone.html")
    frame.write_text(PHONE.replace("{}", opened.name, 1))
    done = browse(frame, "--allow-file-access-from-files", "--dump-dom")
    return json.loads(unescape(done.stdout.rpartition("found")[2].partition("end")[0]))


def test_report_is_readable_on_a_phone(page: Path, tmp_path: Path) -> None:
    for one in (page, write(save_budget_run(tmp_path / "run"))):
        found = open_on_a_phone(one)
        assert found["texts"] > 8
        assert found["least"] >= 11
        assert found["page"] <= 0
        assert found["refits"] <= 0
        assert max(found["captions"]) <= 390


def test_browser_reports_no_errors_and_hostile_names_are_text(page: Path) -> None:
    done = browse(page, "--dump-dom")
    assert "CONSOLE" not in done.stderr
    assert "<img" not in done.stdout
    assert done.stdout.count("<script") == 1
    assert escape(HOSTILE, quote=False) in done.stdout
    assert done.stdout.count("<svg") >= 8


USE = """<!doctype html><iframe src="{}" style="border:0;width:1200px;height:3000px"></iframe>
<script>
onload = () => {
  const page = document.querySelector("iframe").contentDocument;
  const view = page.defaultView;
  const plot = page.querySelector(".plot");
  const shown = () => [...plot.querySelectorAll("svg")].filter((c) => c.getClientRects().length);
  const text = () => page.querySelector(".details").innerText;
  const found = { before: text(), charts: [shown()[0].getAttribute("aria-label")] };
  const spot = shown()[0].querySelector('[data-point="0"]').getBoundingClientRect();
  shown()[0].dispatchEvent(new view.PointerEvent("pointermove", { clientX: spot.left }));
  found.hovered = text();
  plot.dispatchEvent(new view.KeyboardEvent("keydown", { key: "ArrowLeft", bubbles: true }));
  found.moved = text();
  for (const kind of ["macs", "bytes"]) {
    plot.querySelector(`[value=${kind}]`).click();
    found.charts.push(shown()[0].getAttribute("aria-label"), shown().length);
  }
  found.widths = page.querySelectorAll(".widths li").length;
  found.copied = [];
  const clipboard = { writeText: (line) => found.copied.push(line) };
  Object.defineProperty(view.navigator, "clipboard", { value: clipboard });
  for (const button of page.querySelectorAll("button.copy")) button.click();
  found.buttons = [...page.querySelectorAll("button.copy")].every((b) => b.offsetWidth > 0);
  document.body.innerText = "found" + JSON.stringify(found) + "end";
};
</script>"""


def test_points_of_the_chart_show_their_sizes_and_commands(tmp_path: Path) -> None:
    folder = save_budget_run(tmp_path / "run")
    page = write(folder)
    frame = page.with_name("use.html")
    frame.write_text(USE.replace("{}", page.name, 1))
    done = browse(frame, "--allow-file-access-from-files", "--dump-dom")
    found = json.loads(unescape(done.stdout.rpartition("found")[2].partition("end")[0]))
    points = read(folder).record.tradeoff
    at = next(k for k, point in enumerate(points) if point.selected)
    for key, number in (("before", at), ("hovered", 0), ("moved", 1)):
        assert f"Budget(params={points[number].params})" in found[key]
        assert f"{points[number].widths[0]} of 24" in found[key]
    sizes = [label for label in found["charts"] if isinstance(label, str)]
    assert [label.split(";")[0].split()[-1] for label in sizes] == ["parameters", "MACs", "bytes"]
    assert found["charts"][2::2] == [1, 1]  # one chart is shown at a time
    assert found["widths"] == len(read(folder).record.groups)
    assert found["buttons"]
    steps = [step.code for step in next_steps(read(folder)) if step.code is not None]
    assert any("\n" in code for code in steps)
    assert found["copied"][: len(steps)] == steps


def test_details_are_readable_without_the_script(tmp_path: Path) -> None:
    folder = save_budget_run(tmp_path / "run")
    page = write(folder)
    page.write_text(re.sub("<script>.*?</script>", "", page.read_text(), flags=re.DOTALL))
    text = visible_text(browse(page, "--dump-dom").stdout)
    point = next(point for point in read(folder).record.tradeoff if point.selected)
    assert f"Budget(params={point.params})" in text
    assert f"{point.widths[0]} of 24" in " ".join(text.split())


NOTEBOOK = """<!doctype html><style>td {{ padding: 9px; color: rgb(1, 2, 3) }}</style>
<table><tr><td id="other">cell</td></tr></table>{}<script>
const style = getComputedStyle(document.getElementById("other"));
document.body.innerText = `found${{style.padding}} ${{style.color}} ${{style.textAlign}}end`;
</script>"""


def test_result_in_a_notebook_does_not_restyle_the_page(tmp_path: Path) -> None:
    result = entrim.sparsify(network(), images(), entrim.Budget(params=0.5))
    shown = []
    for part in ("", result._repr_html_() + result.plot()._repr_html_()):
        page = tmp_path / "notebook.html"
        page.write_text(NOTEBOOK.format(part))
        done = browse(page, "--dump-dom")
        shown.append(done.stdout.rpartition("found")[2].partition("end")[0])
    assert shown == ["9px rgb(1, 2, 3) start"] * 2


def test_charts_are_drawn(page: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs Pillow: pip install pillow")
    shot = page.with_name("shot.png")
    browse(page, f"--screenshot={shot}", "--window-size=1200,3200")
    with image.open(shot) as opened:
        pixels = np.asarray(opened.convert("RGB")).reshape(-1, 3).astype(int)
    # ribbon and bars: kept channels are strong, removed ones pale; see the colors in style.css
    for color, least in (((0x3F, 0x4F, 0xD1), 4_000), ((0xD9, 0xDC, 0xF3), 40_000)):
        assert int((abs(pixels - color).max(1) < 6).sum()) > least
