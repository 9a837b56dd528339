"""The optional extras: the documents and the errors name what there is to install."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.test_documents import DOCUMENTS, ROOT, name_of

EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]
OURS = {"bench", "dev", "docs"}
"""Those that work on entrim itself needs."""
CALL = re.compile(r'MissingExtraError\([^()]*?"([a-z -]+)",\s*"([a-z]+)"\s*\)')


def packages_of(extra: str) -> set[str]:
    """Return the packages of an extra, those of the extras inside it too."""
    found = set()
    for line in EXTRAS[extra]:
        name, inner = re.match(r"([\w-]+)(?:\[([\w,]+)\])?", line).groups()  # pyright: ignore[reportOptionalMemberAccess]
        found |= {name} if inner is None else set().union(*map(packages_of, inner.split(",")))
    return found


def test_the_quick_start_lists_every_extra_with_what_it_brings() -> None:
    page = (ROOT / "docs/quick-start.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE)
    assert {extra for extra, _ in rows} == EXTRAS.keys() - OURS
    before: set[str] = set()
    for extra, brings in rows:
        named = set(brings.lower().split(", "))
        if "the same" in named:
            named = named - {"the same"} | before
        assert named == packages_of(extra), extra
        before = named


@pytest.mark.parametrize("page", [*DOCUMENTS, *ROOT.glob("docs/reference/*.rst")], ids=name_of)
def test_an_install_command_works_in_the_checkout_and_names_an_extra(page: Path) -> None:
    for line in re.findall(r"pip install [^\n`]*", page.read_text()):
        (extras,) = re.findall(r'^pip install "\.\[([a-z,]+)\]"', line)
        assert set(extras.split(",")) <= EXTRAS.keys(), line


def test_errors_name_packages_that_their_extra_brings() -> None:
    sources = "".join(file.read_text() for file in (ROOT / "src").rglob("*.py"))
    calls = CALL.findall(sources)
    assert len(calls) >= 11
    for packages, extra in calls:
        assert set(packages.split()) <= packages_of(extra), (packages, extra)
