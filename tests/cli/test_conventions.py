"""What all commands share: help, results apart from progress, JSON, exit codes, plain text."""

import json
import re
import subprocess
import sys

import pytest

import entrim
from entrim.cli.completion import commands_of
from entrim.cli.console import EXAMPLES
from entrim.cli.main import COMMANDS, parser
from tests.cli.conftest import Command, Ended

NAMES = [module.__name__.rpartition(".")[2] for module in COMMANDS]
CUT = ("nets.py:small", "--weights", "w.pt", "--images", "x.npy")
WORKS = {
    "inspect": ("nets.py:small", "--shape", "1,8,8"),
    "sparsify": (*CUT, "--width", "0.5", "--force", "--out", "usual"),
    "search": (*CUT, "--metric", "nets.py:fewer", "--trials", "2", "--pick", "1", "--out", "tried"),
    "distill": ("cut", "--epochs", "1", "--force", "--out", "learned"),
    "export": ("cut", "--torchexport", "cut.pt2", "--force"),
    "report": ("cut",),
    "compare": ("cut", "cut"),
    "completion": ("bash",),
}
"""Words that lead every command to its end; the demo, which takes long, is run once for all."""
FAILS = {
    "demo": ("--out", "nets.py"),
    "inspect": ("nets.py:broken", "--shape", "1,8,8"),
    "sparsify": ("nets.py:small", "--images", "gone", "--out", "never"),
    "search": (*CUT, "--out", "never"),
    "distill": ("gone", "--out", "never"),
    "export": ("gone", "--torchexport", "never.pt2"),
    "report": ("gone",),
    "compare": ("gone",),
}
"""Words that are understood and refused; `completion` fails only where its package is missing."""


def plain(text: str) -> bool:
    """Whether a file or pipe can take it: no colour, no control characters but the line end."""
    return all(letter.isprintable() or letter == "\n" for letter in text)


def test_every_command_is_held_to_the_conventions() -> None:
    assert {"demo", *WORKS} == {*FAILS, "completion"} == set(NAMES)


def test_the_module_is_a_program() -> None:
    words = [sys.executable, "-m", "entrim", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == f"entrim {entrim.__version__}\n"


def test_help_tells_the_exit_codes_and_every_command(command: Command) -> None:
    done = command("--help")
    assert done.code == 0
    assert "Exit codes: 0 done; 1 refused" in done.out
    for name in NAMES:
        assert re.search(rf"^    {name}\b", done.out, re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_every_command_helps_with_examples(command: Command, name: str) -> None:
    done = command(name, "--help")
    assert (done.code, done.err) == (0, "")
    assert f"examples:\n  entrim {name}" in done.out
    assert "--json" in done.out
    assert "--debug" in done.out


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("name", WORKS)
def test_a_result_goes_to_stdout_as_plain_text(command: Command, name: str) -> None:
    done = command(name, *WORKS[name])
    assert done.code == 0, done.err
    assert done.out.strip()
    assert plain(done.out.replace("\t", ""))  # the script for a shell may be indented by tabs
    assert plain(done.err)


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("name", WORKS)
def test_json_is_all_that_stdout_gets(command: Command, name: str) -> None:
    done = command(name, *WORKS[name], "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)
    assert plain(done.err)


def test_the_demo_keeps_to_the_same(shown: Ended) -> None:
    assert shown.code == 0, shown.err
    assert json.loads(shown.out)
    assert "train: 30 of 30" in shown.err
    assert plain(shown.err)


@pytest.mark.parametrize("name", FAILS)
def test_what_is_refused_ends_with_one_and_a_last_sentence(command: Command, name: str) -> None:
    done = command(name, *FAILS[name])
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines()[-1].startswith("entrim: ")
    assert "Traceback" not in done.err


@pytest.mark.parametrize("name", NAMES)
def test_wrong_usage_of_any_command_is_one_line_and_ends_with_two(
    command: Command, name: str
) -> None:
    for words in ((), WORKS.get(name, ())):
        done = command(name, *words, "--no-such-option")
        assert (done.code, done.out) == (2, "")
        (line,) = done.err.splitlines()
        assert line.startswith(f"entrim {name}: error: ")
        assert line.endswith(f": see entrim {name} --help")


def test_no_words_at_all_are_answered_with_the_help(command: Command) -> None:
    done = command()
    assert (done.code, done.out) == (2, "")
    assert done.err == command("--help").out


@pytest.mark.parametrize("name", NAMES)
def test_every_argument_has_a_help_text_and_no_description_is_wide(name: str) -> None:
    inner = next(found[name] for action in parser()._actions if (found := commands_of(action)))
    assert [action.dest for action in inner._actions if not action.help] == []
    above = inner.format_help().partition(EXAMPLES)[0]
    assert max(len(line) for line in above.splitlines() if "{" not in line) <= 80
