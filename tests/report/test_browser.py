"""The report in a real browser."""

import json
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from entrim.report.page import write
from tests.report.runs import HOSTILE, save_budget_run, save_penalty_run

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
    assert "<script" not in done.stdout
    assert escape(HOSTILE, quote=False) in done.stdout
    assert done.stdout.count("<svg") >= 8


def test_charts_are_drawn(page: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs Pillow: pip install pillow")
    shot = page.with_name("shot.png")
    browse(page, f"--screenshot={shot}", "--window-size=1200,2000")
    with image.open(shot) as opened:
        pixels = np.asarray(opened.convert("RGB")).reshape(-1, 3).astype(int)
    # ribbon and bars: kept channels are strong, removed ones pale; see the colors in style.css
    for color, least in (((0x3F, 0x4F, 0xD1), 4_000), ((0xD9, 0xDC, 0xF3), 40_000)):
        assert int((abs(pixels - color).max(1) < 6).sum()) > least
