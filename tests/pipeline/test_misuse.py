"""Unusable images and options are refused, or reported in a warning, with a remedy."""

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import entrim
from entrim.errors import BadImagesError, BadSettingError, CalibrationWarning
from tests.pipeline.networks import chain, images

X = images(40, 3, 8, 8)


def with_nan() -> torch.Tensor:
    x = X.clone()
    x[7, 0, 0, 0] = torch.nan
    return x


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([], "there are no images: .* a few hundred"),
        (torch.zeros(0, 3, 8, 8), "there are no images"),
        (with_nan(), "1 of 40 images contain NaN or infinity, the first is number 7: remove them"),
        (X[:1].expand(20, -1, -1, -1), "all 20 images are the same: .* different ones"),
        ((X * 10).to(torch.uint8), "got torch.uint8: convert them to float"),
        ([X, images(4, 3, 6, 6)], "resize or crop them to one shape"),
        ([{"a": X}, {"b": X}], "the batches have different inputs"),
        ([{"a": 1.0}], "no tensor of images"),
        ([{"a": X, "b": X[:3]}], r"the inputs have \[3, 40\] images"),
        ([3.0], "got a single number"),
        (["photo.png"], "a batch must be a tensor .* got str"),
        ("photos/", "images must be a tensor .* got str"),
    ],
)
def test_unusable_images_are_refused(given: Any, sentence: str) -> None:
    with pytest.raises(BadImagesError, match=sentence):
        entrim.sparsify(chain(), given)


@pytest.mark.parametrize(
    ("create", "sentence"),
    [
        (lambda: entrim.Reconstruction(order="fast"), "order must be one of None, 'sequential'"),
        (lambda: entrim.Reconstruction(batchnorm="drop"), "batchnorm must be one of 'keep'"),
        (lambda: entrim.Reconstruction(weights="new"), "weights must be one of 'least_squares'"),
        (lambda: entrim.Reconstruction(ridge=-1.0), "ridge must be 0 or positive, got -1.0"),
        (
            lambda: entrim.Reconstruction(weights="solution", order="sequential"),
            'pass weights="least_squares", or leave the order out',
        ),
        (lambda: entrim.EntropicPenalty(coupling="sum"), "one of 'joint', 'max'; got 'sum'"),
        (lambda: entrim.EntropicSelector(coupling="sum"), "one of 'joint', 'max'; got 'sum'"),
        (lambda: entrim.EntropicPenalty(eps_w=1e-3), "eps_w must be negative, got 0.001"),
        (lambda: entrim.EntropicPenalty(eps_l2=-1e-3), "eps_l2 must be positive"),
        (lambda: entrim.EntropicPenalty(per_group={"0": (-1e-3, -1e-3)}), "must be positive"),
        (lambda: entrim.EntropicPenalty(min_decrease=-1.0), "must be 0 or positive, got -1.0"),
        (lambda: entrim.EntropicPenalty(round_to=0), "round_to must be a positive integer, got 0"),
        (lambda: entrim.Widths(0.5, round_to=0), "round_to must be a positive integer, got 0"),
        (lambda: entrim.Widths({}), "the widths are empty"),
        (lambda: entrim.Widths(True), "the width of '*' must be a fraction"),
        (lambda: entrim.Widths({"0": 1.5}), "the width of '0' must be a fraction above 0.0"),
        (lambda: entrim.Widths({"0": 0}), "or a positive integer, got 0"),
        (lambda: entrim.Calibration(n_positions=0), "n_positions must be a positive integer"),
        (lambda: entrim.Calibration(batch_size=0), "batch_size must be a positive integer"),
        (lambda: entrim.Calibration(memory_limit=0), "memory_limit must be a positive integer"),
        (lambda: entrim.Calibration(n_bootstrap=-1), "n_bootstrap must be 0 or positive, got -1"),
        (lambda: entrim.Scores({"0": torch.ones(3, 4)}), "got the shape (3, 4)"),
    ],
)
def test_invalid_configuration_values_are_refused_when_they_are_created(
    create: Callable[[], object], sentence: str
) -> None:
    with pytest.raises(BadSettingError, match=re.escape(sentence)):
        create()


HALF = entrim.Widths(0.5)
WEAK = entrim.EntropicPenalty()
SOLUTION = entrim.Reconstruction(weights="solution")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"selector": "no"}, "selector must be one of 'auto', 'entropic', 'greedy'"),
        ({"seed": -1}, "seed must be a non-negative integer, got -1"),
        (
            {"budget": WEAK, "selector": "lasso"},
            "the selector lasso selects at given widths: pass entrim.Widths(0.5) or a Budget",
        ),
        (
            {"budget": WEAK, "selector": entrim.Scores({"*": [1.0] * 12})},
            "the selector scores selects at given widths",
        ),
        (
            {"budget": entrim.Budget(params=0.5), "reconstruction": SOLUTION},
            'Reconstruction(weights="solution") uses the weights of an entropic solution: pass',
        ),
        ({"reconstruction": SOLUTION}, "reconstruction=None keeps the original weights"),
        (
            {"budget": HALF, "reconstruction": SOLUTION, "selector": "greedy"},
            "or Widths with the entropic selector",
        ),
        (
            {"budget": entrim.Widths({"0": 3}), "selector": entrim.Scores({"0": [1.0] * 5})},
            "the scores of 0 must be 12 numbers, one per channel",
        ),
        (
            {
                "budget": entrim.Widths({"0": 3}),
                "selector": entrim.Scores({"0": [float("nan")] * 12}),
            },
            "none of them NaN",
        ),
        (
            {"budget": entrim.Widths({"0": 3}), "selector": entrim.Scores({"9": [1.0]})},
            "no group matches '9'",
        ),
        (
            {"budget": HALF, "selector": entrim.Scores({"0": [1.0] * 12})},
            "there are no scores for the group 3: add them, or exclude the group",
        ),
        ({"include": "conv9"}, "the groups are 0, 3, 7"),
        ({"exclude": ["nothing*"]}, "no group matches 'nothing*'"),
        ({"budget": entrim.Widths({"8": 0.5})}, "no group matches '8'"),
        ({"budget": entrim.EntropicPenalty(per_group={"8": (-1.0, 1.0)})}, "no group matches '8'"),
        ({"budget": entrim.Widths({"0": 13})}, "the width of 0 must be at most 12, its number of"),
    ],
)
def test_options_that_contradict_each_other_are_refused_with_one_sentence(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadSettingError, match=re.escape(sentence)) as refused:
        entrim.sparsify(chain(), X, **options)
    message = str(refused.value)
    assert "\n" not in message
    assert not message.endswith(".")


