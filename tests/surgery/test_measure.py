"""The costs of a network, compared with numbers computed by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from entrim import Latency, Measurement, measure
from entrim.errors import BadSettingError, MeasurementWarning
from experiments.models import LeNet
from tests.surgery.kinds import Net, conv


def test_the_lenet_of_the_paper_has_the_costs_of_its_table() -> None:
    cost = measure(LeNet(), torch.randn(2, 1, 28, 28), repeats=2)
    convolutions = 28 * 28 * 6 * 25 + 10 * 10 * 16 * 6 * 25
    assert cost.params == 61_706
    assert cost.macs == convolutions + 400 * 120 + 120 * 84 + 84 * 10
    assert cost.bytes == 4 * 61_706


def many_kinds() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = n.norm(n.depth(F.conv2d(x, n.kernel)))
        return n.fc(n.up(n.grouped(x)).flatten(1)) @ n.mix

    return Net(
        body,
        kernel=nn.Parameter(torch.randn(8, 3, 3, 3)),
        depth=conv(8, 8, groups=8),
        norm=nn.BatchNorm2d(8),
        grouped=conv(8, 4, 1, groups=2, stride=2),
        up=nn.ConvTranspose2d(4, 2, 2, stride=2, groups=2, bias=False),
        fc=nn.Linear(2 * 36, 5),
        mix=nn.Parameter(torch.randn(5, 7)),
    )


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_every_kind_of_product_counts_once_for_one_sample(batch: int) -> None:
    functional, depthwise = 36 * 8 * 27, 36 * 8 * 9
    grouped, transposed = 9 * 4 * 4, 9 * 4 * 1 * 4
    cost = measure(many_kinds(), torch.randn(batch, 3, 8, 8), repeats=2)
    assert cost.macs == functional + depthwise + grouped + transposed + 72 * 5 + 5 * 7
    assert cost.latency.batch == batch


def test_bytes_depend_on_the_precision_and_count_a_shared_tensor_once() -> None:
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)).half()
    net[1].weight = net[0].weight
    net.register_buffer("scale", torch.ones(3, dtype=torch.float64))
    cost = measure(net, torch.randn(2, 4).half(), repeats=2)
    assert (cost.params, cost.macs, cost.bytes) == (16, 32, 2 * 16 + 8 * 3)


class Stateful(nn.Module):
    """Counts its calls, draws random numbers, and can fail."""

    calls: Tensor
    steps: Tensor

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("steps", torch.zeros(1))
        self.fails = fails

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.steps = self.steps + 1
        if self.fails:
            raise RuntimeError("cannot")
        return self.norm(x) + torch.rand(4)


@pytest.mark.parametrize("fails", [False, True])
def test_mode_buffers_threads_and_random_state_do_not_change(fails: bool) -> None:
    net = Stateful(fails)
    net.norm.eval()
    threads, random = torch.get_num_threads(), torch.random.get_rng_state()
    if fails:
        with pytest.raises(RuntimeError, match="cannot"):
            measure(net, torch.randn(2, 4, generator=torch.Generator()), threads=2)
    else:
        measure(net, torch.randn(2, 4, generator=torch.Generator()), threads=2)
    assert (net.training, net.norm.training) == (True, False)
    assert (net.calls.item(), net.steps.item()) == (0, 0)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.random.get_rng_state(), random)


def test_the_latency_is_positive_and_contains_its_conditions() -> None:
    latency = measure(LeNet(), torch.randn(5, 1, 28, 28), repeats=7, threads=1).latency
    assert latency.median > 0
    assert latency.deviation >= 0
    assert (latency.batch, latency.threads, latency.repeats) == (5, 1, 7)


def test_a_measurement_is_printed_in_one_line() -> None:
    latency = Latency(median=0.01234, deviation=0.0005, batch=8, threads=1, repeats=20)
    cost = Measurement(params=61_706, macs=416_520, bytes=246_824, latency=latency)
    assert str(cost) == (
        "61,706 parameters, 416,520 MACs, 247 kB, "
        "12.3 ms (spread 0.5 ms) for a batch of 8 on 1 thread, median of 20"
    )
    assert "2 threads" in str(Latency(median=1.0, deviation=0.0, batch=1, threads=2, repeats=2))
    assert "2.5 GB" in str(Measurement(params=0, macs=0, bytes=2_500_000_000, latency=latency))


def test_example_inputs_may_be_a_dict_and_the_batch_may_be_given() -> None:
    net = Net(lambda n, x, scale: n.fc(x) * scale, fc=nn.Linear(4, 2))
    cost = measure(net, {"scale": 2.0, "x": torch.randn(6, 4)}, repeats=2)
    assert (cost.macs, cost.latency.batch) == (8, 6)
    free = Net(lambda n, size: n.fc(torch.ones(size, 4)), fc=nn.Linear(4, 2))
    assert measure(free, (5,), batch=5, repeats=2).macs == 8
    with pytest.raises(BadSettingError, match="batch="):
        measure(free, (5,))


@pytest.mark.parametrize("setting", [{"repeats": 1}, {"batch": 0}, {"threads": 0}])
def test_options_out_of_range_are_refused(setting: dict[str, int]) -> None:
    with pytest.raises(BadSettingError, match="must be"):
        measure(LeNet(), torch.randn(2, 1, 28, 28), **setting)


def test_a_compiled_network_is_measured_as_it_is() -> None:
    compiled: Any = torch.compile(LeNet(), backend="eager")
    cost = measure(compiled, torch.randn(2, 1, 28, 28), repeats=2)
    torch._dynamo.reset()
    assert (cost.params, cost.macs) == (61_706, 416_520)


def test_a_view_of_a_parameter_may_be_the_input_of_a_layer() -> None:
    def body(n: Any, x: Tensor) -> Tensor:
        return n.fc(x) + n.embed(n.token.expand(len(x), -1))

    net = Net(body, fc=nn.Linear(4, 3), embed=nn.Linear(5, 3))
    net.register_parameter("token", nn.Parameter(torch.randn(1, 5)))
    assert measure(net, torch.randn(2, 4), repeats=2).macs == 4 * 3 + 5 * 3
    assert all(parameter.requires_grad for parameter in net.parameters())


def test_an_operation_that_cannot_be_counted_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> int:
        raise AssertionError("shapes are incompatible")

    monkeypatch.setitem(flop_registry, torch.ops.aten.convolution, refuse)
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Linear(16, 2))
    with pytest.warns(MeasurementWarning, match=r"do not include aten\.convolution, .* params"):
        cost = measure(net, torch.randn(2, 3, 2, 2), repeats=2)
    assert cost.macs == 16 * 2


def test_a_counter_that_fails_does_not_fail_the_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Failing(FlopCounterMode):
        def __exit__(self, *args: object) -> None:
            super().__exit__(*args)
            raise AssertionError("no gradient function")

    monkeypatch.setattr("entrim.surgery.measure.FlopCounterMode", Failing)
    with pytest.warns(MeasurementWarning, match="no gradient function"):
        assert measure(nn.Linear(4, 2), torch.randn(2, 4), repeats=2).params == 10
