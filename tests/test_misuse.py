"""Arguments of the wrong kind, as a user without a type checker hands them over."""

import subprocess
import sys

import pytest

SETTING = "import torch, entrim; x = torch.eye(8); m = entrim.Moments.of(x, x[:, :2])\n"
SETTING += (
    "net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))\n"
)
MISUSES = {
    'entrim.Moments.of("rows", x)': "BadRowsError: inputs are no rows",
    "entrim.Moments.of(x, x, block=2.0)": "BadRowsError: block is 2.0",
    "entrim.solve([x, x])": "BadRowsError: solving starts from moments",
    "entrim.solve_for(m, channels=2.5)": "BadSettingError: channels is 2.5",
    'entrim.select(m, channels=2.5, method="greedy")': "BadSettingError: channels is 2.5",
    "entrim.refit(m, [0.5])": "BadSettingError: kept must list",
    "entrim.refit(m, torch.ones(8) > 0)": "BadSettingError: kept must list",
    "entrim.trace(3, x)": "TraceError: this is a int: hand over a torch.nn.Module",
    'entrim.apply_plan(net, {"0": [1]}, x)': "PlanError: this is a dict: hand over entrim.Plan",
    "entrim.sparsify(net, 7)": "BadImagesError: the images are a int: hand over a tensor",
    "entrim.sparsify(3, x)": "TraceError: this is a int: hand over a torch.nn.Module",
    "entrim.sparsify(net, x, positions=2.5)": "BadSettingError: positions is 2.5",
    'entrim.sparsify(net, x, eps={"*": (1e-3,)})': "BadSettingError: eps of '*' is (0.001,)",
    "entrim.sparsify(net, x, widths=0.5)": "BadSettingError: widths is 0.5: hand over a dict",
    "entrim.sparsify(net, x, eps=(-1e-3, 1e-3))": "BadSettingError: eps is (-0.001, 0.001)",
    'entrim.sparsify(net, x, widths={"0": "2"})': "BadSettingError: the width of 0 is '2'",
    "entrim.sparsify(net, x, budget=0.5)": "BadSettingError: budget is 0.5: hand over entrim.Budg",
    'entrim.Budget(params="half")': "BadSettingError: params is 'half': hand over the fraction",
    'entrim.Budget(latency="5ms")': "BadSettingError: latency is '5ms': hand over seconds, above 0",
    "entrim.distill(net, x)": "BadSettingError: this is a Sequential: hand over what entrim.spars",
    "entrim.distill(entrim.Sparsified(model=net, plan=None, record=None, original=None), "
    "torch.rand(40, 8))": "BadSettingError: the teacher is a NoneType: pass teacher=, the network",
    "entrim.trace(net, torch.ones(2, 5))": "TraceError: torch.export cannot follow Sequential",
}


@pytest.fixture(scope="module")
def answers() -> list[str]:
    """Return what entrim says to each misuse, in a process without shape checks."""
    code = SETTING + "".join(
        f"try:\n    {misuse}\nexcept Exception as e:\n    print(type(e).__name__, e, sep=': ')\n"
        f"else:\n    print('accepted')\n"
        for misuse in MISUSES
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


@pytest.mark.parametrize(("number", "expected"), list(enumerate(MISUSES.values())))
def test_a_misuse_is_refused_in_one_sentence(answers: list[str], number: int, expected: str):
    assert len(answers) == len(MISUSES)
    assert answers[number].startswith(expected)
