"""Images and settings that cannot work are refused, or warned about, with the remedy."""

import re
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
        ([], "there are no images: hand over a few hundred"),
        (torch.zeros(0, 3, 8, 8), "hold [0] images"),
        (with_nan(), "1 of 40 images hold NaN or infinity, the first is number 7: remove them"),
        (X[:1].expand(20, -1, -1, -1), "all 20 images are the same: hand over different ones"),
        ((X * 10).to(torch.uint8), "the images are torch.uint8: convert them to float"),
        ([X, images(4, 3, 6, 6)], "resize or crop them to one shape"),
        ([{"a": X}, {"b": X}], "the batches have different arguments"),
        ([{"a": 1.0}], "no tensor of images"),
        ([{"a": X, "b": X[:3]}], "hold [3, 40] images: hand over as many each"),
        ([3.0], "a batch is a single number"),
        (["photo.png"], "a batch is a str: hand over tensors"),
        ("photos/", "the images are a str: hand over a tensor"),
    ],
)
def test_images_that_cannot_work_are_refused(given: Any, sentence: str) -> None:
    with pytest.raises(BadImagesError, match=re.escape(sentence)):
        entrim.sparsify(chain(), given)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"preset": "best"}, "preset is 'best': choose one of None, 'paper'"),
        ({"mode": "fast"}, "mode is 'fast'"),
        ({"coupling": "sum"}, "coupling is 'sum': choose one of 'joint', 'max'"),
        ({"batchnorm": "drop"}, "batchnorm is 'drop'"),
        ({"selector": "best", "widths": {"*": 0.5}}, "selector is 'best'"),
        (
            {"selector": "greedy", "eps_w": -1e-4},
            'selector="greedy" chooses at given widths: pass widths=',
        ),
        ({"scores": {"0": [1.0] * 12}, "eps_w": -1e-4}, "scores choose at given widths"),
        (
            {"scores": {"0": [1.0] * 12}, "widths": {"0": 3}, "selector": "greedy"},
            "and no selector=",
        ),
        (
            {"scores": {"0": [1.0] * 5}, "widths": {"0": 3}},
            "the scores of 0 are 5 numbers: hand over one for each of its 12 channels",
        ),
        ({"scores": {"0": [float("nan")] * 12}, "widths": {"0": 3}}, "none of them NaN"),
        ({"scores": {"0": torch.ones(3, 4)}, "widths": {"0": 3}}, "have the shape (3, 4)"),
        ({"scores": {"9": [1.0]}, "widths": {"0": 3}}, "no group matches '9'"),
        ({"alternation": 1e-3}, "alternation= is a way to choose by eps"),
        ({"alternation": 1e-3, "widths": {"0": 3}}, "alternation= is a way to choose by eps"),
        ({"alternation": -1.0, "eps_w": -1e-4}, "fall is -1.0"),
        ({"round_to": 0}, "round_to is 0: hand over a whole number from 1"),
        ({"positions": 0}, "positions is 0"),
        ({"resamples": -1}, "resamples is -1"),
        ({"ridge": -1.0}, "ridge is -1.0"),
        ({"eps_w": 1e-3}, "eps_w is 0.001: it must be negative"),
        ({"eps": {"0": (-1e-3, -1e-3)}}, "eps_l2 is -0.001"),
        ({"refit": False}, 'mode="sequential" is a refit in order'),
        ({"layers": "conv9"}, "and the groups are 0, 3, 7"),
        ({"skip": ["nothing*"]}, "no group matches 'nothing*'"),
        ({"widths": {"0": 13}}, "the width of 0 is 13: hand over a whole number from 1 to 12"),
        ({"widths": {"0": 1.5}}, "the width of 0 is 1.5"),
        ({"widths": {"0": 0}}, "the width of 0 is 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadSettingError, match=re.escape(sentence)):
        entrim.sparsify(chain(), X, **options)


@pytest.mark.parametrize(("scale", "offset"), [(20.0, 50.0), (0.5, 0.0), (1.0, 3.0)])
def test_images_unlike_those_of_the_training_are_noticed(scale: float, offset: float) -> None:
    x = images(100, 3, 8, 8)
    with pytest.warns(CalibrationWarning, match="normalise the images as in the network's"):
        entrim.sparsify(chain(), scale * x + offset, widths={"0": 6})
    r = entrim.sparsify(chain(), x, widths={"0": 6})
    assert r.record.notes == ()


def test_too_few_images_are_noticed() -> None:
    with pytest.warns(CalibrationWarning, match="7 is refitted on 20 rows for 32 columns: hand"):
        r = entrim.sparsify(chain(), X[:20], widths={"3": 8})
    assert any("20 rows" in note for note in r.record.notes)


def test_a_network_without_channels_to_cut_is_refused() -> None:
    with pytest.raises(entrim.EntrimError, match="no convolution or Linear"):
        entrim.sparsify(nn.Sequential(nn.ReLU()), X)
