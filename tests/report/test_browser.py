"""The report in a real browser."""

import shutil
import subprocess
from html import escape
from pathlib import Path

import numpy as np
import pytest

from entrim.report import write
from tests.report.runs import HOSTILE, by_eps

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is not installed: apt install chromium"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(by_eps(tmp_path_factory.mktemp("browser") / "run"))


def browse(page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    profile = page.parent / "profile"
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--disable-background-networking", "--enable-logging=stderr", f"--user-data-dir={profile}",
        *options, page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def test_nothing_is_complained_about_and_a_hostile_name_stays_text(page: Path) -> None:
    done = browse(page, "--dump-dom")
    assert "CONSOLE" not in done.stderr
    assert "<img" not in done.stdout
    assert "<script" not in done.stdout
    assert escape(HOSTILE, quote=False) in done.stdout
    assert done.stdout.count("<svg") >= 8


def test_the_charts_are_really_drawn(page: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs Pillow: pip install pillow")
    shot = page.with_name("shot.png")
    browse(page, f"--screenshot={shot}", "--window-size=1200,2000")
    with image.open(shot) as opened:
        pixels = np.asarray(opened.convert("RGB")).reshape(-1, 3).astype(int)
    # ribbon and bars: what stays is strong, what went is pale; see the colours in style.css
    for colour, least in (((0x3F, 0x4F, 0xD1), 4_000), ((0xD9, 0xDC, 0xF3), 40_000)):
        assert int((abs(pixels - colour).max(1) < 6).sum()) > least
