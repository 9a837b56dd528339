"""Networks of other libraries with random weights: the number of groups, and correct pruning."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entrim.errors import NothingToCutError
from entrim.surgery.prune import prune
from entrim.surgery.trace import trace
from tests.surgery.kinds import Net, conv, shaken
from tests.surgery.oracle import distance, masked_outputs, outputs, random_plan

transformers = pytest.importorskip("transformers")

STAGES = {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 2, 1, 1]}


def resnet() -> nn.Module:
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(**STAGES))


def basic_resnet() -> nn.Module:
    config = transformers.ResNetConfig(**STAGES, layer_type="basic")
    return transformers.ResNetForImageClassification(config)


def regnet() -> nn.Module:
    config = transformers.RegNetConfig(**STAGES, groups_width=4)
    return transformers.RegNetForImageClassification(config)


def mobilenet_v1() -> nn.Module:
    config = transformers.MobileNetV1Config(depth_multiplier=0.25, image_size=32)
    return transformers.MobileNetV1ForImageClassification(config)


def mobilenet_v2() -> nn.Module:
    config = transformers.MobileNetV2Config(depth_multiplier=0.25, image_size=32)
    return transformers.MobileNetV2ForImageClassification(config)


def convnext() -> nn.Module:
    config = transformers.ConvNextConfig(
        hidden_sizes=[8, 12, 16, 20], depths=[1, 1, 2, 1], layer_scale_init_value=0.7
    )
    return transformers.ConvNextForImageClassification(config)


def efficientnet() -> nn.Module:
    config = transformers.EfficientNetConfig(
        width_coefficient=0.25, depth_coefficient=0.3, hidden_dim=320, image_size=32
    )
    return transformers.EfficientNetForImageClassification(config)


GROUPS: dict[Callable[[], nn.Module], int] = {
    resnet: 14,
    basic_resnet: 9,
    regnet: 20,
    mobilenet_v1: 14,
    mobilenet_v2: 25,
    convnext: 9,
    efficientnet: 24,
}


@pytest.mark.parametrize("build", GROUPS, ids=lambda build: build.__name__)
def test_a_network_of_transformers_is_pruned_correctly(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, example = shaken(build()), {"pixel_values": torch.randn(2, 3, 32, 32)}
    graph = trace(model, example)
    assert len(graph.groups) == GROUPS[build]
    plan = random_plan(graph, 0)
    result = prune(model, plan, example, graph=graph)
    expected = masked_outputs(copy.deepcopy(model), graph, plan.kept, example)
    assert distance(outputs(copy.deepcopy(result.model), example), expected) < 1e-6
    assert type(result.model) is type(model)
    assert sum(map(Tensor.numel, result.model.parameters())) < sum(
        map(Tensor.numel, model.parameters())
    )


def test_a_network_with_standardized_weights_is_refused_with_the_reason() -> None:
    config = transformers.BitConfig(
        embedding_size=8, hidden_sizes=[32, 32, 32, 32], depths=[1, 1, 1, 1], num_groups=4
    )
    model = transformers.BitForImageClassification(config)
    with pytest.raises(NothingToCutError, match=r"has a computed weight"):
        trace(model, {"pixel_values": torch.randn(2, 3, 32, 32)})


def unet() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        one = F.relu(n.one(x))
        two = F.relu(n.two(F.max_pool2d(one, 2)))
        low = F.relu(n.low(F.max_pool2d(two, 2)))
        two = F.relu(n.up_two(torch.cat([two, n.grow_two(low)], 1)))
        up = F.interpolate(two, scale_factor=2, mode="bilinear", align_corners=False)
        return n.out(F.relu(n.up_one(torch.cat([one, n.grow_one(up)], 1))))

    return Net(
        body,
        one=conv(3, 6),
        two=conv(6, 8),
        low=conv(8, 10),
        grow_two=nn.ConvTranspose2d(10, 8, 2, stride=2),
        up_two=conv(16, 8),
        grow_one=conv(8, 6, 1),
        up_one=conv(12, 6),
        out=conv(6, 2, 1),
    )


def detector() -> nn.Module:
    """Return a backbone with a feature pyramid, and one head shared by all of its levels."""

    def body(n: Any, x: Tensor) -> dict[str, list[Tensor]]:
        c3 = F.relu(n.c3(x))
        c4 = F.relu(n.n4(n.c4(c3)))
        c5 = F.relu(n.c5(c4))
        p5 = n.l5(c5)
        p4 = n.l4(c4) + F.interpolate(p5, size=c4.shape[-2:])
        p3 = n.l3(c3) + F.interpolate(p4, size=c3.shape[-2:])
        towers = [F.relu(n.norm(n.tower(p))) for p in (p3, p4, p5)]
        boxes = [n.box(t).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 4) for t in towers]
        return {"boxes": boxes, "scores": [n.score(t).flatten(2).sigmoid() for t in towers]}

    return Net(
        body,
        c3=conv(3, 6, stride=2),
        c4=conv(6, 8, stride=2, bias=False),
        n4=nn.BatchNorm2d(8),
        c5=conv(8, 10, stride=2),
        l3=conv(6, 8, 1),
        l4=conv(8, 8, 1),
        l5=conv(10, 8, 1),
        tower=conv(8, 8),
        norm=nn.GroupNorm(4, 8),
        box=conv(8, 4),
        score=conv(8, 3),
    )


@pytest.mark.parametrize(
    ("build", "groups"),
    [
        (
            unet,
            {"one": 6, "two": 8, "low": 10, "grow_two": 8, "up_two": 8, "grow_one": 6, "up_one": 6},
        ),
        (detector, {"c3": 6, "c4": 8, "c5": 10, "l5": 8, "tower": 4}),
    ],
)
def test_networks_with_many_scales_are_pruned_correctly(
    build: Callable[[], nn.Module], groups: dict[str, int]
) -> None:
    torch.manual_seed(0)
    model, example = shaken(build()), torch.randn(2, 3, 16, 16)
    graph = trace(model, example)
    assert {group.name: group.channels for group in graph.groups} == groups
    for seed in range(3):
        plan = random_plan(graph, seed)
        small = prune(model, plan, example, graph=graph).model
        expected = masked_outputs(copy.deepcopy(model), graph, plan.kept, example)
        assert distance(outputs(copy.deepcopy(small), example), expected) < 1e-6
