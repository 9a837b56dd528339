"""Arguments of the wrong type, as passed by users without a type checker."""

import subprocess
import sys

import pytest

SETUP = """\
import torch, entrim
x = torch.eye(8)
m = entrim.Moments.of(x, x[:, :2])
net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
def result(original):
    return entrim.SparsifyResult(model=net, plan=None, record=None, original=original)
"""
MISUSES = {
    'entrim.Moments.of("rows", x)': "BadRowsError: inputs must be a tensor or array",
    "entrim.Moments.of(x, x, block=2.0)": "BadRowsError: block, the number of columns",
    "entrim.solve([x, x])": "BadRowsError: moments must be Moments",
    'entrim.solve(m, solver="fast")': "BadSettingError: solver must be one of 'mm', 'alternating'",
    "entrim.solve_k(m, k=2.5)": "BadSettingError: k must be an integer from 1 to 8",
    'entrim.select(m, k=2.5, method="greedy")': "BadSettingError: k must be an integer from 1",
    "entrim.refit(m, [0.5])": "BadSettingError: kept must list",
    "entrim.refit(m, torch.ones(8) > 0)": "BadSettingError: kept must list",
    "entrim.trace(3, x)": "TraceError: model must be a torch.nn.Module, got int",
    "entrim.trace(net, torch.ones(2, 5))": "TraceError: torch.export cannot trace Sequential",
    'entrim.apply_plan(net, {"0": [1]}, x)': "PlanError: plan must be an entrim.Plan, got dict",
    "entrim.sparsify(net, 7)": "BadImagesError: images must be a tensor",
    "entrim.sparsify(3, x)": "TraceError: model must be a torch.nn.Module, got int: create the ",
    'entrim.sparsify(net, "photos/")': "BadImagesError: images must be a tensor (images, channels",
    "entrim.sparsify(net, [object()])": "BadImagesError: a batch must be a tensor or a pair (imag",
    "entrim.sparsify(net, x, 0.5)": "BadSettingError: the budget must be an entrim.Budget",
    "entrim.Pruner(net, x).prune(0.5)": "BadSettingError: the budget must be an entrim.Budget",
    "entrim.sparsify(net, x, include=3)": "BadSettingError: patterns must be a string or a list",
    'entrim.sparsify(net, x, include="fc")': "BadSettingError: no group matches 'fc'",
    'entrim.sparsify(net, x, selector="best")': "BadSettingError: selector must be one of 'auto'",
    "entrim.sparsify(net, x, selector=3)": "BadSettingError: selector must be a name or an",
    "entrim.sparsify(net, x, seed=0.5)": "BadSettingError: seed must be a non-negative integer",
    "entrim.sparsify(net, x, callbacks=[print])": "BadSettingError: a callback must be an",
    "entrim.sparsify(net, x, reconstruction=False)": "BadSettingError: reconstruction must be an",
    "entrim.sparsify(net, x, calibration={})": "BadSettingError: calibration must be an",
    'entrim.sparsify(net, x, entrim.Widths({"0": 9}))': "BadSettingError: the width of 0 must be",
    'entrim.sparsify(net, x, selector=entrim.Scores({"0": [1]}))': "BadSettingError: the scores",
    "entrim.Calibration(n_positions=2.5)": "BadSettingError: n_positions must be a positive integ",
    "entrim.Calibration(sensitivity=3)": "BadSettingError: sensitivity must be callable, got int",
    'entrim.EntropicPenalty(eps_w="-1")': "BadSettingError: eps_w and eps_l2 must be numbers",
    'entrim.EntropicPenalty(min_decrease="3")': "BadSettingError: min_decrease must be a number",
    'entrim.EntropicPenalty(per_group={"*": (1e-3,)})': "BadSettingError: per_group['*'] must be",
    "entrim.EntropicPenalty(per_group=(-1e-3, 1e-3))": "BadSettingError: per_group must be a dict",
    'entrim.Widths({"0": "2"})': "BadSettingError: the width of '0' must be a fraction",
    "entrim.Widths({})": "BadSettingError: the widths are empty: pass a fraction",
    "entrim.Budget()": "BadSettingError: the budget is empty: pass params=",
    "entrim.Budget(0.5)": "BadSettingError: Budget(0.5) does not name its values: pass entrim.Bud",
    "entrim.Budget(flops=0.5)": "BadSettingError: Budget has no parameter flops=: pass macs=",
    "entrim.Calibration(batchsize=3)": "BadSettingError: Calibration has no parameter batchsize=",
    "entrim.sparsify(net, x, macs=0.5)": "BadSettingError: macs= is an option of entrim.Budget: pa",
    "entrim.Pruner(net, x, holdout=9)": "BadSettingError: holdout= is an option of entrim.Calibr",
    "entrim.sparsify(net, x, exclud='a')": "BadSettingError: there is no parameter exclud=: pass ",
    "entrim.sparsify(net, x[:1])": "BadImagesError: there is only one image: pass a few hundred",
    'entrim.Budget(params="half")': "BadSettingError: params must be a fraction above 0.0",
    'entrim.Budget(latency="5ms")': "BadSettingError: latency must be positive (seconds), got '5m",
    'entrim.Budget(costs={"energy": 3})': "BadSettingError: costs['energy'] must be a pair",
    'entrim.Reconstruction(weights="none")': "BadSettingError: weights must be one of 'least_squa",
    'entrim.Distillation(epochs="3")': "BadSettingError: epochs must be a positive integer",
    "entrim.distill(net, x)": "BadSettingError: this is a Sequential: pass the result of entrim.sp",
    "entrim.distill(result(net), torch.rand(40, 8), 3)": "BadSettingError: distillation is a int",
    "entrim.distill(result(None), torch.rand(40, 8))": "BadSettingError: the teacher is a NoneType",
    "entrim.search(net, x, 3)": "BadSettingError: score must be a function of the network",
    "entrim.search(net, x, len, penalty=0.5)": "BadSettingError: penalty is a float: pass entrim.",
    "entrim.search(net, x, len, layers='0')": "BadSettingError: search does not take layers",
    "entrim.search(net, x, len, cost_range=0.5)": "BadSettingError: cost_range must be (low, high)",
}


@pytest.fixture(scope="module")
def messages() -> list[str]:
    """Return the message for each misuse, from a process without shape checks."""
    code = SETUP + "".join(
        f"try:\n    {misuse}\nexcept Exception as e:\n    print(type(e).__name__, e, sep=': ')\n"
        f"else:\n    print('accepted')\n"
        for misuse in MISUSES
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


@pytest.mark.parametrize(("number", "expected"), list(enumerate(MISUSES.values())))
def test_misuse_is_refused_in_one_sentence(messages: list[str], number: int, expected: str):
    assert len(messages) == len(MISUSES)
    assert messages[number].startswith(expected)
