"""Hold-out images: the split, the figures on them, and targets that select on them."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import entrim
from entrim.errors import BadSettingError, BudgetError
from entrim.metrics import compare, lower_bound
from entrim.records import Record
from tests.pipeline.networks import chain, images

X = images(300, 3, 8, 8)
ALL = entrim.Calibration(holdout=0)


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, Tensor]:
    """Return a network that separates four classes, and its images."""
    torch.manual_seed(0)
    x = torch.randn(1000, 12)
    labels = (x[:, 0] > 0).long() + 2 * (x[:, 1] + 0.3 * x[:, 2] > 0).long()
    model = nn.Sequential(
        nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 4)
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()
    return model.eval(), torch.randn(1000, 12)


# The split


@pytest.mark.parametrize(
    ("holdout", "count", "expected"),
    [
        (None, 2000, 200),
        (None, 300, 50),
        (None, 100, 20),
        (None, 10, 2),
        (None, 9, 0),
        (0.3, 300, 90),
        (7, 300, 7),
        (0, 300, 0),
        (0.0, 300, 0),
    ],
)
def test_split_sizes(holdout: Any, count: int, expected: int) -> None:
    assert entrim.Calibration(holdout=holdout).holdout_size(count) == expected


@pytest.mark.parametrize("holdout", [1.0, -0.1, -1, True, "10%"])
def test_bad_holdouts_are_refused(holdout: Any) -> None:
    with pytest.raises(BadSettingError, match="holdout must be a fraction below 1"):
        entrim.Calibration(holdout=holdout)


def test_a_holdout_of_all_images_is_refused() -> None:
    with pytest.raises(BadSettingError, match="leaves none of 300 images"):
        entrim.Pruner(chain(), X, calibration=entrim.Calibration(holdout=300))


def test_both_parts_are_disjoint_and_complete_and_follow_from_the_seed() -> None:
    pruner, again = (entrim.Pruner(chain(), X) for _ in range(2))
    fitting, held = pruner.fitting_images.rows, pruner.holdout_images.rows
    assert fitting is not None
    assert held is not None
    assert torch.equal(torch.cat([fitting, held]).sort().values, torch.arange(300))
    assert again.holdout_images.rows is not None
    assert torch.equal(held, again.holdout_images.rows)
    other = entrim.Pruner(chain(), X, seed=1).holdout_images.rows
    assert other is not None
    assert not torch.equal(held, other)


@pytest.mark.parametrize(
    "target", [entrim.Budget(macs=0.5), entrim.Widths(0.5), entrim.EntropicPenalty()]
)
def test_holdout_images_do_not_influence_the_network(target: Any) -> None:
    held = entrim.Pruner(chain(), X).holdout_images.rows
    assert held is not None
    poisoned = X.clone()
    poisoned[held] *= 1e6
    calibration = entrim.Calibration(n_bootstrap=1)
    one, other = (
        entrim.sparsify(chain(), x, target, calibration=calibration) for x in (X, poisoned)
    )
    assert one.plan.kept == other.plan.kept
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, other.model.state_dict()[name])
    assert one.record.error == other.record.error
    assert one.record.holdout != other.record.holdout


def test_the_paper_preset_fits_on_all_images() -> None:
    r = entrim.sparsify(chain(), X, **entrim.paper_preset(-1e-2, 1e-2))
    assert r.record.holdout is None
    assert "not measured on unseen images" in str(r.record)


# Figures


def test_the_record_contains_the_figures_on_the_holdout_images() -> None:
    model = chain()
    with entrim.Pruner(model, X) as pruner:
        r = pruner.prune(entrim.Budget(macs=0.5))
        unseen = pruner.holdout_images.batch(slice(None))
    holdout = r.record.holdout
    assert holdout is not None
    assert holdout.images == 50
    assert (holdout.outputs, holdout.recognized) == (("logits",), True)
    found = compare(r.model, model, [unseen], ("logits",))
    for mine, expected in (
        (holdout.agreement, found.agreement()),
        (holdout.divergence, found.divergence()),
        (holdout.error, found.error()),
    ):
        assert mine is not None
        assert expected is not None
        assert mine.value == pytest.approx(expected.value, rel=1e-6)
        assert mine.low <= mine.value <= mine.high
    assert Record.from_json(r.record.to_json()).holdout == holdout
    assert json.loads(r.record.to_json())["holdout"]["agreement"]["low"] == holdout.agreement.low  # pyright: ignore[reportOptionalMemberAccess]
    assert "on 50 unseen images: agreement" in str(r.record)
    assert "outputs compared as logits, recognized automatically" in str(r.record)


def test_a_large_gap_is_explained() -> None:
    few = images(24, 3, 8, 8, seed=5)
    calibration = entrim.Calibration(holdout=8)
    with pytest.warns(entrim.errors.CalibrationWarning, match="is refitted on"):
        r = entrim.sparsify(
            chain(),
            few,
            entrim.Widths(0.4),
            calibration=calibration,
            reconstruction=entrim.Reconstruction(ridge=1e-10, mixtures=0),
        )
    holdout = r.record.holdout
    assert holdout is not None
    assert r.record.error is not None
    assert holdout.error is not None
    assert r.record.error < holdout.error.low / 2
    assert holdout.note is not None
    assert "pass more images" in holdout.note
    assert holdout.note in r.record.notes


def test_nothing_is_explained_without_a_gap() -> None:
    r = entrim.sparsify(chain(), images(2000, 3, 8, 8), entrim.Widths(0.9))
    assert r.record.holdout is not None
    assert r.record.holdout.note is None


class WithSoftmax(nn.Module):
    """A classifier that returns probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.net = chain()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).softmax(1)


