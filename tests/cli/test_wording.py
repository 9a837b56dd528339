"""Errors and warnings of the library name the options of the command that was given."""

from pathlib import Path

import pytest

from entrim.cli.console import in_options, sentence_of
from entrim.errors import BadSettingError, CommandError
from tests.cli.conftest import Command

CUT = ("nets.py:small", "--weights", "w.pt", "--images", "x.npy", "--out", "never")
SEARCH = ("search", *CUT, "--trials", "1")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--params", "50%", "--width", "0.5"), "decides on the widths itself: leave --width out"),
        (("--params", "50%", "--no-refit"), "leave --no-refit and the paper's preset out"),
        (("--params", "10"), "or let more groups be cut (--layers, --skip)"),
        (("--params", "50%", "--max-error", "1e-9"), "--max-error 1e-09 contradicts the rest"),
        (("--max-error", "-1"), "--max-error is -1.0: hand over a share of the variance, above 0"),
        (
            ("--selector", "greedy", "--eps-w", "-1e-4"),
            "--selector greedy chooses at given widths: pass --width 0.5 or a budget, such as "
            "--params 30%",
        ),
        (("--alternation", "1e-3"), "--alternation is a way to choose by eps: pass --eps-w and"),
        (
            ("--mode", "sequential", "--no-refit", "--width", "0.5"),
            "--mode sequential is a refit in order: leave --no-refit out, or pass --mode "
            "independent",
        ),
        (("--round-to", "0"), "--round-to is 0: hand over a whole number from 1"),
        (("--ridge", "-1"), "--ridge is -1.0: it must be 0 or positive"),
        (("--eps-w", "1"), "--eps-w is 1.0: it must be negative"),
    ],
)
def test_a_setting_that_is_refused_is_named_by_its_option(
    command: Command, words: tuple[str, ...], sentence: str
) -> None:
    done = command("sparsify", *CUT, *words)
    assert (done.code, done.out) == (1, "")
    assert sentence in done.err.splitlines()[-1]


def test_channels_too_many_for_every_subset_are_told_with_the_selector(
    command: Command, workshop: Path
) -> None:
    (workshop / "vast.py").write_text(
        "from torch import nn\n"
        "def net():\n"
        "    flat = nn.AdaptiveAvgPool2d(1), nn.Flatten()\n"
        "    return nn.Sequential(nn.Conv2d(1, 40, 3), nn.ReLU(), *flat, nn.Linear(40, 3))\n"
    )
    words = ("--images", "x.npy", "--width", "20", "--selector", "exhaustive", "--out", "never")
    done = command("sparsify", "vast.py:net", *words)
    assert done.err.splitlines()[-1].endswith(": use --selector greedy")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--metric", "nets.py:broken"), "--metric raised TypeError"),
        (("--metric", "nets.py:broken"), "mend --metric first"),
        (("--metric", "nets.py:more", "--skip", "*"), "widen --layers or --skip"),
        (("--metric", "nets.py:more", "--prune", "0.5"), "--prune is 0.5: hand over a factor"),
        (("--metric", "nets.py:more", "--prune", "0.5"), "from 1, or --no-prune to score all"),
        (
            ("--metric", "nets.py:more", "--between", "0%,0.1%", "--out", "narrow"),
            "widen --between, --eps-w or --eps-l2",
        ),
    ],
)
def test_a_search_that_is_refused_names_its_options(
    command: Command, words: tuple[str, ...], sentence: str
) -> None:
    done = command(*SEARCH, *words)
    assert (done.code, done.out) == (1, "")
    assert sentence in done.err.splitlines()[-1]


@pytest.mark.usefixtures("cut")
def test_a_training_that_is_refused_names_its_options(command: Command) -> None:
    done = command("distill", "cut", "--held-out", "1", "--out", "never")
    assert "--held-out is 1.0: it is a part of the images" in done.err.splitlines()[-1]
    done = command("distill", "cut", "--count", "3", "--out", "never")
    assert "hand over more, or another --held-out," in done.err.splitlines()[-1]


def test_a_warning_names_options_too(command: Command) -> None:
    words = ("--width", "0.5", "--memory-limit", "500B", "--force", "--out", "unlimited")
    done = command("sparsify", *CUT[:-2], *words)
    assert done.code == 0, done.err
    (left, nothing) = (line for line in done.err.splitlines() if line.startswith("entrim: warning"))
    assert "exceed --memory-limit 500 bytes: 0; raise --memory-limit, or pool" in left
    assert nothing.endswith(
        "widen --layers, --skip or --width, raise --memory-limit, or leave --preset paper out"
    )


def test_what_a_command_has_no_option_for_stays_as_the_library_says_it() -> None:
    said = 'leave widths= out, use method="greedy", raise memory_limit= or lower learning_rate'
    assert in_options(said, {"--json"}) == said


def test_files_that_look_like_a_keyword_are_named_as_they_are() -> None:
    options = {"--params", "--width", "--held-out"}
    said = "params=0.3 holds another run, and held_out is none of the runs in ./widths=0.5"
    assert sentence_of(CommandError(said), options) == said
    assert (
        in_options("./params=0.3 and a/held_out.npy", options) == "./params=0.3 and a/held_out.npy"
    )
    assert sentence_of(BadSettingError("leave widths= out"), options) == "leave --width out"
