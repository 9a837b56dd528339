"""Kinds of layers with weights."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.surgery.kinds.kind import Net, chain, conv, pooled, register_kind


@register_kind(
    "Conv1d", {"a": 6, "b": 5}, {"fc": "output"}, example_inputs=lambda: torch.randn(2, 3, 9)
)
def _() -> nn.Module:
    return Net(
        lambda n, x: n.fc(n.b(F.relu(n.a(x))).mean(-1)),
        a=nn.Conv1d(3, 6, 3),
        b=nn.Conv1d(6, 5, 3, padding=1),
        fc=nn.Linear(5, 4),
    )


@register_kind(
    "Conv3d", {"a": 6}, {"b": "output"}, example_inputs=lambda: torch.randn(2, 3, 4, 5, 6)
)
def _() -> nn.Module:
    return Net(
        lambda n, x: n.b(F.relu(n.a(x))), a=nn.Conv3d(3, 6, 3, padding=1), b=nn.Conv3d(6, 4, 1)
    )


@register_kind("unbatched Conv2d", {"a": 6}, example_inputs=lambda: torch.randn(3, 8, 8))
def _() -> nn.Module:
    return Net(lambda n, x: n.b(F.relu(n.a(x))), a=conv(3, 6), b=conv(6, 4))


@register_kind("strided and dilated", {"a": 6, "b": 5})
def _() -> nn.Module:
    return Net(
        chain, a=conv(3, 6, stride=2), b=conv(6, 5, dilation=2, padding=2), fc=nn.Linear(5, 4)
    )


@register_kind("padding given as a word", {"a": 6, "b": 5})
def _() -> nn.Module:
    return Net(
        chain, a=conv(3, 6, padding="same"), b=conv(6, 5, padding="valid"), fc=nn.Linear(5, 4)
    )


@register_kind("padding modes", {"a": 6, "b": 6, "c": 5})
def _() -> nn.Module:
    return Net(
        lambda n, x: pooled(n, n.c(n.b(n.a(x)))),
        a=conv(3, 6, padding_mode="reflect"),
        b=conv(6, 6, padding_mode="circular"),
        c=conv(6, 5, padding_mode="replicate"),
        fc=nn.Linear(5, 4),
    )


@register_kind("transposed", {"a": 6, "b": 4, "c": 5})
def _() -> nn.Module:
    return Net(
        lambda n, x: pooled(n, n.c(F.relu(n.b(F.relu(n.a(x)))))),
        a=conv(3, 6),
        b=nn.ConvTranspose2d(6, 4, 2, stride=2),
        c=nn.ConvTranspose2d(4, 5, 3, output_padding=1, stride=2),
        fc=nn.Linear(5, 4),
    )


@register_kind(
    "transposed 1d and 3d", {"a": 6, "b": 5}, example_inputs=lambda: torch.randn(2, 3, 4, 4, 4)
)
def _() -> nn.Module:
    return Net(
        lambda n, x: n.c(n.b(F.relu(n.a(x)).flatten(2))),
        a=nn.ConvTranspose3d(3, 6, 2),
        b=nn.ConvTranspose1d(6, 5, 3),
        c=nn.Conv1d(5, 4, 1),
    )


@register_kind("grouped", {"a": 4, "b": 3})
def _() -> nn.Module:
    return Net(chain, a=conv(3, 8), b=conv(8, 6, groups=2), fc=nn.Linear(6, 4))


@register_kind("grouped and transposed", {"a": 4, "b": 3})
def _() -> nn.Module:
    return Net(chain, a=conv(3, 8), b=nn.ConvTranspose2d(8, 6, 3, groups=2), fc=nn.Linear(6, 4))


@register_kind("depthwise", {"a": 8, "c": 6})
def _() -> nn.Module:
    return Net(
        lambda n, x: pooled(n, n.c(n.b(F.relu(n.a(x))))),
        a=conv(3, 8),
        b=conv(8, 8, groups=8),
        c=conv(8, 6, 1),
        fc=nn.Linear(6, 4),
    )


@register_kind("depthwise with a multiplier", {"a": 4, "d": 5})
def _() -> nn.Module:
    return Net(
        lambda n, x: pooled(n, n.d(n.c(n.b(F.relu(n.a(x)))))),
        a=conv(3, 4),
        b=conv(4, 8, groups=4),
        c=nn.ConvTranspose2d(8, 16, 2, groups=8),
        d=conv(16, 5, 1),
        fc=nn.Linear(5, 4),
    )


@register_kind("Linear behind Flatten", {"0": 6, "4": 7}, {"6": "output"})
def _() -> nn.Module:
    return nn.Sequential(
        conv(3, 6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(96, 7),
        nn.ReLU(),
        nn.Linear(7, 4),
    )


@register_kind("Linear behind an NHWC Flatten", {"a": 6, "b": 7})
def _() -> nn.Module:
    return Net(
        lambda n, x: n.c(F.relu(n.b(F.relu(n.a(x)).permute(0, 2, 3, 1).flatten(1)))),
        a=conv(3, 6, stride=2),
        b=nn.Linear(96, 7),
        c=nn.Linear(7, 4),
    )


@register_kind("Linear over the last axis of images", {"a": 6, "b": 7})
def _() -> nn.Module:
    return Net(
        lambda n, x: n.c(F.gelu(n.b(n.a(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)),
        a=conv(3, 6),
        b=nn.Linear(6, 7),
        c=conv(7, 4),
    )