def test_probabilities_and_logits_lead_to_the_same_widths() -> None:
    softmax, plain = (
        entrim.sparsify(model, X, entrim.Budget(macs=0.5)) for model in (WithSoftmax(), chain())
    )
    assert softmax.record.holdout is not None
    assert softmax.record.holdout.outputs == ("probabilities",)
    kept = [group.kept for group in plain.record.groups]
    assert [group.kept for group in softmax.record.groups] == kept
    wrong = entrim.Calibration(outputs="values")
    values = entrim.sparsify(chain(), X, entrim.Budget(macs=0.5), calibration=wrong)
    assert values.record.holdout is not None
    assert values.record.holdout.agreement is None
    assert [point.divergence for point in values.record.tradeoff] != [
        point.divergence for point in plain.record.tradeoff
    ]


def test_kinds_are_checked_before_any_work() -> None:
    calibration = entrim.Calibration(outputs=("logits", "values"))
    with pytest.raises(BadSettingError, match="2 kinds, but the network has 1 outputs"):
        entrim.sparsify(chain(), X, calibration=calibration)
    with pytest.raises(BadSettingError, match="outputs must be one of 'auto', 'logits'"):
        entrim.Calibration(outputs="classes")


def test_distillation_measures_the_figures_again_on_the_same_number_of_images() -> None:
    r = entrim.sparsify(chain(), X, entrim.Widths(0.5))
    better = entrim.distill(r, X, entrim.Distillation(epochs=1))
    before, after = r.record.holdout, better.record.holdout
    assert before is not None
    assert after is not None
    assert after.images == before.images
    assert after.error != before.error


# Targets


def test_an_error_is_selected_on_one_half_and_measured_on_the_other() -> None:
    with entrim.Pruner(chain(), X, calibration=entrim.Calibration(holdout=120)) as pruner:
        r = pruner.prune(entrim.Budget(max_error=0.3))
        first, second = (half.batch(slice(None)) for half in pruner.holdout_images.halves())
    holdout = r.record.holdout
    assert holdout is not None
    assert (holdout.images, holdout.selection_images) == (60, 60)
    errors = [compare(r.model, chain(), [half], ("logits",)).error() for half in (first, second)]
    assert errors[0] is not None
    assert errors[1] is not None
    assert holdout.error is not None
    assert errors[0].value <= 0.3
    assert holdout.error.value == pytest.approx(errors[1].value, rel=1e-6)


def test_sparsify_holds_out_two_fifths_for_targets_on_unseen_images() -> None:
    r = entrim.sparsify(chain(), X, entrim.Budget(max_error=0.3))
    assert r.record.holdout is not None
    assert r.record.holdout.images == 60
    with pytest.raises(BadSettingError, match=r"at least 100 hold-out images, but 80 of 200 .*250"):
        entrim.sparsify(chain(), X[:200], entrim.Budget(max_error=0.3))


def test_a_pruner_with_too_few_holdout_images_raises() -> None:
    with entrim.Pruner(chain(), X) as pruner:
        with pytest.raises(BadSettingError, match="needs at least 100 hold-out images"):
            pruner.prune(entrim.Budget(max_error=0.3))
        with pytest.raises(BadSettingError, match="needs at least 59 hold-out images, but 50"):
            pruner.prune(entrim.Budget(agreement=0.95))


