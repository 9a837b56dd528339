"""The sensitivity of the outputs to a cut, compared with pruned networks."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import entrim
from entrim.allocation.sensitivity import OutputChange, SensitivityAnalyzer, output_change
from entrim.calibration.tensor_store import TensorStore
from tests.pipeline.networks import images, residual

X = images(100, 3, 8, 8)
ALL = entrim.Calibration(holdout=0)
INDEPENDENT = entrim.Reconstruction(order="independent")
KEPT = {"conv1": (0, 2, 3, 5, 8), "stem": (1, 2, 4, 6, 7, 9)}


class Joined(nn.Module):
    """Two parallel layers, and one that consumes both."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 3, padding=1)
        self.both, self.head = nn.Conv2d(16, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        seen = torch.cat([self.a(x).relu(), self.b(x).relu()], 1)
        return self.head(self.both(seen).relu().mean((2, 3)))


@pytest.fixture(scope="module")
def analyzer() -> SensitivityAnalyzer:
    return analyzer_of(residual())


def analyzer_of(model: nn.Module) -> SensitivityAnalyzer:
    return entrim.Pruner(model, X, calibration=ALL).allocator.analyzer


def sweep(
    analyzer: SensitivityAnalyzer, trials: dict[str, Any], held: dict[str, Any]
) -> dict[str, list[OutputChange]]:
    return dict(analyzer.sweep(trials, held))


def test_a_complete_group_does_not_change_the_outputs(analyzer: SensitivityAnalyzer) -> None:
    complete = {group.name: [range(group.channels)] for group in analyzer.graph.groups}
    found = sweep(analyzer, complete, {})
    assert len(found) == len(analyzer.graph.groups)
    for changes in found.values():
        assert changes[0].error < 1e-10
        assert changes[0].divergence < 1e-10


@pytest.mark.parametrize("name", KEPT)
def test_the_predicted_change_is_that_of_the_pruned_and_refitted_network(
    analyzer: SensitivityAnalyzer, name: str
) -> None:
    model = residual()
    found = sweep(analyzer, {name: [KEPT[name]]}, {})[name][0]
    widths = {name: len(KEPT[name])}
    target = entrim.Widths(widths)
    plan = entrim.sparsify(model, X, target, reconstruction=INDEPENDENT, calibration=ALL).plan
    selected = sweep(analyzer, {name: [plan.kept[name]]}, {})[name][0]
    small = entrim.apply_plan(model, plan, X[:4])
    with torch.no_grad():
        expected = output_change([[small(X)]], [[model(X)]], [len(X)])
    assert selected.error == pytest.approx(expected.error, rel=1e-3)
    assert selected.divergence == pytest.approx(expected.divergence, rel=1e-3)
    assert 0 < selected.error < found.error


def test_other_groups_are_held_at_their_channels(analyzer: SensitivityAnalyzer) -> None:
    alone = sweep(analyzer, {"conv3": [range(5)]}, {})["conv3"][0]
    held = sweep(analyzer, {"conv3": [range(5)]}, KEPT)["conv3"][0]
    again = sweep(analyzer, {"conv3": [range(5)]}, {"conv3": range(2)})["conv3"][0]
    assert held.error > 1.05 * alone.error
    assert again == alone


def test_a_layer_that_also_consumes_a_held_group_is_refitted_on_both() -> None:
    model = Joined().eval()
    widths = entrim.Widths({"a": 4, "b": 5})
    plan = entrim.sparsify(model, X, widths, reconstruction=INDEPENDENT, calibration=ALL).plan
    found = sweep(analyzer_of(model), {"b": [plan.kept["b"]]}, {"a": plan.kept["a"]})["b"][0]
    with torch.no_grad():
        expected = output_change(
            [[entrim.apply_plan(model, plan, X[:4])(X)]], [[model(X)]], [len(X)]
        )
    assert found.error == pytest.approx(expected.error, rel=1e-3)
    assert found.error > 1e-3


def test_narrow_groups_are_measured_on_fewer_images() -> None:
    pruner = entrim.Pruner(residual(), X, calibration=entrim.Calibration(holdout=0, batch_size=20))
    analyzer = pruner.allocator.analyzer
    assert analyzer.narrow_batches == 2
    assert len(analyzer.task.batches) == 4
    narrow, wide = (dict(analyzer.sweep({"stem": [range(k)]}, {}))["stem"][0] for k in (2, 6))
    complete = replace(analyzer, narrow_batches=None)
    found = {k: dict(complete.sweep({"stem": [range(k)]}, {}))["stem"][0] for k in (2, 6)}
    assert wide == found[6]
    assert narrow != found[2]
    assert narrow.divergence == pytest.approx(found[2].divergence, rel=0.5)


def test_an_explicit_number_of_images_holds_for_all_widths() -> None:
    calibration = entrim.Calibration(holdout=0, batch_size=20, sensitivity_images=100)
    analyzer = entrim.Pruner(residual(), X, calibration=calibration).allocator.analyzer
    assert analyzer.narrow_batches == len(analyzer.task.batches) == 5


def test_no_activation_is_stored_after_a_sweep(analyzer: SensitivityAnalyzer) -> None:
    stored: list[int] = []
    original = TensorStore.__exit__

    def exit_store(store: TensorStore, *args: object) -> None:
        stored.append(len([key for key in store.values if "changed" in str(key)]))
        original(store, *args)  # pyright: ignore[reportArgumentType]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TensorStore, "__exit__", exit_store)
        sweep(analyzer, {name: [kept] for name, kept in KEPT.items()}, {})
    assert stored == [0]


def test_logits_are_compared_by_their_probabilities_and_other_outputs_by_their_error() -> None:
    g = torch.Generator().manual_seed(0)
    found, expected = torch.randn(2, 50, 7, generator=g)
    kl = functional.kl_div(
        found.log_softmax(1), expected.log_softmax(1), log_target=True, reduction="batchmean"
    )
    error = (found - expected).square().sum() / (expected - expected.mean(0)).square().sum()
    both = output_change([[found]], [[expected]], [len(expected)])
    assert both.divergence == pytest.approx(float(kl), rel=1e-4)
    assert both.error == pytest.approx(float(error), rel=1e-4)
    maps = output_change([[found[:, :, None]]], [[expected[:, :, None]]], [len(expected)])
    assert maps.divergence == maps.error == pytest.approx(float(error), rel=1e-4)


def test_uninformative_outputs_are_the_mean_of_all_images(analyzer: SensitivityAnalyzer) -> None:
    p = torch.cat([batch[0] for batch in analyzer.reference]).double().softmax(1)
    mutual = (p * (p.log() - p.mean(0).log())).sum(1).mean()
    assert analyzer.uninformative_divergence() == pytest.approx(float(mutual), rel=1e-6)
