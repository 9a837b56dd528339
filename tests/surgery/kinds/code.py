"""Inputs, outputs, and what stands in the code."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.surgery.kinds.kind import Net, chain, conv, pooled, register_kind


@register_kind(
    "several inputs",
    {"a": 6, "b": 5},
    example_inputs=lambda: (torch.randn(2, 3, 8, 8), torch.randn(2, 4), 0.5),
)
def _() -> nn.Module:
    def body(n: Any, image: Tensor, extra: Tensor, weight: float) -> Tensor:
        seen = F.adaptive_avg_pool2d(n.a(image), 1).flatten(1)
        return n.fc(torch.cat([seen, F.relu(n.b(extra)) * weight], 1))

    return Net(body, a=conv(3, 6), b=nn.Linear(4, 5), fc=nn.Linear(11, 4))


@register_kind(
    "dict in, dict out",
    {"a": 6},
    {"b": "output", "c": "output"},
    example_inputs=lambda: {"image": torch.randn(2, 3, 8, 8), "scale": torch.tensor(2.0)},
)
def _() -> nn.Module:
    def body(n: Any, image: Tensor, scale: Tensor) -> dict[str, Any]:
        x = n.a(image) * scale
        return {"maps": [n.b(x), None], "logits": n.c(x.mean((2, 3))), "classes": 4}

    return Net(body, a=conv(3, 6), b=conv(6, 5), c=nn.Linear(6, 4))


@register_kind("scalar output", {"a": 6, "b": 5})
def _() -> nn.Module:
    return Net(
        lambda n, x: n.fc(n.b(F.relu(n.a(x))).mean((2, 3))).square().mean(),
        a=conv(3, 6),
        b=conv(6, 5),
        fc=nn.Linear(5, 4),
    )


@register_kind("an output in the middle", {"b": 5}, {"a": "output"})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        x = n.a(x)
        return pooled(n, n.b(x)), x

    return Net(body, a=conv(3, 6), b=conv(6, 5), fc=nn.Linear(5, 4))


@register_kind("frozen parameters", {"a": 6, "b": 5})
def _() -> nn.Module:
    return Net(chain, a=conv(3, 6), b=conv(6, 5), fc=nn.Linear(5, 4)).requires_grad_(False)


@register_kind("sizes in the code", {"b": 7}, {"a": "depends on its size"})
def _() -> nn.Module:
    return Net(
        lambda n, x: n.c(F.relu(n.b(F.max_pool2d(n.a(x), 2).view(-1, 96)))),
        a=conv(3, 6),
        b=nn.Linear(96, 7),
        c=nn.Linear(7, 4),
    )


@register_kind("split at a number in the code", {"b": 5}, {"a": "depends on its size"})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        first, second = n.a(x).split(4, 1)
        return pooled(n, n.b(first * second))

    return Net(body, a=conv(3, 8), b=conv(4, 5), fc=nn.Linear(5, 4))


@register_kind("writing into slices", {"a": 6})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = n.a(x)
        y = torch.zeros_like(x)
        y[:, :, 1:] = n.b(x)[:, :, :-1]
        return pooled(n, F.relu(y, inplace=True).add_(x).clamp_(max=2))

    return Net(body, a=conv(3, 6), b=conv(6, 6), fc=nn.Linear(6, 4))