def test_agreement_returns_the_last_network_before_the_first_failure(
    trained: tuple[nn.Module, Tensor],
) -> None:
    model, x = trained
    r = entrim.sparsify(model, x, entrim.Budget(agreement=0.9))
    holdout = r.record.holdout
    assert holdout is not None
    assert holdout.images == holdout.selection_images == 400
    guarantee = holdout.guarantee
    assert guarantee is not None
    assert guarantee.holds
    assert guarantee.low >= 0.9
    assert r.record.after.params < r.record.before.params
    with torch.no_grad():
        fresh = torch.randn(20_000, 12, generator=torch.Generator().manual_seed(9))
        same = (r.model(fresh).argmax(1) == model(fresh).argmax(1)).double().mean()
    assert float(same) >= 0.9
    assert "guaranteed on images like these" in str(r.record)


def test_only_the_first_agreement_target_is_guaranteed(trained: tuple[nn.Module, Tensor]) -> None:
    model, x = trained
    with entrim.Pruner(model, x, calibration=entrim.Calibration(holdout=400)) as pruner:
        results = [pruner.prune(entrim.Budget(agreement=goal)) for goal in (0.9, 0.8, 0.9)]
    holds = []
    for result in results:
        assert result.record.holdout is not None
        assert result.record.holdout.guarantee is not None
        holds.append(result.record.holdout.guarantee.holds)
    assert holds == [True, False, True]
    assert results[1].record.after.params <= results[0].record.after.params
    assert "not guaranteed" in str(results[1].record)


def test_an_agreement_and_a_size_hold_together_or_the_error_says_what_is_possible(
    trained: tuple[nn.Module, Tensor],
) -> None:
    model, x = trained
    with entrim.Pruner(model, x, calibration=entrim.Calibration(holdout=400)) as pruner:
        alone = pruner.prune(entrim.Budget(agreement=0.9)).record.after.params
        full = pruner.graph and sum(p.numel() for p in model.parameters())
        mild = (alone + full) // 2
        both = pruner.prune(entrim.Budget(agreement=0.9, params=mild))
        assert both.record.after.params <= mild
        assert both.record.holdout is not None
        assert both.record.holdout.guarantee is not None
        assert both.record.holdout.guarantee.low >= 0.9
        with pytest.raises(BudgetError, match=r"agreement=0\.9 contradicts .* is possible with"):
            pruner.prune(entrim.Budget(agreement=0.9, params=60))


def test_an_agreement_that_cannot_be_shown_names_the_number_of_images(
    trained: tuple[nn.Module, Tensor],
) -> None:
    model, x = trained
    calibration = entrim.Calibration(holdout=0.4)
    with (
        entrim.Pruner(model, x, calibration=calibration, reconstruction=None) as pruner,
        pytest.raises(BudgetError, match=r"cannot be shown: the best pruned network agrees on"),
    ):
        pruner.prune(entrim.Budget(agreement=0.992))


def test_an_agreement_needs_classes() -> None:
    calibration = entrim.Calibration(outputs="values")
    with pytest.raises(BadSettingError, match="needs predicted classes"):
        entrim.sparsify(chain(), X, entrim.Budget(agreement=0.9), calibration=calibration)


@pytest.mark.parametrize(
    "given", [{"agreement": 1.0}, {"agreement": 95}, {"agreement": 0.9, "confidence": 1}]
)
def test_bad_agreements_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(BadSettingError, match=r"must be a fraction such as 0\.95"):
        entrim.Budget(**given)
    with pytest.raises(BadSettingError, match="either max_error= or agreement="):
        entrim.Budget(agreement=0.9, max_error=0.1)


def test_the_bound_of_the_record_is_that_of_the_returned_network(
    trained: tuple[nn.Module, Tensor],
) -> None:
    model, x = trained
    with entrim.Pruner(model, x, calibration=entrim.Calibration(holdout=300)) as pruner:
        r = pruner.prune(entrim.Budget(agreement=0.85, confidence=0.9))
        unseen = pruner.holdout_images.batch(slice(None))
    assert r.record.holdout is not None
    assert r.record.holdout.guarantee is not None
    with torch.no_grad():
        same = (r.model(unseen).argmax(1) == model(unseen).argmax(1)).double()
    assert r.record.holdout.guarantee.low == pytest.approx(lower_bound(same, 0.9))
    again = replace(r.record.holdout, guarantee=None)
    assert Record.from_json(replace(r.record, holdout=again).to_json()).holdout == again
