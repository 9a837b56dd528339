"""One small network for every kind of layer and every way channels can meet."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entrim.network.follow import Example


class Net(nn.Module):
    """Layers by name, and a function that uses them."""

    def __init__(self, body: Callable[..., Any], **layers: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.body = body

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.body(self, *args, **kwargs)


@dataclass(frozen=True, eq=False)
class Kind:
    """A network, its example, and what its channel graph must be."""

    build: Callable[[], nn.Module]
    groups: dict[str, int]
    frozen: dict[str, str] = field(default_factory=dict)
    """Layer -> a part of the reason why it is frozen."""
    example: Callable[[], Example] = lambda: torch.randn(2, 3, 8, 8)


KINDS: dict[str, Kind] = {}


def kind(
    name: str, groups: dict[str, int], frozen: dict[str, str] | None = None, **settings: Any
) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    def register(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        KINDS[name] = Kind(build, groups, frozen or {}, **settings)
        return build

    return register


def shaken(model: nn.Module) -> nn.Module:
    """Return `model` with norms, slopes and scales that are not those of a new network."""
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.dim() <= 1 and tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.5)
            if name.endswith(("bias", "running_mean")):
                tensor.sub_(1.0)
    return model


def conv(i: int, o: int, k: int = 3, **settings: Any) -> nn.Conv2d:
    return nn.Conv2d(i, o, k, **{"padding": k // 2, **settings})


def pooled(net: Any, x: Tensor) -> Tensor:
    return net.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def chain(net: Any, x: Tensor) -> Tensor:
    return pooled(net, F.relu(net.b(F.relu(net.a(x)))))


# --- Layers ---------------------------------------------------------------------------------------


@kind("Conv1d", {"a": 6, "b": 5}, {"fc": "output"}, example=lambda: torch.randn(2, 3, 9))
def _() -> nn.Module:
    return Net(
        lambda n, x: n.fc(n.b(F.relu(n.a(x))).mean(-1)),
        a=nn.Conv1d(3, 6, 3),
        b=nn.Conv1d(6, 5, 3, padding=1),
        fc=nn.Linear(5, 4),
    )


@kind("Conv3d", {"a": 6}, {"b": "output"}, example=lambda: torch.randn(2, 3, 4, 5, 6))
def _() -> nn.Module:
    return Net(
        lambda n, x: n.b(F.relu(n.a(x))), a=nn.Conv3d(3, 6, 3, padding=1), b=nn.Conv3d(6, 4, 1)
    )


@kind("unbatched Conv2d", {"a": 6}, example=lambda: torch.randn(3, 8, 8))
def _() -> nn.Module:
    return Net(lambda n, x: n.b(F.relu(n.a(x))), a=conv(3, 6), b=conv(6, 4))


@kind("strided and dilated", {"a": 6, "b": 5})
def _() -> nn.Module:
    return Net(
        chain, a=conv(3, 6, stride=2), b=conv(6, 5, dilation=2, padding=2), fc=nn.Linear(5, 4)
    )


@kind("padding given as a word", {"a": 6, "b": 5})
def _() -> nn.Module:
    return Net(
        chain, a=conv(3, 6, padding="same"), b=conv(6, 5, padding="valid"), fc=nn.Linear(5, 4)
    )


@kind("padding modes", {"a": 6, "b": 6, "c": 5})
def _() -> nn.Module:
    return Net(
        lambda n, x: pooled(n, n.c(n.b(n.a(x)))),
        a=conv(3, 6, padding_mode="reflect"),
        b=conv(6, 6, padding_mode="circular"),
        c=conv(6, 5, padding_mode="replicate"),
        fc=nn.Linear(5, 4),
    )


@kind("transposed", {"a": 6, "b": 4, "c": 5})
def _() -> nn.Module:
    return Net(
        lambda n, x: pooled(n, n.c(F.relu(n.b(F.relu(n.a(x)))))),
        a=conv(3, 6),
        b=nn.ConvTranspose2d(6, 4, 2, stride=2),
        c=nn.ConvTranspose2d(4, 5, 3, output_padding=1, stride=2),
        fc=nn.Linear(5, 4),
    )


@kind("transposed 1d and 3d", {"a": 6, "b": 5}, example=lambda: torch.randn(2, 3, 4, 4, 4))
def _() -> nn.Module:
    return Net(
        lambda n, x: n.c(n.b(F.relu(n.a(x)).flatten(2))),
        a=nn.ConvTranspose3d(3, 6, 2),
        b=nn.ConvTranspose1d(6, 5, 3),
        c=nn.Conv1d(5, 4, 1),
    )


@kind("grouped", {"a": 4, "b": 3})
def _() -> nn.Module:
    return Net(chain, a=conv(3, 8), b=conv(8, 6, groups=2), fc=nn.Linear(6, 4))


@kind("grouped and transposed", {"a": 4, "b": 3})
def _() -> nn.Module:
    return Net(chain, a=conv(3, 8), b=nn.ConvTranspose2d(8, 6, 3, groups=2), fc=nn.Linear(6, 4))


@kind("depthwise", {"a": 8, "c": 6})
def _() -> nn.Module:
    return Net(
        lambda n, x: pooled(n, n.c(n.b(F.relu(n.a(x))))),
        a=conv(3, 8),
        b=conv(8, 8, groups=8),
        c=conv(8, 6, 1),
        fc=nn.Linear(6, 4),
    )


@kind("depthwise with a multiplier", {"a": 4, "d": 5})
def _() -> nn.Module:
    return Net(
        lambda n, x: pooled(n, n.d(n.c(n.b(F.relu(n.a(x)))))),
        a=conv(3, 4),
        b=conv(4, 8, groups=4),
        c=nn.ConvTranspose2d(8, 16, 2, groups=8),
        d=conv(16, 5, 1),
        fc=nn.Linear(5, 4),
    )


@kind("Linear behind Flatten", {"0": 6, "4": 7}, {"6": "output"})
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


@kind("Linear behind an NHWC Flatten", {"a": 6, "b": 7})
def _() -> nn.Module:
    return Net(
        lambda n, x: n.c(F.relu(n.b(F.relu(n.a(x)).permute(0, 2, 3, 1).flatten(1)))),
        a=conv(3, 6, stride=2),
        b=nn.Linear(96, 7),
        c=nn.Linear(7, 4),
    )


@kind("Linear over the last axis of images", {"a": 6, "b": 7})
def _() -> nn.Module:
    return Net(
        lambda n, x: n.c(F.gelu(n.b(n.a(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)),
        a=conv(3, 6),
        b=nn.Linear(6, 7),
        c=conv(7, 4),
    )


# --- Normalisation and activations ----------------------------------------------------------------


@kind("BatchNorm without bias", {"a": 6, "b": 5})
def _() -> nn.Module:
    return Net(
        lambda n, x: pooled(n, F.relu(n.nb(n.b(F.relu(n.na(n.a(x))))))),
        a=conv(3, 6, bias=False),
        na=nn.BatchNorm2d(6),
        b=conv(6, 5, bias=False),
        nb=nn.BatchNorm2d(5, affine=False),
        fc=nn.Linear(5, 4),
    )


@kind("BatchNorm of the batch at hand", {"a": 6})
def _() -> nn.Module:
    return Net(
        lambda n, x: n.b(n.na(n.a(x))),
        a=conv(3, 6),
        na=nn.BatchNorm2d(6, track_running_stats=False),
        b=conv(6, 4),
    )


@kind("InstanceNorm", {"a": 6, "b": 5})
def _() -> nn.Module:
    return Net(
        lambda n, x: pooled(n, F.elu(n.nb(n.b(F.relu(n.na(n.a(x))))))),
        a=conv(3, 6),
        na=nn.InstanceNorm2d(6),
        b=conv(6, 5),
        nb=nn.InstanceNorm2d(5, affine=True, track_running_stats=True),
        fc=nn.Linear(5, 4),
    )


@kind("GroupNorm", {"a": 4, "b": 6, "c": 2})
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


@kind("a GroupNorm without parameters, used twice", {"a": 3})
def _() -> nn.Module:
    return Net(
        lambda n, x: pooled(n, n.norm(n.b(n.norm(n.a(x))))),
        a=conv(3, 6),
        b=conv(6, 6),
        norm=nn.GroupNorm(3, 6, affine=False),
        fc=nn.Linear(6, 4),
    )


@kind("GroupNorm of one group", {"b": 5}, {"a": "GroupNorm over all channels"})
def _() -> nn.Module:
    return Net(
        lambda n, x: pooled(n, n.b(n.na(n.a(x)))),
        a=conv(3, 6),
        na=nn.GroupNorm(1, 6),
        b=conv(6, 5),
        fc=nn.Linear(5, 4),
    )


@kind("LayerNorm", {"b": 12}, {"a": "LayerNorm over the channels", "c": "LayerNorm over"})
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


@kind("LayerNorm over positions", {"a": 6})
def _() -> nn.Module:
    return Net(
        lambda n, x: n.b(n.norm(n.a(x))), a=conv(3, 6), norm=nn.LayerNorm([8, 8]), b=conv(6, 4)
    )


@kind("PReLU", {"a": 6, "b": 5})
def _() -> nn.Module:
    return Net(
        lambda n, x: pooled(n, n.pb(n.b(n.pa(n.a(x))))),
        a=conv(3, 6),
        pa=nn.PReLU(6),
        b=conv(6, 5),
        pb=nn.PReLU(),
        fc=nn.Linear(5, 4),
    )


@kind("activations of every kind", {"a": 6})
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


@kind("pooling and interpolation", {"a": 6})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = n.a(x)
        x = F.avg_pool2d(x, 3, 1, 1) + F.max_pool2d(x, 3, 1, 1) + F.lp_pool2d(F.relu(x), 2, 1)
        x = F.interpolate(x, scale_factor=2, mode="bilinear") + F.interpolate(x, 16)
        x = F.adaptive_max_pool2d(x, 4) + F.interpolate(x, (4, 4), mode="bicubic")
        return n.b(x * x.softmax(-1) + x.amax((2, 3), keepdim=True) + x.std(dim=3, keepdim=True))

    return Net(body, a=conv(3, 6), b=conv(6, 4))


# --- How channels meet ----------------------------------------------------------------------------


@kind("residual", {"a": 6})
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


@kind("concat", {"a": 6, "b": 5, "c": 4})
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


@kind("concat over a residual", {"a": 10})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        y = torch.cat([n.a(x), n.b(x)], 1)
        return pooled(n, y + n.c(y))

    return Net(body, a=conv(3, 6), b=conv(3, 4), c=conv(10, 10), fc=nn.Linear(10, 4))


@kind("concat of positions", {"a": 6})
def _() -> nn.Module:
    return Net(
        lambda n, x: pooled(n, torch.cat([n.a(x), n.b(x)], 2)),
        a=conv(3, 6),
        b=conv(3, 6),
        fc=nn.Linear(6, 4),
    )


@kind("stack", {"a": 6})
def _() -> nn.Module:
    return Net(
        lambda n, x: pooled(n, torch.stack([n.a(x), n.b(x)]).amax(0)),
        a=conv(3, 6),
        b=conv(3, 6),
        fc=nn.Linear(6, 4),
    )


@kind("chunk", {"a": 4, "b": 4})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        gate, value = n.a(x).chunk(2, 1)
        first, second = n.b(gate.sigmoid() * value).tensor_split(2, 1)
        return pooled(n, first * second.tanh())

    return Net(body, a=conv(3, 8), b=conv(4, 8), fc=nn.Linear(4, 4))


@kind("slice", {"a": 2, "b": 2})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = n.a(x)[:, :, 1:, ::2]
        quarter = x.shape[1] // 4
        return pooled(n, torch.cat([n.b(x[:, :quarter]), x[:, quarter:]], 1))

    return Net(body, a=conv(3, 8), b=conv(2, 2), fc=nn.Linear(8, 4))


@kind("uneven slices", {"b": 5}, {"a": "uneven parts"})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = n.a(x)
        return pooled(n, n.b(x[:, :3]) + x[:, 3:4] + x[:, 0:1])

    return Net(body, a=conv(3, 8), b=conv(3, 5), fc=nn.Linear(5, 4))


@kind("permute and flip", {"a": 6})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = n.a(x).permute(0, 2, 3, 1).transpose(1, 2).flip(-1)
        return pooled(n, x.movedim(-1, 1).contiguous().roll(2, 2))

    return Net(body, a=conv(3, 6), fc=nn.Linear(6, 4))


def shuffle(x: Tensor, groups: int) -> Tensor:
    b, c, h, w = x.shape
    return x.view(b, groups, c // groups, h, w).transpose(1, 2).reshape(b, c, h, w)


@kind("channel shuffle", {"a": 2, "b": 4})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = F.channel_shuffle(n.b(shuffle(n.a(x), 2)), 2)
        return pooled(n, x)

    return Net(body, a=conv(3, 8), b=conv(8, 8, groups=2), fc=nn.Linear(8, 4))


@kind("pixel shuffle", {"a": 4, "b": 3})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = n.b(F.pixel_shuffle(n.a(x), 2))
        return n.c(F.pixel_unshuffle(x, 4))

    return Net(body, a=conv(3, 16), b=conv(4, 3), c=conv(48, 4))


@kind("padded shortcut", {"a": 6}, {"b": "pads a fixed number"})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = F.relu(n.a(x))
        return pooled(n, n.b(x) + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 3, 3)))

    return Net(body, a=conv(3, 6), b=conv(6, 12, stride=2), fc=nn.Linear(12, 4))


@kind("squeeze and excite", {"a": 8, "down": 3})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = n.a(x)
        b, c, _, _ = x.shape
        gate = n.up(F.relu(n.down(x.mean((2, 3))))).sigmoid()
        return pooled(n, x * gate.view(b, c, 1, 1).expand_as(x))

    return Net(body, a=conv(3, 8), down=nn.Linear(8, 3), up=nn.Linear(3, 8), fc=nn.Linear(8, 4))


@kind("spatial attention", {"b": 5}, {"a": "over the channels"})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = n.a(x)
        seen = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
        return pooled(n, n.b(x * n.look(seen).sigmoid()))

    return Net(body, a=conv(3, 6), look=conv(2, 1), b=conv(6, 5), fc=nn.Linear(5, 4))


@kind("reused layers", {"a": 6})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = F.relu(n.a(x))
        for _ in range(2):
            x = F.relu(n.norm(n.b(x)))
        return pooled(n, x)

    return Net(body, a=conv(3, 6), b=conv(6, 6), norm=nn.BatchNorm2d(6), fc=nn.Linear(6, 4))


@kind("shared weights", {"a": 6, "b": 5})
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


@kind("functional convolution", {"a": 6, "kernel": 5})
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


@kind("computed weights", {"c": 5}, {"a": "computed weight"})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        weight = n.b.weight - n.b.weight.mean((1, 2, 3), keepdim=True)
        return pooled(n, n.c(F.conv2d(n.a(x), weight, padding=1)))

    return Net(body, a=conv(3, 6), b=conv(6, 6), c=conv(6, 5), fc=nn.Linear(5, 4))


@kind("weight_norm", {"c": 5}, {"a": "computed weight", "b": "computed weight"})
def _() -> nn.Module:
    wrapped = nn.utils.parametrizations.weight_norm(conv(6, 6))
    return Net(
        lambda n, x: pooled(n, n.c(n.b(n.a(x)))),
        a=conv(3, 6),
        b=wrapped,
        c=conv(6, 5),
        fc=nn.Linear(5, 4),
    )


@kind("learned scales", {"a": 6, "b": 5})
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


@kind("a tensor made in forward", {"b": 5}, {"a": "fixed"})
def _() -> nn.Module:
    return Net(
        lambda n, x: pooled(n, n.b(n.a(x) + torch.arange(6.0).view(1, 6, 1, 1))),
        a=conv(3, 6),
        b=conv(6, 5),
        fc=nn.Linear(5, 4),
    )


@kind("a tensor kept beside the parameters", {"b": 5}, {"a": "tensor of fixed size"})
def _() -> nn.Module:
    net = Net(
        lambda n, x: pooled(n, n.b(n.a(x) * n.beside)),
        a=conv(3, 6),
        b=conv(6, 5),
        fc=nn.Linear(5, 4),
    )
    net.beside = torch.rand(1, 6, 1, 1)
    return net


# --- Inputs, outputs, code ------------------------------------------------------------------------


@kind(
    "several inputs",
    {"a": 6, "b": 5},
    example=lambda: (torch.randn(2, 3, 8, 8), torch.randn(2, 4), 0.5),
)
def _() -> nn.Module:
    def body(n: Any, image: Tensor, extra: Tensor, weight: float) -> Tensor:
        seen = F.adaptive_avg_pool2d(n.a(image), 1).flatten(1)
        return n.fc(torch.cat([seen, F.relu(n.b(extra)) * weight], 1))

    return Net(body, a=conv(3, 6), b=nn.Linear(4, 5), fc=nn.Linear(11, 4))


@kind(
    "dict in, dict out",
    {"a": 6},
    {"b": "output", "c": "output"},
    example=lambda: {"image": torch.randn(2, 3, 8, 8), "scale": torch.tensor(2.0)},
)
def _() -> nn.Module:
    def body(n: Any, image: Tensor, scale: Tensor) -> dict[str, Any]:
        x = n.a(image) * scale
        return {"maps": [n.b(x), None], "logits": n.c(x.mean((2, 3))), "classes": 4}

    return Net(body, a=conv(3, 6), b=conv(6, 5), c=nn.Linear(6, 4))


@kind("scalar output", {"a": 6, "b": 5})
def _() -> nn.Module:
    return Net(
        lambda n, x: n.fc(n.b(F.relu(n.a(x))).mean((2, 3))).square().mean(),
        a=conv(3, 6),
        b=conv(6, 5),
        fc=nn.Linear(5, 4),
    )


@kind("an output in the middle", {"b": 5}, {"a": "output"})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        x = n.a(x)
        return pooled(n, n.b(x)), x

    return Net(body, a=conv(3, 6), b=conv(6, 5), fc=nn.Linear(5, 4))


@kind("frozen parameters", {"a": 6, "b": 5})
def _() -> nn.Module:
    return Net(chain, a=conv(3, 6), b=conv(6, 5), fc=nn.Linear(5, 4)).requires_grad_(False)


@kind("sizes in the code", {"b": 7}, {"a": "written into the network's code"})
def _() -> nn.Module:
    return Net(
        lambda n, x: n.c(F.relu(n.b(F.max_pool2d(n.a(x), 2).view(-1, 96)))),
        a=conv(3, 6),
        b=nn.Linear(96, 7),
        c=nn.Linear(7, 4),
    )


@kind("split at a number in the code", {"b": 5}, {"a": "written into the network's code"})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        first, second = n.a(x).split(4, 1)
        return pooled(n, n.b(first * second))

    return Net(body, a=conv(3, 8), b=conv(4, 5), fc=nn.Linear(5, 4))


@kind("writing into slices", {"a": 6})
def _() -> nn.Module:
    def body(n: Any, x: Tensor) -> Tensor:
        x = n.a(x)
        y = torch.zeros_like(x)
        y[:, :, 1:] = n.b(x)[:, :, :-1]
        return pooled(n, F.relu(y, inplace=True).add_(x).clamp_(max=2))

    return Net(body, a=conv(3, 6), b=conv(6, 6), fc=nn.Linear(6, 4))
