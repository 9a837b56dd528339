"""Figures on unseen images, and their confidence intervals."""

import math

import pytest
import torch
from torch import Tensor, nn

from entrim.errors import BadSettingError
from entrim.metrics import (
    CONFIDENCE,
    Comparison,
    Kind,
    compare,
    images_needed,
    lower_bound,
    min_images,
    output_kinds,
)

G = torch.Generator().manual_seed(0)
LOGITS = torch.randn(40, 5, generator=G)
MAPS = torch.randn(40, 3, 4, 6, generator=G)


def shares(agreed: int, images: int) -> Tensor:
    return torch.tensor([1.0] * agreed + [0.0] * (images - agreed), dtype=torch.float64)


def binomial_tail(agreed: int, images: int, p: float) -> float:
    terms = (
        math.comb(images, k) * p**k * (1 - p) ** (images - k) for k in range(agreed, images + 1)
    )
    return math.fsum(terms)


def compared(found: Tensor, reference: Tensor, *kinds: Kind) -> Comparison:
    """Return the comparison in two batches of different sizes."""
    result = Comparison(kinds or output_kinds([reference], len(reference)))
    for part in (slice(0, 15), slice(15, None)):
        result.add([found[part]], [reference[part]], len(reference[part]))
    return result


# The exact bound


@pytest.mark.parametrize(
    ("agreed", "images"), [(59, 59), (196, 200), (30, 50), (1, 20), (499, 500)]
)
def test_the_lower_bound_solves_the_binomial_tail(agreed: int, images: int) -> None:
    low = lower_bound(shares(agreed, images), 0.95)
    assert binomial_tail(agreed, images, low) == pytest.approx(0.05, rel=1e-6)
    assert low < agreed / images


def test_known_numbers_of_images() -> None:
    assert lower_bound(shares(59, 59), 0.95) >= 0.95 > lower_bound(shares(58, 58), 0.95)
    assert lower_bound(shares(196, 200), 0.95) >= 0.95 > lower_bound(shares(195, 200), 0.95)
    assert lower_bound(shares(0, 10), 0.95) == 0
    assert min_images(0.95, 0.95) == images_needed(1.0, 0.95, 0.95) == 59
    assert images_needed(0.95, 0.95, 0.95) is None
    needed = images_needed(0.98, 0.95, 0.95)
    assert needed is not None
    assert lower_bound(shares(math.floor(0.98 * needed), needed), 0.95) >= 0.95


@pytest.mark.parametrize("p", [0.5, 0.9, 0.97])
@pytest.mark.parametrize("images", [50, 200])
def test_the_exact_bound_covers_a_known_share(p: float, images: int) -> None:
    bounds = torch.tensor([lower_bound(shares(k, images), 0.95) for k in range(images + 1)])
    probability = [math.comb(images, k) * p**k * (1 - p) ** (images - k) for k in range(images + 1)]
    exact = math.fsum(q for q, low in zip(probability, bounds.tolist(), strict=True) if low <= p)
    assert exact >= 0.95
    drawn = torch.rand(2000, images, generator=torch.Generator().manual_seed(1)) < p
    covered = (bounds[drawn.sum(1)] <= p).double().mean()
    assert float(covered) == pytest.approx(exact, abs=0.015)


def test_the_bound_of_shares_between_0_and_1_is_valid_and_milder_than_the_exact_one() -> None:
    generator = torch.Generator().manual_seed(2)
    mean, covered = 0.8, 0
    for _ in range(300):
        beta = torch.rand(60, 4, generator=generator, dtype=torch.float64) < mean
        covered += lower_bound(beta.double().mean(1), 0.95) <= mean
    assert covered >= 0.95 * 300
    almost = shares(45, 50)
    almost[0] = 0.999
    assert lower_bound(almost, 0.95) < lower_bound(shares(45, 50), 0.95)


# What the outputs are


def test_kinds_are_recognized() -> None:
    softmax, maps = LOGITS.softmax(1), MAPS.softmax(1)
    outputs = [LOGITS, softmax, MAPS, maps, LOGITS[:, :1], LOGITS.argmax(1), LOGITS[:7]]
    expected = ("logits", "probabilities", "values", "probabilities", "values", "values", "values")
    assert output_kinds(outputs, 40) == expected
    assert output_kinds([softmax.half()], 40) == ("probabilities",)
    assert output_kinds([LOGITS, MAPS], 40, "values") == ("values", "values")
    assert output_kinds([LOGITS, MAPS], 40, ("auto", "logits")) == ("logits", "logits")


