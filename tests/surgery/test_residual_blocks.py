"""Residual blocks: which are found, and networks in which some are an identity."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import entrim
from entrim.errors import PlanError, SaveError, SurgeryError
from entrim.graph.channel_graph import ChannelGraph
from entrim.surgery import prune as pruning
from entrim.surgery.prune import prune

IMAGES = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class BasicBlock(nn.Module):
    """Two convolutions beside a shortcut, and an activation behind the sum."""

    def __init__(self, before: int, width: int, stride: int = 1, in_place: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=in_place)
        self.downsample = nn.Identity()
        if stride != 1 or before != width:
            self.downsample = nn.Conv2d(before, width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.downsample(x)
        return self.relu(out)


class Bottleneck(nn.Module):
    """Three convolutions beside the identity: two groups inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, 4, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(4)
        self.conv3 = nn.Conv2d(4, width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return F.relu(self.bn3(self.conv3(out)) + x)


class PreActivation(nn.Module):
    """Normalization and activation before the convolutions, nothing behind the sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(F.relu(self.bn2(self.conv1(F.relu(self.bn1(x))))))


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution and projection, nothing behind the sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(width, 12, 1, bias=False),
            nn.BatchNorm2d(12),
            nn.ReLU6(inplace=True),
            nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False),
            nn.BatchNorm2d(12),
            nn.ReLU6(inplace=True),
            nn.Conv2d(12, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x)


def network(*blocks: nn.Module, width: int = 6) -> nn.Sequential:
    """Return a network of `blocks` with random weights and running statistics."""
    stem = (nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU())
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 4))
    net = nn.Sequential(*stem, *copy.deepcopy(blocks), *head)
    draw = torch.Generator().manual_seed(1)
    for name, tensor in [*net.named_parameters(), *net.named_buffers()]:
        if tensor.is_floating_point():
            value = torch.randn(tensor.shape, generator=draw) / 2
            tensor.data.copy_(value.abs() + 0.5 if "running_var" in name else value)
    return net.eval()


def blocks_of(net: nn.Module) -> list[str]:
    return [block.name for block in entrim.trace(net, IMAGES).blocks]


def without_branch(net: nn.Sequential, *numbers: int) -> Tensor:
    """Return the outputs of a sequential network without some of its modules."""
    x = IMAGES.double()
    for number, module in enumerate(net.double()):
        x = x if number in numbers else module(x)
    return x


KINDS = {
    "basic": (BasicBlock(6, 6), BasicBlock(6, 6)),
    "basic, not in place": (BasicBlock(6, 6, in_place=False), BasicBlock(6, 6, in_place=False)),
    "bottleneck": (Bottleneck(6), Bottleneck(6)),
    "pre-activation": (PreActivation(6), PreActivation(6)),
    "inverted": (InvertedResidual(6), InvertedResidual(6)),
}


@pytest.mark.parametrize("block_type", KINDS)
def test_a_removed_block_is_an_identity_and_the_rest_is_unchanged(block_type: str) -> None:
    net = network(*KINDS[block_type])
    assert blocks_of(net) == ["3", "4"]
    done = prune(net, entrim.Plan({}, removed_blocks=["3"]), IMAGES)
    assert isinstance(done.model.get_submodule("3"), nn.Identity)
    assert done.proof.sliced <= 1e-9
    found = done.model.double()(IMAGES.double())
    torch.testing.assert_close(found, without_branch(net, 3))


@pytest.mark.parametrize("block_type", KINDS)
def test_inner_groups_are_those_of_the_branch(block_type: str) -> None:
    graph = entrim.trace(network(*KINDS[block_type]), IMAGES)
    groups = graph.block("3").groups
    assert len(groups) == (2 if block_type == "bottleneck" else 1)
    assert all(name.startswith("3.") for name in groups)


def test_channels_of_the_residual_stream_can_be_pruned_with_a_block() -> None:
    net = network(*KINDS["bottleneck"])
    plan = entrim.Plan({"0": [0, 2, 5], "4.conv1": [1, 2]}, removed_blocks=["3"])
    small = entrim.apply_plan(net, plan, IMAGES)
    shapes = {name: tuple(p.shape) for name, p in small.named_parameters()}
    assert shapes["0.weight"] == (3, 3, 3, 3)
    assert shapes["4.conv1.weight"] == (2, 3, 1, 1)


def test_a_block_with_a_projection_shortcut_is_not_removable() -> None:
    assert blocks_of(network(BasicBlock(6, 8), BasicBlock(8, 8), width=8)) == ["4"]
    assert blocks_of(network(BasicBlock(6, 6, 2), BasicBlock(6, 6))) == ["4"]


def test_an_activation_that_changes_the_input_prevents_the_removal() -> None:
    assert blocks_of(network(nn.BatchNorm2d(6), BasicBlock(6, 6), BasicBlock(6, 6))) == ["5"]


def test_a_module_that_is_called_twice_is_not_removable() -> None:
    block = BasicBlock(6, 6)
    assert blocks_of(network(block, BasicBlock(6, 6), block)) == ["4"]


def test_a_block_that_shares_a_weight_is_not_removable() -> None:
    one, other = BasicBlock(6, 6), BasicBlock(6, 6)
    one.conv2.weight = other.conv2.weight
    assert blocks_of(network(one, other)) == []


def test_a_module_with_two_names_is_not_removable() -> None:
    net = network(*KINDS["basic"])
    net[4].register_module("neighbor", nn.Identity())
    net.add_module("alias", nn.Identity())
    net[5].register_module("again", net[3])
    assert blocks_of(net) == ["4"]


class Scaled(nn.Module):
    """A sum with a factor, which is no identity without its branch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(6, 6, 3, padding=1)
        self.more = nn.Conv2d(6, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.add(self.more(F.relu(self.conv(x))), x, alpha=2)


class TwoOutputs(BasicBlock):
    """A block whose inner values are used outside."""

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        inner = self.relu(self.bn1(self.conv1(x)))
        self.inner = inner
        return self.relu(self.bn2(self.conv2(inner)) + x)


class Watching(nn.Module):
    """Reads an inner value of a block."""

    def __init__(self) -> None:
        super().__init__()
        self.block = TwoOutputs(6, 6, in_place=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x) * self.block.inner.mean()


def test_other_sums_and_inner_values_that_are_used_outside_are_not_removable() -> None:
    assert blocks_of(network(Scaled())) == []
    assert blocks_of(network(Watching())) == []


class UsedTwice(nn.Module):
    """A block whose input is also used outside."""

    def __init__(self) -> None:
        super().__init__()
        self.block = BasicBlock(6, 6)
        self.behind = nn.Conv2d(12, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.behind(torch.cat([self.block(x), x], 1))


def test_a_block_whose_input_is_used_outside_is_removable() -> None:
    net = network(UsedTwice())
    assert blocks_of(net) == ["3.block"]
    done = prune(net, entrim.Plan({}, removed_blocks=["3.block"]), IMAGES)
    assert done.proof.sliced <= 1e-9


class TwoArguments(BasicBlock):
    """A block whose caller passes a second argument."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return super().forward(x)


class Caller(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = TwoArguments(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x, 2.0)


def test_a_block_that_an_identity_cannot_replace_is_not_listed() -> None:
    assert blocks_of(network(Caller())) == []


def test_removed_blocks_survive_saving_and_loading(tmp_path: Path) -> None:
    net = network(*KINDS["basic"])
    plan = entrim.Plan({"4.conv1": [0, 3]}, removed_blocks=["3"])
    small = entrim.apply_plan(net, plan, IMAGES)
    entrim.save(small, plan, tmp_path)
    again = entrim.load(network(*KINDS["basic"]), tmp_path)
    assert isinstance(again.get_submodule("3"), nn.Identity)
    assert torch.equal(again(IMAGES), small(IMAGES))
    entrim.save(again, plan, tmp_path)
    with pytest.raises(SaveError, match="still has the block 4"):
        entrim.save(small, entrim.Plan(plan.kept, removed_blocks=["3", "4"]), tmp_path)


def test_a_pruned_network_can_lose_another_block(tmp_path: Path) -> None:
    net = network(*KINDS["basic"])
    first = entrim.apply_plan(net, entrim.Plan({"4.conv1": [0]}, removed_blocks=["3"]), IMAGES)
    plan = entrim.Plan({"0": [1, 2]}, removed_blocks=["4"])
    second = entrim.apply_plan(first, plan, IMAGES)
    entrim.save(second, plan, tmp_path)
    again = entrim.load(net, tmp_path)
    assert all(isinstance(again.get_submodule(k), nn.Identity) for k in ("3", "4"))
    assert torch.equal(again(IMAGES), second(IMAGES))


def test_plans_with_removed_blocks_survive_json_and_older_plans_are_read() -> None:
    plan = entrim.Plan({"0": [1]}, removed_blocks=["3", "3"])
    again = entrim.Plan.from_json(plan.to_json())
    assert (again.kept, again.removed_blocks) == ({"0": (1,)}, ("3",))
    assert entrim.Plan.from_json('{"format": 1, "kept": {}}').removed_blocks == ()
    assert entrim.Plan({"0": [1]}).to_json() == '{"format": 1, "kept": {"0": [1]}}'


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (entrim.Plan({}, removed_blocks=["5"]), "not a residual block .* \\(3, 4\\)"),
        (entrim.Plan({"3.conv1": [0]}, removed_blocks=["3"]), "changes 3.conv1 inside"),
        (entrim.Plan({}, {"3.bn1.bias": torch.zeros(6)}, ["3"]), "changes 3.bn1.bias inside"),
    ],
)
def test_plans_that_do_not_fit_are_refused(plan: entrim.Plan, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        prune(network(*KINDS["basic"]), plan, IMAGES)


def test_removed_blocks_must_be_names() -> None:
    with pytest.raises(PlanError, match="must be a list of names"):
        entrim.Plan({}, removed_blocks="layer1.0")


def test_the_verification_fails_if_the_identity_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def replace_by_a_wrong_module(model: nn.Module, name: str) -> None:
        model.register_module(name, nn.AvgPool2d(3, 1, 1))

    net = network(*KINDS["basic"])
    graph = entrim.trace(net, IMAGES)
    monkeypatch.setattr(pruning, "replace_by_identity", replace_by_a_wrong_module)
    weights = {"7.bias": torch.zeros(4)}
    with pytest.raises(SurgeryError, match="3 cannot be pruned"):
        prune(net, entrim.Plan({}, weights, ["3"]), IMAGES, graph=graph)


def test_the_graph_lists_removable_blocks() -> None:
    graph: ChannelGraph = entrim.trace(network(*KINDS["basic"]), IMAGES)
    assert "block  groups  can be replaced by\n3      1       an identity" in str(graph)
