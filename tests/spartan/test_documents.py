"""The page of SPARTAn: its example runs, its links exist, its figure is up to date."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "spartan.md"


def test_the_example_of_the_page_runs_with_the_documented_output():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 1
    run = subprocess.run([sys.executable, "-c", blocks[0]], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == re.findall(r"# -> (.*)", blocks[0])


def test_the_links_of_the_page_exist():
    links = re.findall(r"\]\((?!http)([^)#]+)", PAGE.read_text())
    assert "boxes.svg" in links
    assert all((PAGE.parent / link).exists() for link in links), links


def test_the_figure_shows_the_boxes_of_the_two_true_features(tmp_path):
    drawing = tmp_path / "boxes.svg"
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / "boxes.py", drawing], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert "features [70, 220] of 300; converged" in run.stdout
    named = re.findall(r">feature (\d+): ", drawing.read_text())
    assert named == ["70", "220"]
    assert named == re.findall(r">feature (\d+): ", (PAGE.parent / "boxes.svg").read_text())
