"""Pruning a network: what is preserved, verified and refused."""

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entrim import Plan, apply_plan, trace
from entrim.errors import NothingToCutError, PlanError, RolledBackWarning, SurgeryError, TraceError
from entrim.graph.channel_graph import Member
from entrim.surgery.prune import prune, trial_prune
from tests.surgery.kinds import Net, conv, shaken
from tests.surgery.oracle import distance, outputs, random_plan


class Small(nn.Module):
    """A residual network with a BatchNorm and a Linear behind a Flatten."""

    def __init__(self) -> None:
        super().__init__()
        self.a = conv(3, 8)
        self.b = conv(8, 8, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.c = conv(8, 6)
        self.fc = nn.Linear(6 * 16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x))
        x = F.relu(x + self.norm(self.b(x)))
        return self.fc(F.max_pool2d(self.c(x), 2).flatten(1))


STATISTICS = ("norm.running_mean", "norm.running_var")
PLAN = Plan({"a": [0, 3, 4], "c": [1, 5]})


@pytest.fixture
def model() -> Small:
    torch.manual_seed(0)
    net = Small()
    shaken(net)
    return net


@pytest.fixture
def images() -> Tensor:
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def random_weights(model: nn.Module, plan: Plan, example_inputs: Any) -> dict[str, Tensor]:
    graph = trace(model, example_inputs)
    return {
        name: torch.randn(graph.small_shape(name, plan.kept)) * 0.1 + 0.2
        for name, tensor in model.state_dict().items()
        if tensor.is_floating_point()
    }


def test_class_mode_gradient_flags_and_module_names_are_preserved(
    model: Small, images: Tensor
) -> None:
    model.train()
    model.norm.eval()
    model.b.weight.requires_grad_(False)
    model(images).sum().backward()
    small = apply_plan(model, PLAN, images)
    assert type(small) is Small
    assert [m.training for m in small.modules()] == [m.training for m in model.modules()]
    flags = {name: p.requires_grad for name, p in model.named_parameters()}
    assert {name: p.requires_grad for name, p in small.named_parameters()} == flags
    assert list(small.state_dict()) == list(model.state_dict())
    assert all(p.grad is None and p.is_leaf for p in small.parameters())
    assert all(isinstance(p, nn.Parameter) for p in small.parameters())


def test_the_original_network_is_not_modified(model: Small, images: Tensor) -> None:
    before, mode = copy.deepcopy(model.state_dict()), model.training
    apply_plan(model, PLAN, images)
    trace(model, images)
    after = model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert model.training is mode
    assert model.b.in_channels == 8
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_precision_is_preserved_and_verified(
    model: Small, images: Tensor, dtype: torch.dtype
) -> None:
    result = prune(model.to(dtype), PLAN, images.to(dtype))
    assert {p.dtype for p in result.model.parameters()} == {dtype}
    assert result.proof.dtype == torch.float64
    assert result.proof.sliced < 1e-12
    assert result.model(images.to(dtype)).dtype == dtype


def test_a_network_that_cannot_run_in_double_is_verified_in_its_own_precision(
    images: Tensor,
) -> None:
    net = Net(lambda n, x: n.b(n.a(x.float()).float()), a=conv(3, 8), b=conv(8, 4))
    result = prune(net, Plan({"a": [1, 2]}), images)
    assert result.proof.dtype == torch.float32
    assert result.proof.sliced <= result.proof.tolerance == 1e-4


def test_the_channels_last_format_is_preserved(model: Small, images: Tensor) -> None:
    for layer in (model.a, model.b, model.c):
        layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
    small = apply_plan(model, PLAN, images.to(memory_format=torch.channels_last))
    for layer in (small.get_submodule(name) for name in "abc"):
        weight = layer.get_parameter("weight")
        assert weight.is_contiguous(memory_format=torch.channels_last)
        assert not weight.is_contiguous()