def test_kinds_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadSettingError, match=r"output 1 .* cannot be logits: .* shape \(40,\)"):
        output_kinds([LOGITS, LOGITS[:, 0]], 40, "logits")
    with pytest.raises(BadSettingError, match="2 kinds, but the network has 1 outputs"):
        output_kinds([LOGITS], 40, ("logits", "values"))


# Figures


def test_equal_outputs_agree_completely() -> None:
    found = compared(LOGITS, LOGITS)
    agreement, divergence, error = found.agreement(), found.divergence(), found.error()
    assert agreement is not None
    assert divergence is not None
    assert error is not None
    assert (agreement.value, agreement.high) == (1, 1)
    assert agreement.low == pytest.approx(((1 - CONFIDENCE) / 2) ** (1 / 40))
    assert divergence.value == error.value == divergence.high == error.high == 0


def test_figures_of_logits_are_those_of_their_definitions() -> None:
    other = LOGITS + 0.7 * torch.randn(40, 5, generator=torch.Generator().manual_seed(3))
    found = compared(other, LOGITS)
    agreement, divergence, error = found.agreement(), found.divergence(), found.error()
    assert agreement is not None
    assert divergence is not None
    assert error is not None
    assert agreement.value == float((other.argmax(1) == LOGITS.argmax(1)).double().mean())
    p, q = LOGITS.double().softmax(1), other.double().softmax(1)
    assert divergence.value == pytest.approx(float((p * (p / q).log()).sum(1).mean()))
    spread = (LOGITS - LOGITS.mean(0)).double().square().sum()
    expected = float((other - LOGITS).double().square().sum() / spread)
    assert error.value == pytest.approx(expected, rel=1e-5)
    for figure in (agreement, divergence, error):
        assert figure.low < figure.value < figure.high
    softmax = compared(other.softmax(1), LOGITS.softmax(1))
    assert softmax.kinds == ("probabilities",)
    assert softmax.agreement() == agreement
    same = softmax.divergence()
    assert same is not None
    assert same.value == pytest.approx(divergence.value, rel=1e-4)


def test_values_have_an_error_only() -> None:
    found = compared(LOGITS + 0.1, LOGITS, "values")
    assert found.agreement() is None
    assert found.divergence() is None
    assert found.error() is not None


def test_a_segmentation_map_is_compared_by_position() -> None:
    other = MAPS.clone()
    other[:, :, :2] = MAPS[:, :, :2].flip(1)
    found = compared(other, MAPS, "logits").agreement()
    assert found is not None
    expected = (other.argmax(1) == MAPS.argmax(1)).double().mean()
    assert found.value == pytest.approx(float(expected))
    assert 0 < found.low < found.value < found.high < 1


def test_one_column_is_a_binary_classifier() -> None:
    column = LOGITS[:, :1]
    found = compared(-column, column, "logits").agreement()
    assert found is not None
    assert found.value == 0


def test_several_outputs_may_differ_in_kind() -> None:
    found = Comparison(("logits", "values"))
    found.add([LOGITS, MAPS + 1], [LOGITS, MAPS], 40)
    agreement, error = found.agreement(), found.error()
    assert agreement is not None
    assert error is not None
    assert agreement.value == 1
    assert error.value > 0


@pytest.mark.parametrize("images", [50, 200])
def test_the_intervals_of_divergence_and_error_cover_the_values_of_all_images(images: int) -> None:
    generator = torch.Generator().manual_seed(4)
    reference = torch.randn(20_000, 5, generator=generator)
    noise = torch.randn(20_000, 5, generator=generator) * torch.rand(20_000, 1, generator=generator)
    everything = compared(reference + noise, reference)
    true = everything.divergence(), everything.error()
    covered = [0, 0]
    for _ in range(200):
        rows = torch.randint(20_000, (images,), generator=generator)
        part = compared((reference + noise)[rows], reference[rows])
        for number, estimate in enumerate((part.divergence(), part.error())):
            whole = true[number]
            assert estimate is not None
            assert whole is not None
            covered[number] += estimate.low <= whole.value <= estimate.high
    assert min(covered) >= 0.9 * 200


def test_networks_are_compared_in_eval_mode_and_stay_unchanged() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.9), nn.Linear(8, 3)).train()
    found = compare(model, model, LOGITS.split(20), ("logits",)).agreement()
    assert found is not None
    assert found.value == 1
    assert model.training
