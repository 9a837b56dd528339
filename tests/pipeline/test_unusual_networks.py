"""Networks that use PyTorch in less common ways: folded batches, aliases, hooks, contexts."""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import entrim
from entrim.allocation.costs import Costs
from entrim.calibration.executor import Program
from entrim.distillation.loss import DistillationLoss
from entrim.errors import BudgetWarning, NothingCutWarning, TraceError
from entrim.export.formats import to_program
from entrim.graph.eager import samples

BUDGETS = (0.9, 0.5)

ALL = entrim.Calibration(holdout=0)
"""No images are held out."""


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


class Frames(nn.Module):
    """A video network: frames are folded into the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 8, 3)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        frames = x.flatten(0, 1)
        y = F.relu(self.b(F.relu(self.a(frames)))).mean((2, 3))
        return self.head(y.unflatten(0, x.shape[:2]).mean(1))


class SequenceFirst(nn.Module):
    """A network that moves the batch to the second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 32), nn.Linear(32, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.b(F.relu(self.a(x.transpose(0, 1)))))
        return self.head(y.mean(0))


@pytest.mark.parametrize(
    ("network", "shape"),
    [(Frames, (5, 3, 8, 8)), (SequenceFirst, (7, 6))],
    ids=["video", "sequence"],
)
class TestBatchInAnotherDimension:
    def test_predicted_macs_equal_the_measured_ones(
        self, network: Callable[[], nn.Module], shape: tuple[int, ...]
    ) -> None:
        model, example = network().eval(), torch.randn(3, *shape)
        graph = entrim.trace(model, example)
        macs = entrim.measure(model, example, repeats=2).macs
        costs = Costs.of(model, graph, Program.of(model, example), macs, samples(example))
        kept = {group.name: range(group.channels // 2) for group in graph.groups}
        small = entrim.apply_plan(model, entrim.Plan(kept), example)
        widths = {name: len(units) for name, units in kept.items()}
        measured = entrim.measure(small, example, repeats=2).macs
        assert costs.rest["macs"] == pytest.approx(0, abs=1)
        assert costs.at(widths)["macs"] == pytest.approx(measured)

    @pytest.mark.parametrize("share", BUDGETS)
    def test_a_budget_is_met_and_used(
        self, network: Callable[[], nn.Module], shape: tuple[int, ...], share: float
    ) -> None:
        model, images = network().eval(), torch.randn(90, *shape)
        record = entrim.sparsify(model, images, entrim.Budget(macs=share)).record
        assert 0.85 * share < record.after.macs / record.before.macs <= share
        predicted = next(point for point in record.tradeoff if point.selected)
        assert predicted.macs == pytest.approx(record.after.macs, abs=1)


class TestOutputsOfAnotherShape:
    def test_outputs_with_the_sequence_first_are_compared(self) -> None:
        class Net(nn.Sequential):
            def forward(self, input: Tensor) -> Tensor:  # noqa: A002
                return super().forward(input.transpose(0, 1))

        model = Net(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4)).eval()
        images = torch.randn(101, 7, 6)  # two batches of 50 and 51
        result = entrim.sparsify(model, images, entrim.Budget(params=0.5), calibration=ALL)
        with torch.no_grad():
            y, y0 = result.model(images), model(images)
        error = float((y - y0).square().sum() / (y0 - y0.mean(1, keepdim=True)).square().sum())
        assert result.record.error == pytest.approx(error, rel=1e-4)
        assert 0 < error < 1

    def test_outputs_with_the_sequence_first_can_be_distilled(self) -> None:
        class Net(nn.Sequential):
            def forward(self, input: Tensor) -> Tensor:  # noqa: A002
                return super().forward(input.transpose(0, 1))

        model = Net(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4)).eval()
        images = torch.randn(120, 7, 6)
        small = entrim.sparsify(model, images, entrim.Widths(0.25))
        config = entrim.Distillation(epochs=3, shift=0.0, batch_size=16)
        better = entrim.distill(small, images, config)
        done = better.record.distilled
        assert done is not None
        assert done.after < done.before


