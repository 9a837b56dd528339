"""Kinds of attention."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.surgery.kinds.kind import Net, conv, register_kind


class Attention(nn.Module):
    """Attention with one layer for queries, keys and values, or with three."""

    def __init__(self, width: int, heads: int, *, fused: bool, bias: bool = False) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.attn_dim = heads, width // heads, width
        self.fused = fused
        self.layers = nn.ModuleList(
            [nn.Linear(width, 3 * width)] if fused else [nn.Linear(width, width) for _ in range(3)]
        )
        self.bias = nn.Parameter(torch.randn(heads, 4, 4)) if bias else None
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        shape = (x.shape[0], x.shape[1], self.num_heads, self.head_dim)
        if self.fused:
            y = self.layers[0](x).reshape(*shape[:2], 3, *shape[2:]).permute(2, 0, 3, 1, 4)
            q, k, v = y.unbind(0)
            y = F.scaled_dot_product_attention(q, k, v, self.bias)
        else:
            q, k, v = (layer(x).view(shape).transpose(1, 2) for layer in self.layers)
            logits = q @ k.transpose(-2, -1) * self.head_dim**-0.5
            y = (logits if self.bias is None else logits + self.bias).softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(x.shape[0], -1, self.attn_dim))


def transformer(net: Any, x: Tensor) -> Tensor:
    x = net.a(x).flatten(2).transpose(1, 2)
    x = torch.cat([net.token.expand(x.shape[0], -1, -1), x], 1)[:, 1:] + net.places
    x = x + net.attention(net.norm(x))
    return net.fc(x.mean(1))


def build(**settings: Any) -> nn.Module:
    return Net(
        transformer,
        a=conv(3, 12, 4, stride=4, padding=0),
        token=nn.Parameter(torch.randn(1, 1, 12)),
        places=nn.Parameter(torch.randn(1, 4, 12)),
        norm=nn.LayerNorm(12),
        attention=Attention(12, 3, **settings),
        fc=nn.Linear(12, 4),
    )


@register_kind("attention", {"a": 12, "attention.layers.0": 3})
def _() -> nn.Module:
    return build(fused=True)


@register_kind("attention with a bias for each head", {"a": 12, "attention.layers.0": 3})
def _() -> nn.Module:
    return build(fused=True, bias=True)


@register_kind("attention by products", {"a": 12, "attention.layers.0": 3})
def _() -> nn.Module:
    return build(fused=False)


@register_kind("attention by products with a bias", {"a": 12, "attention.layers.0": 3})
def _() -> nn.Module:
    return build(fused=False, bias=True)
