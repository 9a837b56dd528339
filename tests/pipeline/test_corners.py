"""Corners of sparsify: flags among the inputs, dead layers, shared tensors, little memory."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import entrim
from entrim.calibration.collect import ChannelStats
from entrim.errors import CalibrationWarning, NothingCutWarning
from tests.pipeline.networks import chain, images, residual, settled

X = images(96, 3, 8, 8)


def gap(found: Tensor, wanted: Tensor) -> float:
    """Return the mean squared error relative to the variance."""
    return float(((found - wanted).detach().square().mean() / wanted.detach().var()).item())


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
def test_flags_and_numbers_beside_the_images_are_handed_over(fixed: dict[str, Any]) -> None:
    model = Flagged().eval()
    r = entrim.sparsify(model, {**fixed, "pixels": X}, widths={"one": 5})
    plain = entrim.sparsify(model, X, widths={"one": 5})
    assert r.plan.kept == plain.plan.kept
    for name, tensor in plain.plan.weights.items():
        torch.testing.assert_close(r.plan.weights[name], tensor)


def test_an_array_is_as_good_as_a_tensor() -> None:
    one, other = (entrim.sparsify(chain(), x, widths={"0": 6}) for x in (X, X.numpy()))
    assert one.plan.kept == other.plan.kept
    assert other.record.images == 96


@pytest.mark.filterwarnings("ignore::entrim.errors.CalibrationWarning")
def test_nothing_cut_for_want_of_memory_is_said() -> None:
    with pytest.warns(NothingCutWarning, match="no group was left to choose in"):
        r = entrim.sparsify(chain(), X, memory_limit=1000)
    assert r.record.after == r.record.before


def test_the_eps_that_is_named_is_one_for_a_group_that_fits_into_memory() -> None:
    with (
        pytest.warns(CalibrationWarning, match="50,000 bytes: 0; raise"),
        pytest.warns(NothingCutWarning, match="which cuts 7"),
    ):
        entrim.sparsify(chain(), X, -1e-12, 1e-12, memory_limit=50_000)


def test_the_paper_preset_says_when_no_group_is_alone() -> None:
    with pytest.warns(NothingCutWarning, match='leave preset="paper" out'):
        entrim.sparsify(residual(), X, preset="paper", layers="stem")


def test_every_batch_is_told() -> None:
    steps: list[entrim.ProgressEvent] = []
    entrim.sparsify(chain(), X, widths={"0": 6}, on_step=steps.append)
    told = [(step.done, step.total) for step in steps if step.stage == "collect"]
    assert told == [(1, 2), (2, 2)]


def test_batches_are_counted_over_all_passes() -> None:
    steps: list[entrim.ProgressEvent] = []
    entrim.sparsify(chain(), X, widths={"*": 6}, memory_limit=100_000, on_step=steps.append)
    told = [(step.done, step.total) for step in steps if step.stage == "collect"]
    assert told == [(done, 4) for done in range(1, 5)]


def test_a_rounded_width_without_refit_has_the_weights_solved_at_that_width() -> None:
    model = chain()
    options: dict[str, Any] = {"preset": "paper", "layers": "0"}
    free = entrim.sparsify(model, X, -3e-3, 3e-3, **options)
    assert len(free.plan.kept["0"]) not in (4, 8)
    rounded = entrim.sparsify(model, X, -3e-3, 3e-3, round_to=8, **options)
    asked = entrim.sparsify(model, X, widths={"0": 8}, **options)
    assert rounded.plan.kept == asked.plan.kept
    for name, tensor in asked.plan.weights.items():
        torch.testing.assert_close(rounded.plan.weights[name], tensor)


def test_a_dead_group_has_a_round_width_too() -> None:
    model = chain()
    with torch.no_grad():
        model.get_parameter("1.weight").zero_()
        model.get_parameter("1.bias").fill_(-1)
    r = entrim.sparsify(model, X, -3e-3, 3e-3, layers="0", round_to=4)
    assert r.plan.kept["0"] == (0, 1, 2, 3)


def test_a_reader_that_sees_only_zeros_has_no_say_in_the_maximum() -> None:
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
    every: list[dict[str, Any]] = [{"widths": {"one": 4}}, {"eps_w": -1e-4, "eps_l2": 1e-4}]
    for options in every:
        one, other = (
            entrim.sparsify(model, X, coupling=coupling, **options) for coupling in ("joint", "max")
        )
        assert len(one.plan.kept["one"]) > 1
        assert one.plan.kept == other.plan.kept


def test_a_batchnorm_of_two_calls_is_not_given_the_statistics_of_the_last() -> None:
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
    r = entrim.sparsify(model, X, widths={"one": 5}, batchnorm="reestimate")
    assert gap(r.model(X), model(X)) < 0.1


def test_only_a_sum_is_corrected_for_its_other_term() -> None:
    """In addmm(skip, x, W) the layer that makes x is not added to the skip path, W x is."""

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
        entrim.sparsify(model, x, widths={"one": 6}, correct=correct) for correct in (False, True)
    )
    for name, tensor in one.plan.weights.items():
        assert torch.equal(other.plan.weights[name], tensor)


def test_a_weight_called_in_two_ways_leaves_its_channels_whole() -> None:
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
    r = entrim.sparsify(model, images(100, 3, 8, 8), widths={"*": 0.5})
    assert set(r.plan.kept) == {"two"}
    assert r.record.settings["mode"] == "sequential"


def test_a_tally_of_batches_has_the_moments_of_all() -> None:
    x = torch.randn(40, 5, 3) * 2 + 7
    tally = ChannelStats()
    for part in x.split(11):
        tally.add(part)
    flat = x.double().movedim(1, 0).flatten(1)
    torch.testing.assert_close(tally.mean, flat.mean(1))
    torch.testing.assert_close(tally.variance, flat.var(1, correction=0))
