"""Options become the configuration values of the library."""

from typing import Any

import pytest

import entrim
from entrim.cli import search, sparsify
from entrim.cli.main import parser

SPARSIFY = ["sparsify", "nets.py:small", "--images", "x.npy", "--out", "small"]
SEARCH = ["search", "nets.py:small", "--images", "x.npy", "--out", "found"]
PENALTY = "--solver alternating --min-decrease 3e-3 --single-consumer --coupling max --round-to 8"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", {}),
        ("--params 30% --macs 2M", {"budget": entrim.Budget(params=0.3, macs=2_000_000)}),
        (
            "--bytes 1kB --latency 5ms --max-error 0.1 --round-to 4",
            {"budget": entrim.Budget(bytes=1000, latency=0.005, max_error=0.1, round_to=4)},
        ),
        (
            "--agreement 95% --confidence 0.9 --macs 50%",
            {"budget": entrim.Budget(macs=0.5, agreement=0.95, confidence=0.9)},
        ),
        (
            "--holdout 20% --outputs values",
            {"calibration": entrim.Calibration(holdout=0.2, outputs="values")},
        ),
        (
            "--preset paper --holdout 30",
            {
                **entrim.paper_preset(),
                "calibration": entrim.Calibration(holdout=30, n_positions=None),
            },
        ),
        ("--holdout 0", {"calibration": entrim.Calibration(holdout=0)}),
        ("--width 0.5", {"budget": entrim.Widths(0.5)}),
        (
            "--width conv*=0.5 --width fc=8 --round-to 4 --coupling max",
            {
                "budget": entrim.Widths({"conv*": 0.5, "fc": 8}, round_to=4),
                "selector": entrim.EntropicSelector("max"),
            },
        ),
        (
            "--params 30% --selector entropic --coupling max",
            {"budget": entrim.Budget(params=0.3), "selector": entrim.EntropicSelector("max")},
        ),
        (
            "--params 30% --selector lasso",
            {"budget": entrim.Budget(params=0.3), "selector": "lasso"},
        ),
        (
            f"--eps-w=-1e-3 --eps fc=-1e-2,1e-2 {PENALTY}",
            {
                "budget": entrim.EntropicPenalty(
                    eps_w=-1e-3,
                    per_group={"fc": (-1e-2, 1e-2)},
                    solver="alternating",
                    min_decrease=3e-3,
                    single_consumer=True,
                    coupling="max",
                    round_to=8,
                )
            },
        ),
        ("--preset paper", entrim.paper_preset()),
        (
            "--preset paper --eps-w=-1e-3 --eps-l2 1e-2 --solver alternating",
            entrim.paper_preset(-1e-3, 1e-2, solver="alternating"),
        ),
        (
            "--preset paper --reconstruction least_squares --ridge 0",
            {**entrim.paper_preset(), "reconstruction": entrim.Reconstruction(ridge=0.0)},
        ),
        ("--no-reconstruction", {"reconstruction": None}),
        (
            "--width 0.5 --reconstruction solution",
            {
                "budget": entrim.Widths(0.5),
                "reconstruction": entrim.Reconstruction(weights="solution"),
            },
        ),
        (
            "--order independent --ridge 0 --no-residual-correction --no-mirror "
            "--mixtures 0 --batchnorm reestimate",
            {
                "reconstruction": entrim.Reconstruction(
                    order="independent",
                    ridge=0.0,
                    residual_correction=False,
                    mirror=False,
                    mixtures=0,
                    batchnorm="reestimate",
                )
            },
        ),
        (
            "--include a --include b --exclude c",
            {"include": ["a", "b"], "exclude": ["c"]},
        ),
        (
            "--n-positions 3 --n-bootstrap 2 --memory-limit 1GB --seed 5",
            {
                "calibration": entrim.Calibration(n_positions=3, n_bootstrap=2, memory_limit=10**9),
                "seed": 5,
            },
        ),
    ],
)
def test_options_of_sparsify(words: str, expected: dict[str, Any]) -> None:
    args = parser().parse_args([*SPARSIFY, *words.split()])
    assert sparsify.options_of(args) == {"seed": 0, **expected}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", {}),
        (
            "--trials 9 --timeout 1min --cost macs --cost-range 10%,0.4 --no-early-stop",
            {
                "trials": 9,
                "timeout": 60.0,
                "cost": "macs",
                "cost_range": (0.1, 0.4),
                "early_stop": None,
            },
        ),
        ("--part early=a,b --part c", {"patterns": {"early": ["a", "b"], "c": ["c"]}}),
        (
            f"{PENALTY} --early-stop 3",
            {
                "penalty": entrim.EntropicPenalty(
                    solver="alternating",
                    min_decrease=3e-3,
                    single_consumer=True,
                    coupling="max",
                    round_to=8,
                ),
                "early_stop": 3.0,
            },
        ),
        (
            "--preset paper",
            {
                "penalty": entrim.EntropicPenalty(single_consumer=True),
                "reconstruction": entrim.Reconstruction(weights="solution"),
                "calibration": entrim.Calibration(holdout=0, n_positions=None),
            },
        ),
    ],
)
def test_options_of_search(words: str, expected: dict[str, Any]) -> None:
    args = parser().parse_args([*SEARCH, *words.split()])
    default = {"seed": 0, "penalty": entrim.EntropicPenalty()}
    assert search.options_of(args) == {**default, **expected}
