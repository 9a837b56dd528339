"""Several sizes in one run: one sensitivity analysis, several runs, one comparison."""

import json
import re

import pytest

from entrim.report.report_data import read
from tests.cli.conftest import Command, assert_refused

WORDS = ("sparsify", "nets.py:fixed", "--images", "x.npy")


def test_several_sizes_are_runs_with_one_comparison(
    command: Command, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("sizes") / "runs"
    words = (*WORDS, "--macs", "60%,80%", "--out", str(place))
    done = command(*words)
    assert done.code == 0, done.err
    assert done.err.count("sensitivity: ") == 1
    for name, share in (("macs-60", 0.6), ("macs-80", 0.8)):
        data = read(place / name)
        assert data.record.after.macs <= share * data.record.before.macs
        assert data.command == ("entrim", *WORDS, "--macs", f"{share:.0%}", "--out", data.folder)
        assert (place / name / "report.html").exists()
        assert name in done.out
    assert done.out.splitlines()[-1].startswith(f"next: entrim export {place}/macs-60 ")
    page = (place / "compare.html").read_text()
    assert "Content-Security-Policy" in page
    assert not re.search("https?:|<script", page)
    assert_refused(command(*words), "--force")
    assert json.loads(command(*words, "--force", "--json").out)["comparison"].endswith(".html")


def test_comparison_is_written_as_a_page(
    command: Command, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("page")
    run, page = place / "run", place / "page.html"
    assert command(*WORDS, "--width", "0.5", "--out", str(run)).code == 0
    done = command("compare", str(run), "--html", str(page))
    assert done.code == 0, done.err
    assert str(page) in done.out
    assert "<h1>1 network</h1>" in page.read_text()
    assert_refused(command("compare", str(run), "--html", str(page)), "--force")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--macs", "50%,60%", "--params", "50%,60%"), "pass several for one of them"),
        (("--macs", "50%,50%"), "contains a size twice"),
        (("--macs", "50%,60%", "--recover"), "take one size"),
    ],
)
def test_wrong_sizes_are_refused(
    command: Command,
    options: tuple[str, ...],
    expected: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    place = tmp_path_factory.mktemp("refused") / "out"
    assert_refused(command(*WORDS, *options, "--out", str(place)), expected)


def test_number_that_is_probably_a_percentage_is_refused(command: Command) -> None:
    done = command(*WORDS, "--macs", "50", "--out", "never")
    assert done.code == 2
    assert "write 50% for a fraction" in done.err
