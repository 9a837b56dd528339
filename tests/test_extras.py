"""Extras and dependency groups are named correctly in documents and errors."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.test_documents import DOCUMENTS, ROOT, name_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
GROUPS: dict[str, list[str]] = PROJECT["dependency-groups"]
CALL = re.compile(r'MissingExtraError\([^()]*?"([a-z -]+)",\s*"([a-z]+)"\s*\)')
PACKAGE = re.compile(r'MissingPackageError\([^()]*?"([a-z-]+)"\s*\)')


def names_of(requirements: list[str]) -> set[str]:
    """Return the packages in some requirements."""
    return {re.split(r"[<>=\[]", requirement)[0] for requirement in requirements}


def test_the_quick_start_lists_every_extra_with_its_packages() -> None:
    page = (ROOT / "docs/quick-start.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE)
    assert {extra for extra, _ in rows} == EXTRAS.keys()
    before: set[str] = set()
    for extra, packages in rows:
        named = set(packages.lower().split(", "))
        if "the same" in named:
            named = named - {"the same"} | before
        assert named == names_of(EXTRAS[extra]), extra
        before = named


@pytest.mark.parametrize("page", [*DOCUMENTS, *ROOT.glob("docs/reference/*.rst")], ids=name_of)
def test_an_install_command_works_in_the_checkout_and_names_an_extra(page: Path) -> None:
    for line in re.findall(r"pip install [^\n`]*", page.read_text()):
        (extras,) = re.findall(r'^pip install "\.\[([a-z,]+)\]"', line)
        assert set(extras.split(",")) <= EXTRAS.keys(), line
        assert set(re.findall(r"--group (\w+)", line)) <= GROUPS.keys(), line


def test_errors_name_packages_of_their_extra() -> None:
    sources = "".join(file.read_text() for file in (ROOT / "src").rglob("*.py"))
    calls = CALL.findall(sources)
    assert len(calls) >= 7
    for packages, extra in calls:
        assert set(packages.split()) <= names_of(EXTRAS[extra]), (packages, extra)


def test_errors_of_the_experiments_name_packages_of_their_group() -> None:
    sources = "".join(file.read_text() for file in (ROOT / "experiments").rglob("*.py"))
    calls = PACKAGE.findall(sources)
    assert len(calls) >= 4
    assert set(calls) <= names_of(GROUPS["experiments"])
