"""The public face: its names, its README, its wheel's typing marker."""

import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

import entrim

ROOT = Path(__file__).parent.parent


def test_every_public_name_exists_and_says_what_it_is():
    for name in entrim.__all__:
        assert (getattr(entrim, name).__doc__ or "").strip(), name


def test_the_package_is_typed():
    assert files("entrim").joinpath("py.typed").is_file()


def test_the_example_of_the_readme_runs_and_prints_what_it_says(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        run = subprocess.run(
            [sys.executable, "-c", block], capture_output=True, text=True, cwd=tmp_path
        )
        assert run.returncode == 0, run.stderr
        expected = re.findall(r"# -> (.*)", block)
        assert run.stdout.splitlines() == expected


def test_every_make_target_of_the_readme_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"^ {4}make ([a-z]+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert {"demo", "test"} <= named <= targets


def test_the_core_imports_without_any_extra():
    blocked = "import sys; sys.modules.update(dict.fromkeys(['scipy', 'sklearn', 'optuna']))"
    code = f"{blocked}; import entrim, torch; x = torch.eye(4); m = entrim.Moments.of(x, x)"
    run = subprocess.run(
        [sys.executable, "-c", f"{code}; print(entrim.solve(m).status.converged)"],
        capture_output=True,
        text=True,
    )
    assert run.stdout.strip() == "True", run.stderr


@pytest.mark.parametrize(
    "name", ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/decisions.md", "README.md"]
)
def test_links_between_documents_lead_somewhere(name):
    folder = (ROOT / name).parent
    links = re.findall(r"\]\((?!http)([^)#]+)", (ROOT / name).read_text())
    assert all((folder / link).exists() for link in links), links
