"""The ways in which channels meet."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.surgery.kinds.kind import Net, conv, pooled, register_kind, shuffle


@register_kind("residual", {"a": 6})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = n.a(x)
        x = x + n.nb(n.b(F.relu(x)))
        x += n.c(x)
        return pooled(n, x)

    return Net(
        body,
        a=conv(3, 6),
        b=conv(6, 6, bias=False),
        nb=nn.BatchNorm2d(6),
        c=conv(6, 6),
        fc=nn.Linear(6, 4),
    )


@register_kind("concat", {"a": 6, "b": 5, "c": 4})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        a = n.a(x)
        b = n.b(torch.cat([x, a], 1))
        return pooled(n, n.c(n.norm(torch.cat([b, a, x, b], 1))))

    return Net(
        body,
        a=conv(3, 6),
        b=conv(9, 5),
        norm=nn.BatchNorm2d(19),
        c=conv(19, 4),
        fc=nn.Linear(4, 4),
    )


@register_kind("concat over a residual", {"a": 10})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        y = torch.cat([n.a(x), n.b(x)], 1)
        return pooled(n, y + n.c(y))

    return Net(body, a=conv(3, 6), b=conv(3, 4), c=conv(10, 10), fc=nn.Linear(10, 4))


@register_kind("concat of positions", {"a": 6})
def _() -> nn.Module:
    return Net(
        lambda n, x: pooled(n, torch.cat([n.a(x), n.b(x)], 2)),
        a=conv(3, 6),
        b=conv(3, 6),
        fc=nn.Linear(6, 4),
    )


@register_kind("stack", {"a": 6})
def _() -> nn.Module:
    return Net(
        lambda n, x: pooled(n, torch.stack([n.a(x), n.b(x)]).amax(0)),
        a=conv(3, 6),
        b=conv(3, 6),
        fc=nn.Linear(6, 4),
    )


@register_kind("chunk", {"a": 4, "b": 4})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        gate, value = n.a(x).chunk(2, 1)
        first, second = n.b(gate.sigmoid() * value).tensor_split(2, 1)
        return pooled(n, first * second.tanh())

    return Net(body, a=conv(3, 8), b=conv(4, 8), fc=nn.Linear(4, 4))


@register_kind("slice", {"a": 2, "b": 2})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = n.a(x)[:, :, 1:, ::2]
        quarter = x.shape[1] // 4
        return pooled(n, torch.cat([n.b(x[:, :quarter]), x[:, quarter:]], 1))

    return Net(body, a=conv(3, 8), b=conv(2, 2), fc=nn.Linear(8, 4))


@register_kind("uneven slices", {"b": 5}, {"a": "parts of unequal size"})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = n.a(x)
        return pooled(n, n.b(x[:, :3]) + x[:, 3:4] + x[:, 0:1])

    return Net(body, a=conv(3, 8), b=conv(3, 5), fc=nn.Linear(5, 4))


@register_kind("permute and flip", {"a": 6})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = n.a(x).permute(0, 2, 3, 1).transpose(1, 2).flip(-1)
        return pooled(n, x.movedim(-1, 1).contiguous().roll(2, 2))

    return Net(body, a=conv(3, 6), fc=nn.Linear(6, 4))


@register_kind("index_select of rows", {"a": 6})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        rows = torch.tensor([0, 2, 3])
        table = n.table.index_select(0, rows).sum(0).reshape(1, -1, 1, 1)
        return pooled(n, F.relu(n.a(x)).index_select(2, rows) + table)

    net = Net(body, a=conv(3, 6), fc=nn.Linear(6, 4))
    net.table = nn.Parameter(torch.randn(4, 6))
    return net


@register_kind("channel shuffle", {"a": 2, "b": 4})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = F.channel_shuffle(n.b(shuffle(n.a(x), 2)), 2)
        return pooled(n, x)

    return Net(body, a=conv(3, 8), b=conv(8, 8, groups=2), fc=nn.Linear(8, 4))


@register_kind("pixel shuffle", {"a": 4, "b": 3})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = n.b(F.pixel_shuffle(n.a(x), 2))
        return n.c(F.pixel_unshuffle(x, 4))

    return Net(body, a=conv(3, 16), b=conv(4, 3), c=conv(48, 4))


@register_kind("padded shortcut", {"a": 6}, {"b": "pads a fixed number"})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = F.relu(n.a(x))
        return pooled(n, n.b(x) + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 3, 3)))

    return Net(body, a=conv(3, 6), b=conv(6, 12, stride=2), fc=nn.Linear(12, 4))


@register_kind("squeeze and excite", {"a": 8, "down": 3})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = n.a(x)
        b, c, _, _ = x.shape
        gate = n.up(F.relu(n.down(x.mean((2, 3))))).sigmoid()
        return pooled(n, x * gate.view(b, c, 1, 1).expand_as(x))

    return Net(body, a=conv(3, 8), down=nn.Linear(8, 3), up=nn.Linear(3, 8), fc=nn.Linear(8, 4))


@register_kind("spatial attention", {"b": 5}, {"a": "over the channels"})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = n.a(x)
        seen = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
        return pooled(n, n.b(x * n.look(seen).sigmoid()))

    return Net(body, a=conv(3, 6), look=conv(2, 1), b=conv(6, 5), fc=nn.Linear(5, 4))


@register_kind("reused layers", {"a": 6})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = F.relu(n.a(x))
        for _ in range(2):
            x = F.relu(n.norm(n.b(x)))
        return pooled(n, x)

    return Net(body, a=conv(3, 6), b=conv(6, 6), norm=nn.BatchNorm2d(6), fc=nn.Linear(6, 4))


@register_kind("shared weights", {"a": 6, "b": 5})
def _() -> nn.Module:
    b, c = conv(6, 5), conv(6, 5, dilation=2, padding=2)
    c.weight = b.weight
    return Net(
        lambda n, x: pooled(n, n.b(n.a(x)) * n.c(n.a(x.flip(-1)))),
        a=conv(3, 6),
        b=b,
        c=c,
        fc=nn.Linear(5, 4),
    )


@register_kind("functional convolution", {"a": 6, "kernel": 5})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        return n.b(F.conv2d(n.a(x), n.kernel, n.shift, padding=1))

    return Net(
        body,
        a=conv(3, 6),
        kernel=nn.Parameter(torch.randn(5, 6, 3, 3)),
        shift=nn.Parameter(torch.randn(5)),
        b=conv(5, 4),
    )


@register_kind("computed weights", {"c": 5}, {"a": "computed weight"})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        weight = n.b.weight - n.b.weight.mean((1, 2, 3), keepdim=True)
        return pooled(n, n.c(F.conv2d(n.a(x), weight, padding=1)))

    return Net(body, a=conv(3, 6), b=conv(6, 6), c=conv(6, 5), fc=nn.Linear(5, 4))


@register_kind("weight_norm", {"c": 5}, {"a": "computed weight", "b": "computed weight"})
def _() -> nn.Module:
    wrapped = nn.utils.parametrizations.weight_norm(conv(6, 6))
    return Net(
        lambda n, x: pooled(n, n.c(n.b(n.a(x)))),
        a=conv(3, 6),
        b=wrapped,
        c=conv(6, 5),
        fc=nn.Linear(5, 4),
    )


@register_kind("learned scales", {"a": 6, "b": 5})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = n.a(x) * n.scale + n.shift.view(1, -1, 1, 1)
        return pooled(n, n.b(x) * n.one)

    return Net(
        body,
        a=conv(3, 6),
        scale=nn.Parameter(torch.rand(6, 1, 1)),
        shift=nn.Parameter(torch.rand(6)),
        one=nn.Parameter(torch.rand(1)),
        b=conv(6, 5),
        fc=nn.Linear(5, 4),
    )


@register_kind("a tensor made in forward", {"b": 5}, {"a": "fixed"})
def _() -> nn.Module:
    return Net(
        lambda n, x: pooled(n, n.b(n.a(x) + torch.arange(6.0).view(1, 6, 1, 1))),
        a=conv(3, 6),
        b=conv(6, 5),
        fc=nn.Linear(5, 4),
    )


@register_kind("a tensor kept beside the parameters", {"b": 5}, {"a": "tensor of fixed size"})
def _() -> nn.Module:
    net = Net(
        lambda n, x: pooled(n, n.b(n.a(x) * n.beside)),
        a=conv(3, 6),
        b=conv(6, 5),
        fc=nn.Linear(5, 4),
    )
    net.beside = torch.rand(1, 6, 1, 1)
    return net