def test_final_weights_are_those_of_the_plan_and_verified(model: Small, images: Tensor) -> None:
    weights = random_weights(model, PLAN, images)
    result = prune(model, Plan(PLAN.kept, weights), images)
    state = result.model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in weights.items())
    assert 0 <= result.proof.final <= result.proof.tolerance == 1e-9
    full = copy.deepcopy(model)
    wide = full.state_dict()
    rows, columns = torch.tensor(PLAN.kept["a"]), torch.tensor(PLAN.kept["c"])
    spots = (columns[:, None] * 16 + torch.arange(16)).flatten()
    for tensor in wide.values():
        tensor.zero_()
    wide["norm.running_var"].fill_(1)
    for name in ("a.weight", "a.bias", "norm.weight", "norm.bias", *STATISTICS):
        wide[name][rows] = weights[name]
    wide["b.weight"][rows[:, None], rows] = weights["b.weight"]
    wide["c.weight"][columns[:, None], rows] = weights["c.weight"]
    wide["c.bias"][columns] = weights["c.bias"]
    wide["fc.weight"][:, spots] = weights["fc.weight"]
    wide["fc.bias"].copy_(weights["fc.bias"])
    assert distance(outputs(result.model, images), outputs(full, images)) < 1e-12


def test_an_intercept_is_subtracted_from_the_running_mean(model: Small, images: Tensor) -> None:
    graph = trace(model, images)
    site = next(site for site in graph.consumers if site.layer == "b")
    intercept = torch.randn(3)
    small = apply_plan(model, PLAN, images)
    mean = small.get_buffer("norm.running_mean")
    assert site.intercept_target == "batchnorm:norm.running_mean"
    plan = Plan(PLAN.kept, {"norm.running_mean": mean - intercept})
    moved = apply_plan(model, plan, images).eval()
    shifted = copy.deepcopy(small).eval()
    b = shifted.get_submodule("b")
    b.register_parameter("bias", nn.Parameter(intercept))
    with torch.no_grad():
        torch.testing.assert_close(moved(images), shifted(images))


def test_a_wrong_graph_is_found_and_the_group_is_not_pruned(model: Small, images: Tensor) -> None:
    graph = trace(model, images)
    group = graph.group("c")
    swapped = tuple(
        dataclasses.replace(member, indices=member.indices[::-1])
        if member.tensor == "fc.weight"
        else member
        for member in group.members
    )
    wrong = dataclasses.replace(
        graph, groups=(graph.group("a"), dataclasses.replace(group, members=swapped))
    )
    assert any(isinstance(member, Member) and member.tensor == "fc.weight" for member in swapped)
    with pytest.warns(RolledBackWarning, match="c cannot be pruned"):
        result = prune(model, PLAN, images, graph=wrong)
    assert (result.rolled_back, dict(result.plan.kept)) == (("c",), {"a": (0, 3, 4)})


def test_a_graph_of_another_network_is_refused(model: Small, images: Tensor) -> None:
    graph = trace(model, images)
    small = apply_plan(model, PLAN, images)
    with pytest.raises(PlanError, match=r"a.weight has the shape \(8, 3, 3, 3\)"):
        prune(small, PLAN, images, graph=graph)


def test_a_batchnorm_that_is_used_by_two_layers_receives_no_intercept(images: Tensor) -> None:
    def body(n: Any, x: Tensor) -> Tensor:
        x = n.a(x)
        return n.d(n.norm(n.b(x)) + n.norm(n.c(x)))

    layers = {name: conv(6, 6, bias=False) for name in "bc"}
    net = Net(body, a=conv(3, 6), norm=nn.BatchNorm2d(6), d=conv(6, 4), **layers)
    targets = {site.layer: site.intercept_target for site in trace(net, images).consumers}
    assert targets == {"b": None, "c": None, "d": "bias"}


def test_a_layer_that_is_used_in_training_only_is_listed(images: Tensor) -> None:
    def body(n: Any, x: Tensor) -> Any:
        x = n.a(x)
        return (n.b(x), n.extra(x)) if n.training else n.b(x)

    net = Net(body, a=conv(3, 6), b=conv(6, 4), extra=conv(6, 4))
    frozen = {f.layer: f.reason for f in trace(net, images).frozen}
    assert "not used in eval mode" in frozen["extra"]


def test_an_error_above_tolerance_is_refused(model: Small, images: Tensor) -> None:
    weights = random_weights(model, PLAN, images)
    with pytest.raises(SurgeryError, match="above tolerance=0e"):
        prune(model, Plan(PLAN.kept, weights), images, tolerance=0.0)


def sized(n: Any, x: Tensor) -> Tensor:
    x = F.relu(n.b(F.relu(n.a(x))))
    return n.fc(F.max_pool2d(x, 2).view(-1, 96))


