"""Special cases of sparsify: flags among the inputs, dead layers, shared tensors, low memory."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import entrim
from entrim.calibration.collect import ChannelStats
from entrim.errors import CalibrationWarning, NothingCutWarning
from tests.callbacks import Recorder
from tests.pipeline.networks import chain, images, residual, settled

X = images(96, 3, 8, 8)


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the mean squared error relative to the variance."""
    return float(((found - expected).detach().square().mean() / expected.detach().var()).item())


class Flagged(nn.Module):
    """Takes a flag and a number beside its images."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 3, 3)

    def forward(self, pixels: Tensor, doubled: bool = False, power: float = 1.0) -> Tensor:
        y = self.two(self.one(pixels).relu()) * power
        return 2 * y if doubled else y


@pytest.mark.parametrize("fixed", [{"doubled": True}, {"power": 3.0}, {"doubled": None}])
def test_flags_and_numbers_beside_the_images_are_passed_on(fixed: dict[str, Any]) -> None:
    model = Flagged().eval()
    unmixed = entrim.Reconstruction(mixtures=0)  # only sole inputs are mixed
    r, plain = (
        entrim.sparsify(model, x, entrim.Widths({"one": 5}), reconstruction=unmixed)
        for x in ({**fixed, "pixels": X}, X)
    )
    assert r.plan.kept == plain.plan.kept
    for name, tensor in plain.plan.weights.items():
        torch.testing.assert_close(r.plan.weights[name], tensor)


def test_an_array_gives_the_same_result_as_a_tensor() -> None:
    one, other = (entrim.sparsify(chain(), x, entrim.Widths({"0": 6})) for x in (X, X.numpy()))
    assert one.plan.kept == other.plan.kept
    assert other.record.images == 96


@pytest.mark.filterwarnings("ignore::entrim.errors.CalibrationWarning")
def test_a_memory_limit_that_excludes_every_group_is_reported() -> None:
    with pytest.warns(NothingCutWarning, match="no group was selected"):
        r = entrim.sparsify(chain(), X, calibration=entrim.Calibration(memory_limit=1000))
    assert r.record.after == r.record.before


def test_the_named_penalty_is_for_a_group_that_fits_into_memory() -> None:
    weak = entrim.EntropicPenalty(eps_w=-1e-12, eps_l2=1e-12)
    little = entrim.Calibration(memory_limit=50_000)
    with (
        pytest.warns(CalibrationWarning, match="50,000 bytes: 0; raise"),
        pytest.warns(NothingCutWarning, match="which prunes 7"),
    ):
        entrim.sparsify(chain(), X, weak, calibration=little)


def test_the_paper_preset_warns_when_no_group_has_a_single_consumer() -> None:
    with pytest.warns(NothingCutWarning, match="single_consumer=False"):
        entrim.sparsify(residual(), X, **entrim.paper_preset(), include="stem")


def test_every_batch_is_reported() -> None:
    recorder = Recorder()
    entrim.sparsify(chain(), X, entrim.Widths({"0": 6}), callbacks=[recorder])
    steps = [(event.done, event.total) for event in recorder.in_stage("collect")]
    assert steps == [(1, 2), (2, 2)]


def test_batches_are_counted_over_all_passes() -> None:
    recorder, little = Recorder(), entrim.Calibration(memory_limit=100_000)
    entrim.sparsify(chain(), X, entrim.Widths(6), calibration=little, callbacks=[recorder])
    steps = [(event.done, event.total) for event in recorder.in_stage("collect")]
    assert steps == [(done, 4) for done in range(1, 5)]


def test_a_rounded_width_has_the_weights_of_the_solution_at_that_width() -> None:
    model = chain()
    free = entrim.sparsify(model, X, **entrim.paper_preset(-3e-3, 3e-3), include="0")
    assert len(free.plan.kept["0"]) not in (4, 8)
    rounding = entrim.paper_preset(-3e-3, 3e-3, round_to=8)
    rounded = entrim.sparsify(model, X, **rounding, include="0")
    solution = entrim.Reconstruction(weights="solution")
    requested = entrim.sparsify(
        model,
        X,
        entrim.Widths({"0": 8}),
        reconstruction=solution,
        calibration=entrim.Calibration(holdout=0),
    )
    assert rounded.plan.kept == requested.plan.kept
    for name, tensor in requested.plan.weights.items():
        torch.testing.assert_close(rounded.plan.weights[name], tensor)


def test_the_width_of_a_dead_group_is_rounded_too() -> None:
    model = chain()
    with torch.no_grad():
        model.get_parameter("1.weight").zero_()
        model.get_parameter("1.bias").fill_(-1)
    penalty = entrim.EntropicPenalty(eps_w=-3e-3, eps_l2=3e-3, round_to=4)
    r = entrim.sparsify(model, X, penalty, include="0")
    assert r.plan.kept["0"] == (0, 1, 2, 3)


def test_a_consumer_whose_inputs_are_zero_does_not_influence_the_maximum() -> None:
    class HalfDead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.one, self.live = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 3, 1)
            self.dead = nn.Conv2d(8, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = self.one(x).sigmoid()
            return self.live(y) + self.dead((y - 2).relu())

    model = HalfDead().eval()
    for by_width in (True, False):
        one, other = (
            entrim.sparsify(
                model,
                X,
                entrim.Widths({"one": 4}),
                selector=entrim.EntropicSelector(coupling=coupling),
            )
            if by_width
            else entrim.sparsify(model, X, entrim.EntropicPenalty(coupling=coupling))
            for coupling in ("joint", "max")
        )
        assert len(one.plan.kept["one"]) > 1
        assert one.plan.kept == other.plan.kept


def test_a_batchnorm_with_two_calls_keeps_its_own_statistics() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.one, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
            self.two, self.three = (nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(self.two(self.one(x).relu())).relu()
            return self.head(self.norm(self.three(x)).relu().mean((2, 3)))

    model = settled(Shared())
    reestimate = entrim.Reconstruction(batchnorm="reestimate")
    r = entrim.sparsify(model, X, entrim.Widths({"one": 5}), reconstruction=reestimate)
    assert relative_error(r.model(X), model(X)) < 0.1


def test_only_a_term_of_a_sum_is_corrected_for_the_other_term() -> None:
    """In addmm(skip, x, W) the layer that computes x is not added to the skip path, W x is."""

    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.one, self.two, self.three = nn.Linear(6, 12), nn.Linear(12, 8), nn.Linear(12, 8)
            self.mix = nn.Parameter(torch.randn(8, 8))

        def forward(self, x: Tensor) -> Tensor:
            x = self.one(x).relu()
            return torch.addmm(F.relu(self.two(x)), self.three(x), self.mix)

    model, x = Product().eval(), torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    one, other = (
        entrim.sparsify(
            model,
            x,
            entrim.Widths({"one": 6}),
            reconstruction=entrim.Reconstruction(residual_correction=corrected, relaxation=0),
        )
        for corrected in (False, True)
    )
    for name, tensor in one.plan.weights.items():
        assert torch.equal(other.plan.weights[name], tensor)


def test_the_inputs_of_a_weight_that_is_called_in_two_ways_are_not_pruned() -> None:
    class Dilated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 6, 3, padding=1)
            self.head = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.one(x).relu()
            wide = nn.functional.conv2d(x, self.two.weight, self.two.bias, 1, 2, 2)
            return self.head((self.two(x) + wide).relu().mean((2, 3)))

    model = Dilated().eval()
    r = entrim.sparsify(model, images(100, 3, 8, 8), entrim.Widths(0.5))
    assert set(r.plan.kept) == {"two"}
    assert r.record.settings["reconstruction"]["order"] is None


def test_the_statistics_of_batches_are_those_of_all_images() -> None:
    x = torch.randn(40, 5, 3) * 2 + 7
    stats = ChannelStats()
    for part in x.split(11):
        stats.add(part)
    flat = x.double().movedim(1, 0).flatten(1)
    torch.testing.assert_close(stats.mean, flat.mean(1))
    torch.testing.assert_close(stats.variance, flat.var(1, correction=0))
