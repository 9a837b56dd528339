"""What a cut does to the outputs, as the sensor sees it and as a cut network shows it."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import entrim
from entrim.allocation.sensitivity import OutputChange, SensitivityAnalyzer, output_change
from entrim.calibration.data import read_images
from entrim.calibration.tensor_store import TensorStore
from entrim.deciding import Scene, collect
from entrim.run import Run
from entrim.settings import Settings
from tests.pipeline.networks import images, residual

X = images(100, 3, 8, 8)
KEPT = {"conv1": (0, 2, 3, 5, 8), "stem": (1, 2, 4, 6, 7, 9)}


class Joined(nn.Module):
    """Two layers side by side, and one that reads both."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 3, padding=1)
        self.both, self.head = nn.Conv2d(16, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        seen = torch.cat([self.a(x).relu(), self.b(x).relu()], 1)
        return self.head(self.both(seen).relu().mean((2, 3)))


@pytest.fixture
def sensor() -> SensitivityAnalyzer:
    return sensor_of(residual())


def sensor_of(model: nn.Module) -> SensitivityAnalyzer:
    run = Run(model, Settings(), read_images(X, torch.device("cpu"), torch.float32), None, print)
    scene = Scene.of(run, entrim.trace(model, X[:4]), run.images)
    grams = TensorStore(2**30)
    collect(run, scene, run.settings.asks(scene.graph, scene.alone), grams, quiet=True)
    return SensitivityAnalyzer(scene.task, scene.graph, list(scene.readers.values()), grams, 1e-4)


def looked(sensor: SensitivityAnalyzer, trials: dict, held: dict) -> dict[str, list[OutputChange]]:
    return dict(sensor.sweep(trials, held))


def test_a_whole_group_does_not_move_the_outputs(sensor: SensitivityAnalyzer) -> None:
    whole = {group.name: [range(group.channels)] for group in sensor.graph.groups}
    found = looked(sensor, whole, {})
    assert len(found) == len(sensor.graph.groups)
    for moves in found.values():
        assert moves[0].error < 1e-10
        assert moves[0].divergence < 1e-10


@pytest.mark.parametrize("name", KEPT)
def test_a_cut_moves_the_outputs_as_the_cut_and_refitted_network_does(
    sensor: SensitivityAnalyzer, name: str
) -> None:
    model = residual()
    found = looked(sensor, {name: [KEPT[name]]}, {})[name][0]
    widths = {name: len(KEPT[name])}
    plan = entrim.sparsify(model, X, widths=widths, mode="independent").plan
    chosen = looked(sensor, {name: [plan.kept[name]]}, {})[name][0]
    small = entrim.apply_plan(model, plan, X[:4])
    with torch.no_grad():
        wanted = output_change([[small(X)]], [[model(X)]], [len(X)])
    assert chosen.error == pytest.approx(wanted.error, rel=1e-3)
    assert chosen.divergence == pytest.approx(wanted.divergence, rel=1e-3)
    assert 0 < chosen.error < found.error


def test_other_groups_are_held_meanwhile(sensor: SensitivityAnalyzer) -> None:
    alone = looked(sensor, {"conv3": [range(5)]}, {})["conv3"][0]
    held = looked(sensor, {"conv3": [range(5)]}, KEPT)["conv3"][0]
    again = looked(sensor, {"conv3": [range(5)]}, {"conv3": range(2)})["conv3"][0]
    assert held.error > 1.05 * alone.error
    assert again == alone


def test_a_layer_that_reads_a_held_group_too_is_refitted_on_what_is_left_of_both() -> None:
    model = Joined().eval()
    plan = entrim.sparsify(model, X, widths={"a": 4, "b": 5}, mode="independent").plan
    found = looked(sensor_of(model), {"b": [plan.kept["b"]]}, {"a": plan.kept["a"]})["b"][0]
    with torch.no_grad():
        wanted = output_change([[entrim.apply_plan(model, plan, X[:4])(X)]], [[model(X)]], [len(X)])
    assert found.error == pytest.approx(wanted.error, rel=1e-3)
    assert found.error > 1e-3


def test_nothing_waits_on_the_shelf_once_all_is_seen(sensor: SensitivityAnalyzer) -> None:
    held: list[int] = []
    real = TensorStore.__exit__

    def watched(shelf: TensorStore, *args: object) -> None:
        held.append(len([key for key in shelf.values if "new" in str(key)]))
        real(shelf, *args)  # pyright: ignore[reportArgumentType]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TensorStore, "__exit__", watched)
        looked(sensor, {name: [kept] for name, kept in KEPT.items()}, {})
    assert held == [0]


def test_logits_are_told_apart_by_their_probabilities_other_outputs_by_their_error() -> None:
    g = torch.Generator().manual_seed(0)
    found, wanted = torch.randn(2, 50, 7, generator=g)
    kl = functional.kl_div(
        found.log_softmax(1), wanted.log_softmax(1), log_target=True, reduction="batchmean"
    )
    error = (found - wanted).square().sum() / (wanted - wanted.mean(0)).square().sum()
    both = output_change([[found]], [[wanted]], [len(wanted)])
    assert both.divergence == pytest.approx(float(kl), rel=1e-4)
    assert both.error == pytest.approx(float(error), rel=1e-4)
    maps = output_change([[found[:, :, None]]], [[wanted[:, :, None]]], [len(wanted)])
    assert maps.divergence == maps.error == pytest.approx(float(error), rel=1e-4)


def test_silent_outputs_are_as_far_as_the_mean_of_all_images(sensor: SensitivityAnalyzer) -> None:
    p = torch.cat([batch[0] for batch in sensor.reference]).double().softmax(1)
    mutual = (p * (p.log() - p.mean(0).log())).sum(1).mean()
    assert sensor.uninformative_divergence() == pytest.approx(float(mutual), rel=1e-6)
