"""Conventions of all commands: help, results on stdout, JSON, exit codes, plain text."""

import json
import re
import subprocess
import sys

import pytest

import entrim
from entrim.cli.completion import commands_of
from entrim.cli.console import EXAMPLES
from entrim.cli.main import COMMANDS, parser
from tests.cli.conftest import ROOT, Command, CommandResult

NAMES = [module.__name__.rpartition(".")[2] for module in COMMANDS]
CUT = ("nets.py:small", "--weights", "w.pt", "--images", "x.npy")
WORKS = {
    "inspect": ("nets.py:small", "--shape", "1,8,8"),
    "sparsify": (*CUT, "--width", "0.5", "--force", "--out", "usual"),
    "search": (*CUT, "--metric", "nets.py:fewer", "--trials", "2", "--pick", "1", "--out", "tried"),
    "distill": ("pruned", "--epochs", "1", "--force", "--out", "learned"),
    "export": ("pruned", "--torchexport", "pruned.pt2", "--force"),
    "report": ("pruned",),
    "compare": ("pruned", "pruned"),
    "collect": (*CUT, "--holdout", "0", "--force", "--out", "one.safetensors"),
    "merge": ("all.safetensors", "--force", "--out", "merged.safetensors"),
    "completion": ("bash",),
}
"""Arguments with which every command succeeds; the slow demo is executed once for all tests."""
FAILS = {
    "demo": ("--out", "nets.py"),
    "inspect": ("nets.py:broken", "--shape", "1,8,8"),
    "sparsify": ("nets.py:small", "--images", "gone", "--out", "never"),
    "search": (*CUT, "--out", "never"),
    "distill": ("gone", "--out", "never"),
    "export": ("gone", "--torchexport", "never.pt2"),
    "report": ("gone",),
    "compare": ("gone",),
    "collect": (*CUT, "--out", "never.safetensors"),
    "merge": ("all.safetensors", "gone", "--out", "never.safetensors"),
}
"""Valid arguments that are refused; `completion` fails only if its package is missing."""


def is_plain(text: str) -> bool:
    """Whether a text has no control characters except line ends."""
    return all(letter.isprintable() or letter == "\n" for letter in text)


def test_every_command_is_covered() -> None:
    assert {"demo", *WORKS} == {*FAILS, "completion"} == set(NAMES)


def test_module_is_executable() -> None:
    words = [sys.executable, "-m", "entrim", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == f"entrim {entrim.__version__}\n"


def test_help_lists_exit_codes_and_commands(command: Command) -> None:
    done = command("--help")
    assert done.code == 0
    assert "Exit codes: 0 success; 1 refused" in done.out
    for name in NAMES:
        assert re.search(rf"^    {name}\b", done.out, re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_help_of_every_command_has_examples(command: Command, name: str) -> None:
    done = command(name, "--help")
    assert (done.code, done.err) == (0, "")
    assert f"examples:\n  entrim {name}" in done.out
    assert "--json" in done.out
    assert "--debug" in done.out


@pytest.mark.usefixtures("pruned", "part")
@pytest.mark.parametrize("name", WORKS)
def test_results_are_plain_text_on_stdout(command: Command, name: str) -> None:
    done = command(name, *WORKS[name])
    assert done.code == 0, done.err
    assert done.out.strip()
    assert is_plain(done.out.replace("\t", ""))  # shell scripts may contain tabs
    assert is_plain(done.err)


@pytest.mark.usefixtures("pruned", "part")
@pytest.mark.parametrize("name", WORKS)
def test_stdout_is_pure_json(command: Command, name: str) -> None:
    done = command(name, *WORKS[name], "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)
    assert is_plain(done.err)


def test_demo_follows_the_conventions(demo_result: CommandResult) -> None:
    assert demo_result.code == 0, demo_result.err
    assert json.loads(demo_result.out)
    assert "train: 30 of 30" in demo_result.err
    assert is_plain(demo_result.err)


@pytest.mark.parametrize("name", FAILS)
def test_refusals_exit_with_1_and_one_sentence(command: Command, name: str) -> None:
    done = command(name, *FAILS[name])
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines()[-1].startswith("entrim: ")
    assert "Traceback" not in done.err


@pytest.mark.parametrize("name", NAMES)
def test_wrong_usage_is_one_line_and_exits_with_2(command: Command, name: str) -> None:
    for words in ((), WORKS.get(name, ())):
        done = command(name, *words, "--no-such-option")
        assert (done.code, done.out) == (2, "")
        (line,) = done.err.splitlines()
        assert line.startswith(f"entrim {name}: error: ")
        assert line.endswith(f": see entrim {name} --help")


def test_no_arguments_print_the_help(command: Command) -> None:
    done = command()
    assert (done.code, done.out) == (2, "")
    assert done.err == command("--help").out


@pytest.mark.parametrize("name", NAMES)
def test_documentation_describes_every_option(name: str) -> None:
    described = set(re.findall(r"--[a-z][a-z0-9-]*", (ROOT / "docs/command-line.md").read_text()))
    inner = next(found[name] for action in parser()._actions if (found := commands_of(action)))
    options = {option for option in inner._option_string_actions if option.startswith("--")}
    assert not options - described


@pytest.mark.parametrize("name", NAMES)
def test_every_argument_has_a_help_text_of_at_most_80_columns(name: str) -> None:
    inner = next(found[name] for action in parser()._actions if (found := commands_of(action)))
    assert [action.dest for action in inner._actions if not action.help] == []
    above = inner.format_help().partition(EXAMPLES)[0]
    assert max(len(line) for line in above.splitlines() if "{" not in line) <= 80
