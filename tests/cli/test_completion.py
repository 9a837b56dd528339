"""The completion scripts, executed by the shells."""

import shutil
import subprocess
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

import pytest

from entrim.cli.completion import SHELLS, actions, commands_of, script_for
from entrim.cli.main import COMMANDS, main, parser

pytest.importorskip("shtab", reason="needs shtab: pip install shtab")
NAMES = {module.__name__.rpartition(".")[2] for module in COMMANDS}
ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
complete -p entrim > /dev/null && _shtab_entrim
printf '%s\n' "${COMPREPLY[@]}"
"""
Complete = Callable[..., set[str]]


def commands(full: ArgumentParser) -> dict[str, ArgumentParser]:
    return next(found for action in full._actions if (found := commands_of(action)))


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Complete:
    """Return a function that has bash complete the last of some words."""
    program = shutil.which("bash")
    if program is None:
        pytest.skip("bash is not installed")
    place = tmp_path_factory.mktemp("shell")
    (place / "entrim.bash").write_text(script_for("bash", parser()))
    (place / "nets.py").touch()
    (place / "runs").mkdir()

    def complete(*words: str) -> set[str]:
        line = [program, "--norc", "-c", ASK, "bash", "entrim.bash", "entrim", *words]
        done = subprocess.run(line, capture_output=True, text=True, cwd=place, timeout=60)
        assert done.stderr == ""
        return set(done.stdout.split())

    return complete


def test_bash_offers_every_command(bash: Complete) -> None:
    assert bash("") == NAMES
    assert bash("sp") == {"sparsify"}


def test_bash_offers_every_option_of_every_command(bash: Complete) -> None:
    full = parser()
    for name, inner in commands(full).items():
        known = {option for action in inner._actions for option in action.option_strings}
        assert bash(name, "--") == {option for option in known if option.startswith("--")}


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("completion", ""), set(SHELLS)),
        (("sparsify", "nets.py:small", "--order", ""), {"sequential", "independent"}),
        (("search", "nets.py:small", "--cost", "m"), {"macs"}),
        (("sparsify", "n"), {"nets.py"}),
        (("inspect", "m:f", "--weights", "n"), {"nets.py"}),
        (("report", ""), {"runs"}),
        (("distill", "runs", "--images", "r"), {"runs"}),
    ],
)
def test_bash_offers_choices_and_paths(
    bash: Complete, words: tuple[str, ...], offered: set[str]
) -> None:
    assert bash(*words) == offered


def test_new_options_are_completed() -> None:
    full = parser()
    commands(full)["report"].add_argument("--paint", choices=("red", "blue"))
    for shell in SHELLS:
        assert "paint" in script_for(shell, full)
        assert "paint" not in script_for(shell, parser())


def test_fish_offers_commands_options_and_choices(tmp_path: Path) -> None:
    program = shutil.which("fish")
    if program is None:
        pytest.skip("fish is not installed")
    (tmp_path / "entrim.fish").write_text(script_for("fish", parser()))

    def complete(line: str) -> set[str]:
        text = f"source entrim.fish; complete -C '{line}'"
        words = [program, "--no-config", "-c", text]
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=60)
        return {found.split("\t")[0] for found in done.stdout.splitlines()}

    assert complete("entrim ") == NAMES
    assert complete("entrim sparsify --order ") == {"sequential", "independent"}
    assert "--max-error" in complete("entrim sparsify --ma")


def test_zsh_loads_its_script(tmp_path: Path) -> None:
    program = shutil.which("zsh")
    if program is None:
        pytest.skip("zsh is not installed")
    (tmp_path / "_entrim").write_text(script_for("zsh", parser()))
    text = (
        f"fpath=({tmp_path} $fpath); autoload -Uz compinit && compinit -u -D; print $_comps[entrim]"
    )
    words = [program, "-f", "-c", text]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("_entrim\n", "")
    subprocess.run([program, "-n", tmp_path / "_entrim"], check=True, timeout=60)


def test_all_paths_are_completed() -> None:
    full = parser()
    script_for("bash", full)
    for action in actions(full):
        if action.metavar in ("FILE", "PATH", "DIR"):
            assert hasattr(action, "complete"), action


def test_missing_extra_is_named(
    uninstall: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    uninstall("shtab")
    assert main(["completion", "bash"]) == 1
    assert capsys.readouterr().err == (
        "entrim: shell completion needs shtab: pip install shtab, or in a checkout of entrim "
        'pip install ".[cli]"\n'
    )


def test_unknown_shell_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["completion", "cmd.exe"])
    assert stopped.value.code == 2
    assert "invalid choice: 'cmd.exe'" in capsys.readouterr().err
