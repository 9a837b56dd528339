"""Kinds of normalisation, activation and pooling."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.surgery.kinds.kind import Net, conv, pooled, register_kind


@register_kind("BatchNorm without bias", {"a": 6, "b": 5})
def _() -> nn.Module:
    return Net(
        lambda n, x: pooled(n, F.relu(n.nb(n.b(F.relu(n.na(n.a(x))))))),
        a=conv(3, 6, bias=False),
        na=nn.BatchNorm2d(6),
        b=conv(6, 5, bias=False),
        nb=nn.BatchNorm2d(5, affine=False),
        fc=nn.Linear(5, 4),
    )


@register_kind("BatchNorm of the batch at hand", {"a": 6})
def _() -> nn.Module:
    return Net(
        lambda n, x: n.b(n.na(n.a(x))),
        a=conv(3, 6),
        na=nn.BatchNorm2d(6, track_running_stats=False),
        b=conv(6, 4),
    )


@register_kind("InstanceNorm", {"a": 6, "b": 5})
def _() -> nn.Module:
    return Net(
        lambda n, x: pooled(n, F.elu(n.nb(n.b(F.relu(n.na(n.a(x))))))),
        a=conv(3, 6),
        na=nn.InstanceNorm2d(6),
        b=conv(6, 5),
        nb=nn.InstanceNorm2d(5, affine=True, track_running_stats=True),
        fc=nn.Linear(5, 4),
    )


@register_kind("GroupNorm", {"a": 4, "b": 6, "c": 2})
def _() -> nn.Module:
    return Net(
        lambda n, x: pooled(n, n.nc(n.c(n.nb(n.b(F.relu(n.na(n.a(x)))))))),
        a=conv(3, 8),
        na=nn.GroupNorm(4, 8),
        b=conv(8, 6),
        nb=nn.GroupNorm(6, 6),
        c=conv(6, 6),
        nc=nn.GroupNorm(2, 6, affine=False),
        fc=nn.Linear(6, 4),
    )


@register_kind("a GroupNorm without parameters, used twice", {"a": 3})
def _() -> nn.Module:
    return Net(
        lambda n, x: pooled(n, n.norm(n.b(n.norm(n.a(x))))),
        a=conv(3, 6),
        b=conv(6, 6),
        norm=nn.GroupNorm(3, 6, affine=False),
        fc=nn.Linear(6, 4),
    )


@register_kind("GroupNorm of one group", {"a": 6, "b": 5})
def _() -> nn.Module:
    return Net(
        lambda n, x: pooled(n, n.b(n.na(n.a(x)))),
        a=conv(3, 6),
        na=nn.GroupNorm(1, 6),
        b=conv(6, 5),
        fc=nn.Linear(5, 4),
    )


@register_kind("LayerNorm", {"a": 6, "b": 12})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = n.a(x)
        y = n.c(F.gelu(n.b(n.norm(x.permute(0, 2, 3, 1))))) * n.gamma
        return pooled(n, x + y.permute(0, 3, 1, 2))

    return Net(
        body,
        a=conv(3, 6),
        norm=nn.LayerNorm(6),
        b=nn.Linear(6, 12),
        c=nn.Linear(12, 6),
        gamma=nn.Parameter(torch.rand(6)),
        fc=nn.Linear(6, 4),
    )


@register_kind("LayerNorm without a weight", {"b": 12}, {"a": "over the channels without a weight"})
def _() -> nn.Module:
    return Net(
        lambda n, x: pooled(n, n.b(n.norm(n.a(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)),
        a=conv(3, 6),
        norm=nn.LayerNorm(6, elementwise_affine=False),
        b=nn.Linear(6, 12),
        fc=nn.Linear(12, 4),
    )


@register_kind("RMSNorm, shared by two calls", {"a": 6, "b": 7})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = n.norm(n.a(x).permute(0, 2, 3, 1))
        x = x + n.c(F.gelu(n.b(n.norm(x))))
        return n.fc(x.mean((1, 2)))

    return Net(
        body,
        a=conv(3, 6),
        norm=nn.RMSNorm(6),
        b=nn.Linear(6, 7),
        c=nn.Linear(7, 6),
        fc=nn.Linear(6, 4),
    )


@register_kind("LayerNorm over two concatenated groups", {"a": 4, "b": 6})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = torch.cat([n.a(x), n.b(x)], 1).permute(0, 2, 3, 1)
        return n.fc(n.norm(x).mean((1, 2)))

    return Net(
        body,
        a=conv(3, 4),
        b=conv(3, 6),
        norm=nn.LayerNorm(10, bias=False),
        fc=nn.Linear(10, 4),
    )


@register_kind("LayerNorm over positions", {"a": 6})
def _() -> nn.Module:
    return Net(
        lambda n, x: n.b(n.norm(n.a(x))), a=conv(3, 6), norm=nn.LayerNorm([8, 8]), b=conv(6, 4)
    )


@register_kind("PReLU", {"a": 6, "b": 5})
def _() -> nn.Module:
    return Net(
        lambda n, x: pooled(n, n.pb(n.b(n.pa(n.a(x))))),
        a=conv(3, 6),
        pa=nn.PReLU(6),
        b=conv(6, 5),
        pb=nn.PReLU(),
        fc=nn.Linear(5, 4),
    )


@register_kind("activations of every kind", {"a": 6})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = n.a(x)
        parts = [F.silu(x), F.hardswish(x), F.gelu(x), F.leaky_relu(x), F.relu6(x), F.mish(x)]
        parts += [F.softplus(x), F.elu(x), F.selu(x), F.hardsigmoid(x), F.softsign(x), x.tanh()]
        parts += [F.logsigmoid(x), F.celu(x), F.hardtanh(x), F.softshrink(x), x.clamp(-1, 1)]
        y = torch.where(x > 0, sum(parts), x.abs() + 1e-3)
        return n.b(
            F.dropout(F.dropout2d(torch.maximum(y, -x), training=n.training), 0.5, n.training)
        )

    return Net(body, a=conv(3, 6), b=conv(6, 4))


@register_kind("pooling and interpolation", {"a": 6})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = n.a(x)
        x = F.avg_pool2d(x, 3, 1, 1) + F.max_pool2d(x, 3, 1, 1) + F.lp_pool2d(F.relu(x), 2, 1)
        x = F.interpolate(x, scale_factor=2, mode="bilinear") + F.interpolate(x, 16)
        x = F.adaptive_max_pool2d(x, 4) + F.interpolate(x, (4, 4), mode="bicubic")
        return n.b(x * x.softmax(-1) + x.amax((2, 3), keepdim=True) + x.std(dim=3, keepdim=True))

    return Net(body, a=conv(3, 6), b=conv(6, 4))