class Positions(nn.Sequential):
    """The same layers at every position, in one of three layouts of images and positions."""

    def __init__(self, layout: str) -> None:
        torch.manual_seed(0)
        super().__init__(
            nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4)
        )
        self.layout = layout

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if self.layout == "sequence first":
            return super().forward(input.transpose(0, 1))
        return super().forward(input.flatten(0, 1) if self.layout == "folded" else input)


LAYOUTS = ("sequence first", "folded")


def per_image(outputs: Tensor, layout: str) -> Tensor:
    """Return outputs of `Positions` with the images first."""
    return outputs.transpose(0, 1) if layout == "sequence first" else outputs.unflatten(0, (-1, 5))


@pytest.mark.parametrize("layout", LAYOUTS)
class TestLayoutsOfPositions:
    images = torch.randn(1500, 5, 6, generator=torch.Generator().manual_seed(0))

    def test_the_layout_does_not_change_the_result(self, layout: str) -> None:
        calibration = entrim.Calibration(holdout=101)  # in batches of 50 and 51
        other, usual = (
            entrim.sparsify(
                Positions(kind).eval(), self.images, entrim.Widths(0.5), calibration=calibration
            ).record
            for kind in (layout, "images first")
        )
        assert [g.kept for g in other.groups] == [g.kept for g in usual.groups]
        assert [(f.rows, f.columns) for f in other.layers] == [
            (f.rows, f.columns) for f in usual.layers
        ]
        assert other.holdout is not None
        assert usual.holdout is not None
        assert other.holdout.error is not None
        assert usual.holdout.error is not None
        for bound in ("value", "low", "high"):
            expected = getattr(usual.holdout.error, bound)
            assert getattr(other.holdout.error, bound) == pytest.approx(expected, rel=1e-4)

    def test_a_user_defined_sensitivity_may_return_one_value_per_image(self, layout: str) -> None:
        def squared_error(found: Tensor, reference: Tensor) -> Tensor:
            return per_image((found - reference).square(), layout).mean((1, 2))

        calibration = entrim.Calibration(sensitivity=squared_error, holdout=0)
        model, images = Positions(layout).eval(), self.images[:303]
        record = entrim.sparsify(
            model, images, entrim.Budget(params=0.5), calibration=calibration
        ).record
        assert record.after.params <= 0.5 * record.before.params

    def test_an_exported_network_is_compared_on_all_images(self, layout: str) -> None:
        model, images = Positions(layout).eval(), self.images[:150]
        made = to_program(model, images)
        assert made.parity.images == 150
        assert made.parity.relative < 1e-6
        torch.testing.assert_close(made.outputs(images)[0], model(images))


def test_scores_with_the_images_second_are_distilled_by_their_squared_error() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.relu(self.a(x))).T

    teacher, images = Net().eval(), torch.randn(20, 8)
    with torch.no_grad():
        expected = teacher(images)
        found = expected + torch.randn_like(expected)
    variance = (expected - expected.mean(1, keepdim=True)).square().mean()
    loss = DistillationLoss.of(teacher, [images], temperature=1.0).distance([found], [expected])
    assert float(loss) == pytest.approx(float(F.mse_loss(found, expected) / variance))


def relative_error(model: nn.Module, small: nn.Module, images: Tensor) -> float:
    """Return the squared error of `small`, relative to the variance of `model`'s outputs."""
    with torch.no_grad():
        y, y0 = small(images.clone()), model(images.clone())
    return float((y - y0).square().sum() / (y0 - y0.mean(0)).square().sum())


