"""Normalizations over channels whose statistics are restricted to the kept channels."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import entrim
from entrim.graph.restricted import RestrictedStatistics, mark_removed
from entrim.surgery.prune import prune
from tests.surgery.kinds import Net, conv

KEPT = [0, 2, 3]


@pytest.mark.parametrize(
    ("norm", "shape", "axis"),
    [
        (nn.LayerNorm(5), (2, 4, 5), -1),
        (nn.LayerNorm(5, bias=False), (2, 4, 5), -1),
        (nn.RMSNorm(5), (2, 4, 5), -1),
        (nn.GroupNorm(1, 5), (2, 5, 3, 3), 1),
    ],
)
def test_a_marked_norm_equals_the_norm_of_the_kept_channels(
    norm: nn.Module, shape: tuple[int, ...], axis: int
) -> None:
    torch.manual_seed(0)
    x, kept = torch.randn(shape), torch.tensor(KEPT)
    small: nn.Module = copy.deepcopy(norm)
    for name, tensor in norm.named_parameters():
        tensor.data = torch.rand_like(tensor)
        setattr(small, name, nn.Parameter(tensor.data[kept]))
    if isinstance(small, nn.GroupNorm):
        small.num_channels = len(KEPT)
    elif isinstance(small, nn.LayerNorm | nn.RMSNorm):
        small.normalized_shape = (len(KEPT),)
    expected = small(x.index_select(axis, kept))
    weight = norm.get_parameter("weight")
    weight.data = mark_removed(weight.data, KEPT)
    with RestrictedStatistics():
        found = norm(x)
    assert torch.allclose(found.index_select(axis, kept), expected)
    others = [i for i in range(5) if i not in KEPT]
    assert not found.index_select(axis, torch.tensor(others)).any()


def test_a_marked_weight_is_noticed_by_every_other_operation() -> None:
    marked = mark_removed(torch.ones(5), KEPT)
    with RestrictedStatistics():
        assert torch.isnan(torch.ones(2, 5) * marked).any()
        assert torch.isnan(F.batch_norm(torch.ones(2, 5), None, None, marked, training=True)).any()


def block(net: Net, x: Tensor) -> Tensor:
    x = net.get_submodule("stem")(x)
    y = net.get_submodule("norm")(net.get_submodule("mix")(x).permute(0, 2, 3, 1))
    y = net.get_submodule("down")(F.gelu(net.get_submodule("up")(y)))
    return net.get_submodule("fc")((x + y.permute(0, 3, 1, 2)).mean((2, 3)))


def convnext() -> nn.Module:
    torch.manual_seed(0)
    return Net(
        block,
        stem=conv(3, 8),
        mix=conv(8, 8, groups=8),
        norm=nn.LayerNorm(8),
        up=nn.Linear(8, 16),
        down=nn.Linear(16, 8),
        fc=nn.Linear(8, 4),
    ).eval()


def test_the_executed_network_has_the_error_of_the_pruned_one() -> None:
    net, images = convnext(), torch.randn(40, 3, 8, 8)
    result = entrim.sparsify(
        net, images, entrim.Widths({"stem": 0.5}), calibration=entrim.Calibration(holdout=0)
    )
    with torch.no_grad():
        found, expected = (model(images).double() for model in (result.model, net))
    error = (found - expected).square().sum() / (expected - expected.mean(0)).square().sum()
    assert result.record.error == pytest.approx(float(error), rel=1e-4)
    assert any("normalize over the channels" in note for note in result.record.notes)
    assert result.model.get_submodule("norm").normalized_shape == (4,)


def test_a_saved_network_keeps_the_sizes_of_its_norms(tmp_path: object) -> None:
    net, images = convnext(), torch.randn(2, 3, 8, 8)
    done = prune(net, entrim.Plan({"stem": [0, 3, 5]}), images)
    entrim.save(done.model, done.plan, f"{tmp_path}/run")
    loaded = entrim.load(convnext(), f"{tmp_path}/run")
    assert torch.equal(loaded(images), done.model(images))