def test_a_group_with_its_size_in_the_code_is_rolled_back_and_named(images: Tensor) -> None:
    net = Net(sized, a=conv(3, 8), b=conv(8, 6), fc=nn.Linear(96, 4))
    plan = Plan({"a": [0, 1], "b": [0, 1]})
    with pytest.warns(RolledBackWarning, match="b cannot be pruned, because the code"):
        result = prune(net, plan, images)
    assert result.rolled_back == ("b",)
    assert result.model.get_submodule("a").out_channels == 2
    assert result.model.get_submodule("b").out_channels == 6
    frozen = {f.layer: f.reason for f in trace(net, images).frozen}
    assert "depends on its size" in frozen["b"]
    with pytest.raises(SurgeryError, match="remove b from the plan"):
        prune(net, Plan(plan.kept, {"fc.bias": torch.zeros(4), "b.bias": torch.zeros(2)}), images)


def test_incompatible_groups_are_found_by_bisection(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(n: Any, x: Tensor) -> Tensor:
        for name, layer in n.named_children():
            x = layer(x).view(-1, 6) if name == "l5" else layer(x)
        return x

    def counted(*args: Any) -> Any:
        trials.append(args)
        return trial_prune(*args)

    trials: list[Any] = []
    net = Net(body, **{f"l{k}": nn.Linear(6, 6) for k in range(17)})
    monkeypatch.setattr("entrim.surgery.prune.trial_prune", counted)
    graph = trace(net, torch.randn(2, 6))
    assert {group.name for group in graph.groups} == {f"l{k}" for k in range(16)} - {"l5"}
    assert len(trials) <= 8  # 2 log2(16); one by one would be 16


def test_nan_on_the_example_inputs_is_refused(images: Tensor) -> None:
    net = Net(lambda n, x: n.b(n.a(x)) / 0 * 0, a=conv(3, 8), b=conv(8, 4))
    with pytest.raises(SurgeryError, match="NaN on the example"):
        trace(net, images)


@pytest.mark.parametrize(
    ("net", "reason"),
    [
        (nn.Conv2d(3, 4, 1), "it is an output of the network"),
        (nn.ReLU(), "has no convolution or linear layer"),
        (nn.Sequential(nn.Conv2d(3, 4, 1), nn.Softmax(1)), "softmax runs over the channels"),
    ],
)
def test_a_network_with_nothing_to_prune_is_refused_with_the_reason(
    net: nn.Module, reason: str, images: Tensor
) -> None:
    with pytest.raises(NothingToCutError, match=reason):
        trace(net, images)


@pytest.mark.parametrize("name", ['a"]; print(1) #', "a\\b", "a\nb"])
def test_a_name_that_could_become_code_is_refused(name: str) -> None:
    net = nn.Sequential()
    net.add_module(name, nn.Linear(4, 4))
    with pytest.raises(TraceError, match="rename the layer"):
        trace(net, torch.ones(2, 4))


def test_a_network_that_cannot_be_exported_is_refused_with_a_remedy(images: Tensor) -> None:
    net = Net(lambda n, x: n.a(x) if x.sum() > 0 else n.a(-x), a=conv(3, 8))
    with pytest.raises(TraceError, match="depends on the values of a tensor"):
        trace(net, images)


def test_pruning_twice_is_the_same_as_pruning_once(model: Small, images: Tensor) -> None:
    once = apply_plan(model, Plan({"a": [1, 4, 6], "c": [0, 2]}), images)
    first = apply_plan(model, Plan({"a": [1, 3, 4, 6], "c": [0, 1, 2]}), images)
    twice = apply_plan(first, Plan({"a": [0, 2, 3], "c": [0, 2]}), images)
    state = once.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in twice.state_dict().items())


def test_a_plan_that_keeps_everything_changes_nothing(model: Small, images: Tensor) -> None:
    same = apply_plan(model, Plan({}), images)
    state = model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in same.state_dict().items())


def test_hooks_and_shared_tensors_are_preserved(model: Small, images: Tensor) -> None:
    calls: list[int] = []
    model.c.register_forward_hook(lambda *_: calls.append(1))
    model.register_buffer("mean_again", model.norm.running_mean)
    small = apply_plan(model, random_plan(trace(model, images), 3), images)
    assert small.get_buffer("mean_again") is small.get_buffer("norm.running_mean")
    calls.clear()
    small(images)
    assert calls == [1]