class PositionNorm(nn.Module):
    """A Linear whose output is normalized over positions, not over its own channels."""

    def __init__(self, length: int, bias: bool) -> None:
        super().__init__()
        self.a = nn.Linear(8, 32)
        self.b = nn.Linear(32, 16, bias=bias)
        self.norm = nn.BatchNorm1d(length)
        self.norm.running_mean = torch.randn(length)
        self.norm.running_var = torch.rand(length) + 0.5
        self.head = nn.Linear(16, 3)
        if bias:
            nn.init.zeros_(self.b.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(self.b(F.relu(self.a(x))))).mean(1))


@pytest.mark.filterwarnings("ignore::entrim.errors.CalibrationWarning")
@pytest.mark.parametrize("length", [16, 5], ids=["as long as the channels", "of another length"])
def test_an_intercept_is_not_added_to_a_norm_over_another_axis(length: int) -> None:
    model = PositionNorm(length, bias=False).eval()
    images = torch.randn(200, length, 8)
    graph = entrim.trace(model, images[:4])
    assert {site.layer: site.intercept_target for site in graph.consumers}["b"] is None
    small = entrim.sparsify(model, images, entrim.Widths({"a": 0.5}))
    torch.testing.assert_close(small.model.norm.running_mean, model.norm.running_mean)  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    twin = PositionNorm(length, bias=True).eval()
    twin.load_state_dict({**model.state_dict(), "b.bias": torch.zeros(16)})
    other = entrim.sparsify(twin, images, entrim.Widths({"a": 0.5}))
    assert relative_error(model, small.model, images) < 1.5 * relative_error(
        twin, other.model, images
    )


class InPlace(nn.Module):
    """A network that normalizes its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 8, 3)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x -= 0.5
        x *= 2
        return self.head(F.relu(self.b(F.relu(self.a(x)))).mean((2, 3)))


class TestInPlaceInputs:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_images_are_not_modified_and_the_error_is_exact(self, dtype: torch.dtype) -> None:
        model, images = InPlace().eval().to(dtype), torch.rand(120, 3, 8, 8, dtype=dtype)
        before = images.clone()
        result = entrim.sparsify(model, images, entrim.Budget(macs=0.5), calibration=ALL)
        assert torch.equal(images, before)
        assert result.record.error == pytest.approx(
            relative_error(model, result.model, images), rel=1e-3
        )
        entrim.distill(result, images, entrim.Distillation(epochs=1))
        assert torch.equal(images, before)

    def test_measure_does_not_modify_the_example(self) -> None:
        example = torch.rand(2, 3, 8, 8)
        before = example.clone()
        entrim.measure(InPlace(), example, repeats=2)
        assert torch.equal(example, before)


class Aliased(nn.Module):
    """Layers that are attributes and members of a ModuleList at once."""

    def __init__(self, groups: int = 1) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 16, 3)
        self.b = nn.Conv2d(16, 16, 3, groups=groups)
        self.stages = nn.ModuleList([self.a, self.b])
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = F.relu(stage(x))
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("groups", [1, 16], ids=["dense", "depthwise"])
def test_a_module_with_two_names_is_pruned_once(groups: int, tmp_path: Path) -> None:
    model, images = Aliased(groups).eval(), torch.randn(80, 3, 8, 8)
    graph = entrim.trace(model, images[:4])
    assert not any("not used" in frozen.reason for frozen in graph.frozen)
    result = entrim.sparsify(model, images, entrim.Widths(0.5))
    small = result.model
    assert isinstance(small, Aliased)
    assert small.stages[0] is small.a
    assert (small.a.out_channels, small.b.in_channels, small.b.out_channels) == (8, 8, 8)
    assert small.b.groups == (8 if groups > 1 else 1)
    result.save(tmp_path / "small")
    again = entrim.load(model, tmp_path / "small")
    assert isinstance(again, Aliased)
    assert (again.a.out_channels, again.b.groups) == (8, small.b.groups)
    torch.testing.assert_close(again(images), small(images))


class Counting(nn.Module):
    """A classifier that counts its calls in a buffer."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Linear(8, 24), nn.Linear(24, 4)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        return self.head(F.relu(self.a(x)))