SETUP = """import torch, entrim
net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
x = torch.randn(20, 8)
"""
WRONG_TYPES = {
    "entrim.sparsify(net, x, 0.5)": "the budget must be an entrim.Budget, entrim.Widths or",
    'entrim.sparsify(net, x, {"0": 3})': "the budget must be an entrim.Budget, entrim.Widths or",
    "entrim.Pruner(net, x).prune(0.5)": "the budget must be an entrim.Budget, entrim.Widths or",
    "entrim.sparsify(net, x, selector=3)": "selector must be a name or an object with",
    'entrim.sparsify(net, x, reconstruction="x")': "reconstruction must be an entrim.Rec",
    "entrim.sparsify(net, x, calibration={})": "calibration must be an entrim.Calibration,",
    "entrim.sparsify(net, x, calibration=None)": "calibration must be an entrim.Calibration, got",
    "entrim.sparsify(net, x, seed=0.5)": "seed must be a non-negative integer, got 0.5",
    "entrim.sparsify(net, x, callbacks=[print])": "a callback must be an entrim.Callback, got",
    "entrim.sparsify(net, x, callbacks=print)": "callbacks must be a list of entrim.Callback",
    "entrim.EntropicPenalty(per_group={'0': (-1e-3,)})": "per_group['0'] must be (eps_w, eps_l2)",
    "entrim.EntropicPenalty(per_group=[('0', 1)])": "per_group must be a dict {pattern: (eps_w,",
    "entrim.EntropicPenalty(eps_w='0')": "eps_w and eps_l2 must be numbers, got '0' and 0.0001",
    "entrim.Calibration(sensitivity=3)": "sensitivity must be callable, got int",
    "entrim.Calibration(batch_to_inputs=3)": "batch_to_inputs must be callable, got int",
    "entrim.Calibration(batch_size=2.5)": "batch_size must be a positive integer, got 2.5",
    "entrim.Scores([1.0])": "scores must be a dict {pattern: numbers}, got [1.0]",
    "entrim.Widths('half')": "the width of '*' must be a fraction above 0.0 and at most 1.0, or",
    "entrim.Budget(costs={'energy': 3.0})": "costs['energy'] must be a pair (cost, limit) of a",
    "entrim.Budget(costs={'params': (len, 1)})": "costs['params'] must be a pair (cost, limit)",
    "entrim.Budget(costs=[len])": "costs must be a dict {name: (cost, limit)}",
}


@pytest.fixture(scope="module")
def messages() -> dict[str, str]:
    """Return the error of each wrong call, in a process that does not check annotations."""
    code = SETUP + "".join(
        f"try:\n    {call}\nexcept Exception as e:\n    print(type(e).__name__, e, sep=': ')\n"
        f"else:\n    print('accepted')\n"
        for call in WRONG_TYPES
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return dict(zip(WRONG_TYPES, run.stdout.splitlines(), strict=True))


@pytest.mark.parametrize("call", WRONG_TYPES)
def test_values_of_wrong_types_are_refused_with_one_sentence(
    messages: dict[str, str], call: str
) -> None:
    assert messages[call].startswith(f"BadSettingError: {WRONG_TYPES[call]}")


def test_a_network_without_trained_weights_is_reported() -> None:
    model = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 2)).eval()
    with pytest.warns(CalibrationWarning, match="the network seems untrained, because its Batch"):
        entrim.sparsify(model, 20 * torch.randn(100, 8), entrim.Widths(0.5))


@pytest.mark.parametrize(("scale", "offset"), [(20.0, 50.0), (0.5, 0.0), (1.0, 3.0)])
def test_images_unlike_those_of_the_training_are_reported(scale: float, offset: float) -> None:
    x = images(100, 3, 8, 8)
    with pytest.warns(CalibrationWarning, match="the images as in the training"):
        entrim.sparsify(chain(), scale * x + offset, entrim.Widths({"0": 6}))
    calibration = entrim.Calibration(holdout=0)
    r = entrim.sparsify(chain(), x, entrim.Widths({"0": 6}), calibration=calibration)
    assert r.record.notes == ()


def test_too_few_images_are_reported() -> None:
    with pytest.warns(CalibrationWarning, match="7 is refitted on 20 rows for 32 columns: pass"):
        r = entrim.sparsify(
            chain(),
            X[:25],
            entrim.Widths({"3": 8}),
            reconstruction=entrim.Reconstruction(mixtures=0),
        )
    assert any("20 rows" in note for note in r.record.notes)


def test_a_network_without_prunable_channels_is_refused() -> None:
    with pytest.raises(entrim.EntrimError, match="no convolution or linear layer"):
        entrim.sparsify(nn.Sequential(nn.ReLU()), X)
