"""The operations behind a layer, up to the first activation."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import entrim
from entrim.calibration.executor import Program
from entrim.reconstruction.output_path import OutputPath
from tests.pipeline.networks import images, settled


class Behind(nn.Module):
    """A convolution with BatchNorm, and a function of its outputs and inputs."""

    def __init__(self, behind: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.behind = behind

    def forward(self, x: Tensor) -> Tensor:
        return self.behind(self.bn(self.conv(x)), x)


def path_behind(behind: Callable[[Tensor, Tensor], Tensor]) -> OutputPath:
    """Return the path of the output of the convolution."""
    program = Program.of(Behind(behind).eval(), images(2, 4, 6, 6))
    return OutputPath.of(program, place_of_convolution(program))


def place_of_convolution(program: Program) -> int:
    called = [str(node.target) * (node.op == "call_function") for node in program.nodes]
    return next(place for place, name in enumerate(called) if "conv" in name)


@pytest.mark.parametrize(
    ("behind", "limits"),
    [
        (lambda y, _: y.relu(), (0.0, math.inf)),
        (lambda y, _: F.relu6(y), (0.0, 6.0)),
        (lambda y, _: F.hardtanh(y, -2.0, 3.0), (-2.0, 3.0)),
        (lambda y, _: y.clamp(min=0.5), (0.5, math.inf)),
        (lambda y, _: F.silu(y), None),
        (lambda y, _: F.leaky_relu(y), None),
        (lambda y, _: y, None),
        (lambda y, _: y.relu() + y, None),
        (lambda y, _: F.max_pool2d(y, 2).relu(), None),
        (lambda y, x: (y + x).relu(), (0.0, math.inf)),
        (lambda y, x: y + x, None),
        (lambda y, x: (y + 2 * x + x.mean()).relu(), None),
        (lambda y, x: (y * x).relu(), None),
    ],
)
def test_an_activation_is_found_if_it_is_the_only_reader(
    behind: Callable[[Tensor, Tensor], Tensor], limits: tuple[float, float] | None
) -> None:
    assert path_behind(behind).limits == limits


def test_the_skip_connection_is_the_other_operand_of_the_sum() -> None:
    path = path_behind(lambda y, x: (x + y).relu())
    assert path.other is not None
    assert path.other.op == "placeholder"
    assert path_behind(lambda y, _: y.relu()).other is None


def test_the_normalized_output_is_that_of_the_batchnorm() -> None:
    model = Behind(lambda y, _: y.relu())
    settle = nn.Sequential(nn.Conv2d(3, 4, 1), model)
    settled(settle)
    program = Program.of(model, images(2, 4, 6, 6))
    place = place_of_convolution(program)
    rows = torch.randn(7, 4)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    found = OutputPath.of(program, place).normalize(rows, tensors)
    torch.testing.assert_close(found, model.bn(rows[:, :, None, None])[:, :, 0, 0])


@pytest.mark.parametrize(("shape", "limits"), [((2, 4), (0.0, math.inf)), ((2, 4, 4), None)])
def test_a_norm_over_positions_hides_the_activation_behind_it(
    shape: tuple[int, ...], limits: tuple[float, float] | None
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()).eval()
    program = Program.of(model, torch.randn(shape))
    called = [str(node.target) for node in program.nodes]
    place = next(place for place, name in enumerate(called) if "linear" in name)
    assert OutputPath.of(program, place).limits == limits


class Shortcut(nn.Module):
    """Two blocks; the second one widens, and pads its skip connection behind its convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.conv1 = nn.Conv2d(8, 12, 3, padding=1)
        self.conv2 = nn.Conv2d(12, 8, 3, padding=1)
        self.conv3 = nn.Conv2d(8, 24, 3, stride=2, padding=1)
        self.conv4 = nn.Conv2d(24, 16, 3, padding=1)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stream(x).mean((2, 3)))

    def stream(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = (self.conv2(self.conv1(x).relu()) + x).relu()
        y = self.conv4(self.conv3(x).relu())
        return (y + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 4, 4))).relu()


@pytest.mark.parametrize("relaxation", [0, 3])
def test_the_change_of_a_skip_connection_without_parameters_is_corrected(relaxation: int) -> None:
    """The padded skip connection is computed after the layer that corrects it."""
    torch.manual_seed(0)
    model, x = Shortcut().eval(), images(300, 3, 8, 8)
    errors = {}
    for corrected in (False, True):
        r = entrim.sparsify(
            model,
            x,
            entrim.Widths({"conv1": 3}),
            reconstruction=entrim.Reconstruction(
                residual_correction=corrected, relaxation=relaxation
            ),
        )
        small = r.model
        assert isinstance(small, Shortcut)
        with torch.no_grad():
            errors[corrected] = float((small.stream(x) - model.stream(x)).square().mean())
    assert errors[True] < 0.9 * errors[False]