def test_a_buffer_written_in_forward_is_not_an_output() -> None:
    model, images = Counting().eval(), 4 * torch.randn(200, 8)
    plain = nn.Sequential(copy.deepcopy(model.a), nn.ReLU(), copy.deepcopy(model.head)).eval()
    counted, known = (
        entrim.sparsify(net, images, entrim.Budget(params=0.5)).record for net in (model, plain)
    )
    assert [point.divergence for point in counted.tradeoff] == pytest.approx(
        [point.divergence for point in known.tradeoff]
    )
    assert counted.groups[0].kept == known.groups[0].kept
    assert int(model.steps) == 0


class Spectral(nn.Module):
    """A layer with complex weights between real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 16)
        self.mix = nn.Linear(16, 12, dtype=torch.complex64)
        self.b, self.head = nn.Linear(12, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.mix(self.a(x) + 0.5j)
        return self.head(F.relu(self.b(mixed.real + mixed.imag)))


def test_layers_with_complex_weights_are_not_pruned_and_named() -> None:
    model, images = Spectral().eval(), torch.randn(150, 8)
    graph = entrim.trace(model, images[:4])
    reasons = {frozen.layer: frozen.reason for frozen in graph.frozen}
    assert "complex weights" in reasons["mix"]
    assert "complex weights" in reasons["a"]
    with pytest.warns(NothingCutWarning):
        result = entrim.sparsify(model, images, entrim.Widths(1.0))
    assert result.record.error == pytest.approx(0, abs=1e-9)


def test_complex_outputs_are_compared_with_their_imaginary_part() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 6)

        def forward(self, x: Tensor) -> Tensor:
            y = self.b(F.relu(self.a(x)))
            return torch.complex(torch.zeros_like(y), y)

    model, images = Net().eval(), torch.randn(150, 8)
    result = entrim.sparsify(model, images, entrim.Budget(params=0.5), calibration=ALL)
    with torch.no_grad():
        y, y0 = (net(images).imag for net in (result.model, model))
    error = float((y - y0).square().sum() / (y0 - y0.mean(0)).square().sum())
    assert result.record.error == pytest.approx(error, rel=1e-3)


class TestKeywordInputs:
    def test_capital_letters_are_bound(self) -> None:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

            def forward(self, X: Tensor, pixelValues: Tensor, scale: float = 1.0) -> Tensor:
                return self.head(F.relu(self.a(X + scale * pixelValues)))

        model = Net().eval()
        images = [
            {"pixelValues": torch.randn(50, 8), "X": torch.randn(50, 8), "scale": 0.5}
            for _ in range(3)
        ]
        result = entrim.sparsify(model, images, entrim.Budget(params=0.6))
        assert len(result.plan.kept["a"]) < 16
        assert result.record.error is not None


class FunctionalNorm(nn.Module):
    """BatchNorm as a function, its statistics in buffers of other names, one on the root."""

    mean: Tensor
    variance: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 16, 3, bias=False)
        self.b = nn.Conv2d(16, 12, 3, bias=False)
        self.stats = nn.Module()
        self.stats.register_buffer("m", torch.randn(16))
        self.stats.register_buffer("v", torch.rand(16) + 0.5)
        self.register_buffer("mean", torch.randn(12))
        self.register_buffer("variance", torch.rand(12) + 0.5)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.batch_norm(self.a(x), self.stats.m, self.stats.v))  # pyright: ignore[reportArgumentType]
        x = F.relu(F.batch_norm(self.b(x), self.mean, self.variance))
        return self.head(x.mean((2, 3)))


@pytest.mark.filterwarnings("ignore::entrim.errors.CalibrationWarning")
@pytest.mark.parametrize("batchnorm", ["keep", "reestimate"])
def test_statistics_of_functional_norms_may_have_any_name(batchnorm: str) -> None:
    model, images = FunctionalNorm().eval(), torch.randn(150, 3, 8, 8)
    widths, reconstruction = entrim.Widths(0.5), entrim.Reconstruction(batchnorm=batchnorm)
    result = entrim.sparsify(model, images, widths, reconstruction=reconstruction)
    assert isinstance(result.model, FunctionalNorm)
    assert result.model.mean.shape == (6,)
    assert not torch.isin(result.model.mean, model.mean).any()  # the intercept went there
    random = entrim.sparsify(model, images, widths, selector="random", reconstruction=None)
    assert relative_error(model, result.model, images) < relative_error(model, random.model, images)


@pytest.mark.filterwarnings("ignore::entrim.errors.CalibrationWarning")
def test_the_input_of_a_linear_layer_may_be_a_vector() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.style = nn.Parameter(torch.randn(6))
            self.embed, self.gate = nn.Linear(6, 16), nn.Linear(16, 12)
            self.a, self.head = nn.Linear(8, 12), nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.relu(self.a(x) * self.gate(F.relu(self.embed(self.style)))))

    model, images = Net().eval(), torch.randn(150, 8)
    result = entrim.sparsify(model, images, entrim.Widths(0.5))
    assert result.model.embed.out_features == 8  # pyright: ignore[reportAttributeAccessIssue]
    assert relative_error(model, result.model, images) < 1


@pytest.mark.filterwarnings("ignore::entrim.errors.CalibrationWarning")
def test_a_convolution_may_be_called_without_a_batch() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pattern = nn.Parameter(torch.randn(3, 8, 8))
            self.embed, self.gate = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 12, 3)
            self.a, self.head = nn.Linear(8, 12), nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            gate = self.gate(F.relu(self.embed(self.pattern))).mean((1, 2))
            return self.head(F.relu(self.a(x) * gate))

    model, images = Net().eval(), torch.randn(150, 8)
    for n_positions in (None, 3):
        calibration = entrim.Calibration(n_positions=n_positions)
        result = entrim.sparsify(model, images, entrim.Widths(0.5), calibration=calibration)
        assert result.model.embed.out_channels == 8  # pyright: ignore[reportAttributeAccessIssue]


class TestHooks:
    @pytest.fixture
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4)).eval()

    def test_hooks_are_called_once_to_check_them_and_kept(self, model: nn.Module) -> None:
        calls: list[type] = []
        model[0].register_forward_hook(lambda _, __, y: calls.append(type(y)))  # pyright: ignore[reportIndexIssue, reportArgumentType]
        model.register_forward_pre_hook(lambda _, x: calls.append(type(x[0])))  # pyright: ignore[reportArgumentType]
        images = torch.randn(120, 8)
        result = entrim.sparsify(model, images, entrim.Budget(params=0.5))
        assert calls == [Tensor, Tensor]
        entrim.distill(result, images, entrim.Distillation(epochs=1))
        assert len(calls) == 2
        result.model(images)
        assert len(calls) == 4

    def test_a_hook_that_changes_the_output_is_refused(self, model: nn.Module) -> None:
        model[0].register_forward_hook(lambda _, __, y: 2 * y)  # pyright: ignore[reportIndexIssue]
        with pytest.raises(TraceError, match="forward hook changes"):
            entrim.trace(model, torch.randn(4, 8))

    def test_hooks_of_pytorch_itself_remain_part_of_the_network(self) -> None:
        model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            nn.utils.spectral_norm(model[0])
        with torch.no_grad():
            model.eval()(torch.randn(4, 8))
        images = torch.randn(60, 8)
        network = nn.Sequential(model, nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 2)).eval()
        result = entrim.sparsify(network, images, entrim.Widths({"1": 11}))
        assert result.record.error == pytest.approx(
            relative_error(network, result.model, images), rel=1e-3, abs=1e-9
        )


class TestSurroundingContexts:
    def test_a_result_from_inference_mode_can_be_trained(self, tmp_path: Path) -> None:
        with torch.inference_mode():
            model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4)).eval()
            images = torch.randn(120, 8)
            result = entrim.sparsify(model, images, entrim.Budget(params=0.5))
            better = entrim.distill(result, images, entrim.Distillation(epochs=1))
            result.save(tmp_path)
            loaded = entrim.load(model, tmp_path)
        for small in (result.model, better.model, loaded):
            small(torch.randn(4, 8)).sum().backward()
            assert all(parameter.grad is not None for parameter in small.parameters())

    def test_autocast_around_the_call_has_no_influence(self) -> None:
        model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4)).eval()
        images = torch.randn(120, 8)
        plain = entrim.sparsify(model, images, entrim.Budget(params=0.5))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mixed = entrim.sparsify(model, images, entrim.Budget(params=0.5))
        assert mixed.plan.kept == plain.plan.kept
        for one, other in zip(mixed.model.parameters(), plain.model.parameters(), strict=True):
            torch.testing.assert_close(one, other)

    @pytest.mark.filterwarnings("ignore:.*torch.jit")
    @pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel])
    def test_a_wrapped_network_is_unwrapped(
        self, wrap: Callable[[Any], Any], tmp_path: Path
    ) -> None:
        model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4)).eval()
        images = torch.randn(120, 8)
        result = entrim.sparsify(wrap(model), images, entrim.Widths({"0": 5}))
        result.save(tmp_path)
        assert type(entrim.load(wrap(model), tmp_path)) is nn.Sequential
        assert entrim.SparsifyResult.load(wrap(model), tmp_path).original is model
        assert to_program(wrap(model), images).parity.relative < 1e-6
        assert type(result.model) is nn.Sequential
        assert result.original is model
        assert result.model[0].out_features == 5
        assert entrim.trace(wrap(model), images[:2]).groups[0].name == "0"


class TestRandomNumbers:
    def test_dropout_in_eval_mode_does_not_change_the_random_state(self) -> None:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b, self.head = nn.Linear(8, 24), nn.Linear(24, 8), nn.Linear(8, 4)

            def forward(self, x: Tensor) -> Tensor:
                noisy = F.dropout(x, 0.01, training=True)
                return self.head(F.relu(self.b(F.relu(self.a(noisy)))))

        model, images = Net().eval(), torch.randn(120, 8)
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        first = entrim.sparsify(model, images, entrim.Budget(params=0.5))
        assert torch.equal(torch.rand(3), expected)
        again = entrim.sparsify(model, images, entrim.Budget(params=0.5))
        assert first.plan.kept == again.plan.kept
        for use in (
            lambda: entrim.distill(first, images, entrim.Distillation(epochs=1)),
            lambda: entrim.Pruner(model, images).select(entrim.Budget(params=0.5)),
            lambda: to_program(model, images, tolerance=100.0),
        ):
            torch.manual_seed(5)
            use()
            assert torch.equal(torch.rand(3), expected)

    def test_a_constant_mask_beside_the_images_is_accepted(self) -> None:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

            def forward(self, x: Tensor, mask: Tensor) -> Tensor:
                return self.head(F.relu(self.a(x * mask)))

        images = [{"x": torch.randn(50, 8), "mask": torch.ones(50, 8)} for _ in range(2)]
        result = entrim.sparsify(Net().eval(), images, entrim.Widths({"a": 0.5}))
        assert result.model.a.out_features == 8  # pyright: ignore[reportAttributeAccessIssue]


def test_a_network_above_its_budget_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def cheaper(self: Costs, widths: Any) -> dict[str, int | float]:
        return {kind: 0.8 * value for kind, value in exact(self, widths).items()}

    exact = Costs.at
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4)).eval()
    monkeypatch.setattr(Costs, "at", cheaper)
    with pytest.warns(BudgetWarning, match=r"the budget was \d+ parameters"):
        result = entrim.sparsify(model, torch.randn(90, 8), entrim.Budget(params=150))
    assert result.record.after.params > 150
    assert any("the budget was" in note for note in result.record.notes)
