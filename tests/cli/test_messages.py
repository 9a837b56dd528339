"""Errors and warnings of the library name the options of the command."""

from pathlib import Path

import pytest

from entrim.cli.console import error_message, translate_options
from entrim.errors import BadSettingError, CommandError
from tests.cli.conftest import Command

INPUTS = ("nets.py:small", "--weights", "w.pt", "--images", "x.npy", "--out", "never")
SEARCH = ("search", *INPUTS, "--trials", "1")


KINDS = "are different kinds of targets: pass either a budget (--params,"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--params", "1%"), "or prune more groups (--include, --exclude)"),
        (
            ("--params", "50%", "--max-error", "1e-9", "--holdout", "0"),
            "--max-error 1e-09 contradicts the rest",
        ),
        (
            ("--agreement", "95%"),
            "--agreement 0.95 with --confidence 0.95 needs at least 59 hold-out images, but 24 of "
            "60 images are held out: hold out more with --holdout 59, or pass at least 148 images",
        ),
        (("--macs", "50%", "--confidence", "90%"), "--confidence belongs to --agreement"),
        (("--max-error", "-1"), "--max-error must be positive (a share of the variance), got -1.0"),
        (
            ("--selector", "greedy", "--eps-w", "-1e-4"),
            "the selector greedy selects at given widths: pass --width 0.5 or a budget such as "
            "--params 30%, or leave --selector out",
        ),
        (
            ("--order", "sequential", "--reconstruction", "solution", "--width", "0.5"),
            "--order sequential refits the layers: pass --reconstruction least_squares, or "
            "leave --order out",
        ),
        (
            ("--params", "50%", "--reconstruction", "solution"),
            "--reconstruction solution uses the weights of an entropic solution: pass --eps-w, or "
            "--width with --selector entropic; --no-reconstruction keeps the original weights",
        ),
        (("--width", "0.5", "--round-to", "0"), "--round-to must be a positive integer, got 0"),
        (("--ridge", "-1"), "--ridge must be 0 or positive, got -1.0"),
        (("--n-positions", "0"), "--n-positions must be a positive integer, got 0"),
        (("--n-bootstrap", "-1"), "--n-bootstrap must be 0 or positive, got -1"),
        (("--eps-w", "1"), "--eps-w must be negative, got 1.0"),
        (("--eps-w", "-1e-4", "--min-decrease", "-1"), "--min-decrease must be 0 or positive"),
        (("--seed", "-1"), "--seed must be a non-negative integer, got -1"),
    ],
)
def test_refused_settings_name_their_options(
    command: Command, words: tuple[str, ...], sentence: str
) -> None:
    done = command("sparsify", *INPUTS, *words)
    assert (done.code, done.out) == (1, "")
    assert sentence in done.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--params", "50%", "--width", "0.5"), f"--params and --width {KINDS}"),
        (("--latency", "1ms", "--eps-w", "-1e-4"), f"--latency and --eps-w {KINDS}"),
        (("--width", "0.5", "--eps", "0=-1e-4,1e-4"), f"--width and --eps {KINDS}"),
        (("--max-error", "0.1", "--preset", "paper"), f"--max-error and --preset {KINDS}"),
        (
            ("--macs", "50%", "--width", "0.5", "--eps-l2", "1e-4"),
            f"--macs, --width and --eps-l2 {KINDS}",
        ),
        (("--solver", "alternating"), "--solver belongs to a penalty: pass --eps-w or --preset"),
        (("--params", "50%", "--single-consumer"), "--single-consumer belongs to a penalty"),
        (("--round-to", "8"), "--round-to needs a target: pass a budget such as --params 30%"),
        (("--params", "50%", "--coupling", "max"), "--coupling is an option of the entropic"),
        (
            ("--no-reconstruction", "--ridge", "0", "--order", "independent"),
            "--no-reconstruction keeps the original weights: leave out --order and --ridge",
        ),
        (("--scores", "x.npy", "--selector", "greedy"), "--scores selects the channels itself"),
    ],
)
def test_contradictory_options_are_refused_before_any_work(
    command: Command, workshop: Path, words: tuple[str, ...], sentence: str
) -> None:
    done = command("sparsify", *INPUTS, *words)
    assert (done.code, done.out) == (1, "")
    (line,) = done.err.splitlines()
    assert sentence in line
    assert not (workshop / "never").exists()


def test_exhaustive_selection_names_the_selector_option(command: Command, workshop: Path) -> None:
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
        (("--metric", "nets.py:broken"), "correct --metric first"),
        (("--metric", "nets.py:more", "--exclude", "*"), "widen --include or --exclude"),
        (
            ("--metric", "nets.py:more", "--early-stop", "0.5"),
            "--early-stop must be at least 1",
        ),
        (
            ("--metric", "nets.py:more", "--early-stop", "0.5"),
            "1, or --no-early-stop to score all",
        ),
        (
            ("--metric", "nets.py:more", "--cost-range", "0%,0.1%", "--out", "narrow"),
            "widen --cost-range, --eps-w or --eps-l2",
        ),
    ],
)
def test_refused_search_names_its_options(
    command: Command, words: tuple[str, ...], sentence: str
) -> None:
    done = command(*SEARCH, *words)
    assert (done.code, done.out) == (1, "")
    assert sentence in done.err.splitlines()[-1]


@pytest.mark.usefixtures("pruned")
def test_refused_training_names_its_options(command: Command) -> None:
    done = command("distill", "pruned", "--holdout", "1", "--out", "never")
    assert "--holdout must be a fraction such as 0.1, got 1.0" in done.err.splitlines()[-1]
    done = command("distill", "pruned", "--count", "3", "--out", "never")
    assert "pass more images or another --holdout," in done.err.splitlines()[-1]


def test_warnings_name_options(command: Command) -> None:
    words = ("--width", "0.5", "--memory-limit", "500B", "--force", "--out", "unlimited")
    done = command("sparsify", *INPUTS[:-2], *words)
    assert done.code == 0, done.err
    (left, nothing) = (line for line in done.err.splitlines() if line.startswith("entrim: warning"))
    assert "exceed --memory-limit 500 bytes: 0; raise --memory-limit, or pool" in left
    assert nothing.endswith(
        "widen --include, --exclude or --width, raise --memory-limit, or allow several consumers "
        "(leave out --single-consumer and --preset paper)"
    )


def test_parameters_without_an_option_are_unchanged() -> None:
    message = 'leave widths= out, use method="greedy", raise memory_limit= or lower learning_rate'
    assert translate_options(message, {"--json"}) == message


def test_files_that_look_like_parameters_are_unchanged() -> None:
    options = {"--params", "--width", "--batch-size"}
    message = "params=0.3 holds another run, and batch_size is none of the runs in ./widths=0.5"
    assert error_message(CommandError(message), options) == message
    assert (
        translate_options("./params=0.3 and a/batch_size.npy", options)
        == "./params=0.3 and a/batch_size.npy"
    )
    assert error_message(BadSettingError("leave widths= out"), options) == "leave --width out"
