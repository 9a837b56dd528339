"""Random networks from a list of steps; every list is a network, so lists shrink well."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entrim.graph.eager import ExampleInputs
from tests.surgery.kinds import shuffle

Operation = tuple[str, int, int]
"""The name of a step and two numbers that determine its details; any numbers are valid."""
Run = Callable[[Any, Tensor, list[Tensor]], Tensor]

WIDTHS = (4, 6, 8, 12)
ACTIVATIONS = (F.relu, F.gelu, F.hardswish, torch.tanh, F.leaky_relu, F.silu)


class Drawn(nn.Module):
    """A network that performs steps on images with three channels and 8 x 8 pixels."""

    def __init__(self, steps: Sequence[Operation]) -> None:
        super().__init__()
        self.layers = nn.ModuleDict()
        self.program: list[Run] = []
        self.sizes: list[tuple[int, int]] = []
        self.width, self.side = 3, 8
        self.aliases = nn.ModuleList()
        variant = sum(a + b for _, a, b in steps)
        self.keyword, self.in_place = variant % 3 == 0, variant % 4 == 1
        self.folded, self.images_second = variant % 5 == 2, variant % 7 == 3
        self.second_input, self.second_output = variant % 6 == 5, variant % 8 == 6
        conv(self, len(steps), 1)
        for name, a, b in steps:
            STEPS[name](self, a, b)
        self.head = nn.Linear(self.width, 3)

    def forward(self, pixelValues: Tensor, shift: Tensor | None = None) -> Any:
        x = pixelValues if shift is None else pixelValues + shift
        if self.in_place:
            x -= 0.25
        if self.folded:
            x = torch.stack([x, x.flip(3)], 1).flatten(0, 1)
        past: list[Tensor] = []
        for run in self.program:
            x = run(self, x, past)
            past.append(x)
        scores = self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))
        scores = scores.T if self.images_second else scores
        return {"scores": scores, "features": (past[0],)} if self.second_output else scores

    def example_inputs(self) -> ExampleInputs:
        """Return two images, with a second input for some networks."""
        images, shift = torch.randn(2, 3, 8, 8), torch.randn(1, 3, 1, 1)
        if self.keyword:
            return {"pixelValues": images} | ({"shift": shift} if self.second_input else {})
        return (images, shift) if self.second_input else images

    def hold(self, layer: nn.Module) -> str:
        """Keep a layer and return its name."""
        name = str(len(self.layers))
        self.layers[name] = layer
        return name

    def then(self, run: Run, width: int | None = None, side: int | None = None) -> None:
        """Add a step; it must not refer to this network, or copies would share it."""
        self.program.append(run)
        self.width, self.side = width or self.width, side or self.side
        self.sizes.append((self.width, self.side))

    def through(self, layer: nn.Module, width: int | None = None, side: int | None = None) -> None:
        """Add a step that is one layer."""
        name = self.hold(layer)
        self.then(lambda net, x, _: net.layers[name](x), width, side)

    def earlier(self, number: int) -> tuple[int, int]:
        """Return the number and width of an earlier activation of the present size."""
        fits = [i for i, (_, side) in enumerate(self.sizes) if side == self.side]
        index = fits[number % len(fits)]
        return index, self.sizes[index][0]


def conv(net: Drawn, a: int, b: int) -> None:
    width, kernel = WIDTHS[a % 4], (1, 3)[b % 2]
    settings: dict[str, Any] = {"bias": b % 3 > 0, "padding": kernel // 2}
    if b % 5 == 0 and kernel == 3:
        settings.update(dilation=2, padding=2)
    if b % 7 == 0:
        settings.update(padding_mode=("reflect", "circular", "replicate")[a % 3])
    net.through(nn.Conv2d(net.width, width, kernel, **settings), width)


def strided(net: Drawn, a: int, b: int) -> None:
    if net.side >= 8:
        width = WIDTHS[a % 4]
        net.through(nn.Conv2d(net.width, width, 2, stride=2), width, net.side // 2)


def grouped(net: Drawn, a: int, b: int) -> None:
    groups = 2 if net.width % 2 == 0 else 1
    width = WIDTHS[a % 4]
    if b % 2:
        net.through(nn.Conv2d(net.width, width, 3, padding=1, groups=groups), width)
    else:
        layer = nn.ConvTranspose2d(net.width, width, 3, padding=1, groups=groups)
        net.through(layer, width)


def depthwise(net: Drawn, a: int, b: int) -> None:
    factor = 1 + (a % 3 == 0 and net.width < 16)
    make = (nn.Conv2d, nn.ConvTranspose2d)[b % 2]
    width = net.width * factor
    net.through(make(net.width, width, 3, padding=1, groups=net.width), width)


def transposed(net: Drawn, a: int, b: int) -> None:
    if net.side <= 8:
        width = WIDTHS[a % 4]
        net.through(nn.ConvTranspose2d(net.width, width, 2, stride=2), width, net.side * 2)


def norm(net: Drawn, a: int, b: int) -> None:
    groups = 2 if net.width % 2 == 0 else 1
    layers = (
        nn.BatchNorm2d(net.width, affine=b % 2 == 0),
        nn.GroupNorm(groups, net.width, affine=b % 2 == 0),
        nn.GroupNorm(net.width, net.width),
        nn.InstanceNorm2d(net.width, affine=b % 2 == 0),
        nn.BatchNorm2d(net.width),
    )
    net.through(layers[a % len(layers)])


def activation(net: Drawn, a: int, b: int) -> None:
    if a % 4 == 0:
        net.through(nn.PReLU(net.width if b % 2 else 1))
    else:
        act = ACTIVATIONS[b % len(ACTIVATIONS)]
        net.then(lambda _, x, __: act(x))


def residual(net: Drawn, a: int, b: int) -> None:
    index, width = net.earlier(a)
    if width == net.width:
        net.then(lambda _, x, past: x + past[index])
    else:
        name = net.hold(nn.Conv2d(width, net.width, 1))
        net.then(lambda net, x, past: x * net.layers[name](past[index]).sigmoid())


def concat(net: Drawn, a: int, b: int) -> None:
    index, width = net.earlier(a)
    if net.width + width <= 32:
        net.then(lambda _, x, past: torch.cat([x, past[index]], 1), net.width + width)


def chunk(net: Drawn, a: int, b: int) -> None:
    if net.width % 2:
        return
    half = net.width // 2
    name = net.hold(nn.Conv2d(half, half, 1))

    def run(net: Any, x: Tensor, _: list[Tensor]) -> Tensor:
        first, second = (
            x.chunk(2, 1) if b % 2 else (x[:, : x.shape[1] // 2], x[:, x.shape[1] // 2 :])
        )
        return torch.cat([net.layers[name](first), second], 1)

    net.then(run)


def gate(net: Drawn, a: int, b: int) -> None:
    if net.width % 2 == 0 and net.width > 4:
        net.then(lambda _, x, __: torch.mul(*x.chunk(2, 1)), net.width // 2)


def shuffled(net: Drawn, a: int, b: int) -> None:
    if net.width % 2 == 0:
        net.then(lambda _, x, __: shuffle(x, 2) if b % 2 else F.channel_shuffle(x, 2))


def pixels(net: Drawn, a: int, b: int) -> None:
    if b % 2 and net.width % 4 == 0 and net.width > 4 and net.side <= 8:
        net.then(lambda _, x, __: F.pixel_shuffle(x, 2), net.width // 4, net.side * 2)
    elif net.width <= 8 and net.side >= 8 and net.side % 2 == 0:
        net.then(lambda _, x, __: F.pixel_unshuffle(x, 2), net.width * 4, net.side // 2)


def padded(net: Drawn, a: int, b: int) -> None:
    if net.width <= 16:
        sides = (0, 0, 0, 0, a % 3, b % 2)
        net.then(lambda _, x, __: F.pad(x, sides), net.width + a % 3 + b % 2)


def excite(net: Drawn, a: int, b: int) -> None:
    down, up = net.hold(nn.Linear(net.width, 4)), net.hold(nn.Linear(4, net.width))

    def run(net: Any, x: Tensor, _: list[Tensor]) -> Tensor:
        seen = F.relu(net.layers[down](x.mean((2, 3))))
        return x * net.layers[up](seen).sigmoid().view(x.shape[0], -1, 1, 1)

    net.then(run)


def pool(net: Drawn, a: int, b: int) -> None:
    kinds = (F.max_pool2d, F.avg_pool2d)
    if b % 2 and net.side >= 8:
        net.then(lambda _, x, __: kinds[a % 2](x, 2), side=net.side // 2)
    else:
        net.then(lambda _, x, __: kinds[a % 2](x, 3, 1, 1))


def resize(net: Drawn, a: int, b: int) -> None:
    if net.side <= 8:
        mode = ("nearest", "bilinear")[a % 2]
        net.then(lambda _, x, __: F.interpolate(x, scale_factor=2, mode=mode), side=net.side * 2)


def last_axis(net: Drawn, a: int, b: int) -> None:
    width = WIDTHS[a % 4]
    up, down = net.hold(nn.Linear(net.width, width)), net.hold(nn.Linear(width, net.width))
    first = net.hold(nn.LayerNorm(net.width) if b % 3 == 0 else nn.Identity())

    def run(net: Any, x: Tensor, _: list[Tensor]) -> Tensor:
        y = net.layers[first](x.permute(0, 2, 3, 1))
        return x + net.layers[down](F.gelu(net.layers[up](y))).permute(0, 3, 1, 2)

    net.then(run)


def repeated(net: Drawn, a: int, b: int) -> None:
    name = net.hold(nn.Conv2d(net.width, net.width, 3, padding=1))
    net.then(lambda net, x, _: net.layers[name](F.relu(net.layers[name](x))))


def over_channels(net: Drawn, a: int, b: int) -> None:
    kinds: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda x: x.softmax(1),
        lambda x: x * x.mean(1, keepdim=True),
        lambda x: F.normalize(x, dim=1),
        lambda x: x.roll(1, 1),
        lambda x: x.flip(1),
    )
    net.then(lambda _, x, __: kinds[a % len(kinds)](x))


def flattened(net: Drawn, a: int, b: int) -> None:
    """Apply a Linear behind a Flatten, and return to images by a Linear."""
    if net.side > 4:
        return
    width, side = WIDTHS[a % 4], net.side
    down = net.hold(nn.Linear(net.width * side * side, 6))
    up = net.hold(nn.Linear(6, width * side * side))

    def run(net: Any, x: Tensor, _: list[Tensor]) -> Tensor:
        x = x.permute(0, 2, 3, 1) if b % 2 else x
        x = net.layers[up](F.relu(net.layers[down](x.reshape(x.shape[0], -1))))
        return x.view(x.shape[0], -1, side, side)

    net.then(run, width)


def written(net: Drawn, a: int, b: int) -> None:
    """Use a number of channels in the code, which pruning cannot change."""
    width, side, half = net.width, net.side, max(1, net.width // 2)
    kinds: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda x: torch.cat(x.split([half, width - half], 1)[::-1], 1),
        lambda x: x.view(-1, width, side, side).relu(),
        lambda x: torch.cat([x[:, :half], x[:, half:].sigmoid()], 1),
        lambda x: x.reshape(x.shape[0], width, -1).view(x.shape),
        lambda x: x * torch.linspace(0.5, 1, width).view(1, -1, 1, 1).to(x),
    )
    net.then(lambda _, x, __: kinds[a % len(kinds)](x))


def folded(net: Drawn, a: int, b: int) -> None:
    """Fold halves of the image into the batch, as frames of a video are."""
    if net.side % 2:
        return
    width, side = WIDTHS[a % 4], net.side
    name = net.hold(nn.Conv2d(net.width, width, 1))

    def run(net: Any, x: Tensor, _: list[Tensor]) -> Tensor:
        halves = x.unflatten(3, (2, side // 2)).permute(0, 3, 1, 2, 4)
        y = net.layers[name](halves.flatten(0, 1))
        y = y.unflatten(0, (x.shape[0], 2)).permute(0, 2, 3, 1, 4)
        return y.flatten(3)

    net.then(run, width)


def sequence_first(net: Drawn, a: int, b: int) -> None:
    """Apply Linear layers with the positions first and the images second."""
    width = WIDTHS[a % 4]
    up, down = net.hold(nn.Linear(net.width, width)), net.hold(nn.Linear(width, net.width))

    def run(net: Any, x: Tensor, _: list[Tensor]) -> Tensor:
        y = x.flatten(2).permute(2, 0, 1)
        y = net.layers[down](F.relu(net.layers[up](y)))
        return x + y.permute(1, 2, 0).unflatten(2, x.shape[2:])

    net.then(run)


def aliased(net: Drawn, a: int, b: int) -> None:
    """Register a layer under a second name; call it by that name."""
    width = WIDTHS[a % 4]
    depthwise = b % 2 == 0
    layer = nn.Conv2d(net.width, net.width if depthwise else width, 3, padding=1,
                      groups=net.width if depthwise else 1)  # fmt: skip
    net.hold(layer)
    net.aliases.append(layer)
    number = len(net.aliases) - 1
    net.then(lambda net, x, _: net.aliases[number](x), layer.out_channels)


def counter(net: Drawn, a: int, b: int) -> None:
    """Count calls in a buffer, and keep running means of the channels in another."""
    holder = nn.Module()
    holder.register_buffer("calls", torch.zeros((), dtype=torch.int64))
    holder.register_buffer("level", torch.zeros(net.width))
    name = net.hold(holder)

    def run(net: Any, x: Tensor, _: list[Tensor]) -> Tensor:
        held = net.layers[name]
        held.calls += 1
        if b % 2:
            held.level.mul_(0.9).add_(x.mean((0, 2, 3)), alpha=0.1)
        return x + held.level.view(1, -1, 1, 1) if a % 3 == 0 else x

    net.then(run)


def functional_norm(net: Drawn, a: int, b: int) -> None:
    """Normalize by a function, with statistics in buffers of unusual names."""
    holder = nn.Module()
    holder.register_buffer("mu", torch.zeros(net.width))
    holder.register_buffer("sigma2", torch.ones(net.width))
    scale = nn.Parameter(torch.ones(net.width)) if b % 2 else None
    holder.register_parameter("gain", scale)
    name = net.hold(holder)

    def run(net: Any, x: Tensor, _: list[Tensor]) -> Tensor:
        held = net.layers[name]
        return F.batch_norm(x, held.mu, held.sigma2, held.gain)

    net.then(run)


class DrawnAttention(nn.Module):
    """Attention over the positions of an image."""

    def __init__(self, width: int, heads: int, *, fused: bool, by_products: bool) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.attn_dim = heads, 4, 4 * heads
        self.fused, self.by_products = fused, by_products
        self.norm = nn.LayerNorm(width)
        count, size = (1, 12 * heads) if fused else (3, 4 * heads)
        self.inputs = nn.ModuleList(nn.Linear(width, size) for _ in range(count))
        self.proj = nn.Linear(4 * heads, width)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x.flatten(2).transpose(1, 2))
        b, n = tokens.shape[:2]
        if self.fused:
            y = self.inputs[0](tokens).reshape(b, n, 3, self.num_heads, self.head_dim)
            q, k, v = y.permute(2, 0, 3, 1, 4).unbind(0)
        else:
            shape = (b, n, self.num_heads, self.head_dim)
            q, k, v = (layer(tokens).view(shape).transpose(1, 2) for layer in self.inputs)
        if self.by_products:
            y = (q @ k.transpose(-2, -1) * self.head_dim**-0.5).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        y = self.proj(y.transpose(1, 2).reshape(b, n, self.attn_dim))
        return x + y.transpose(1, 2).reshape(x.shape)


def attention(net: Drawn, a: int, b: int) -> None:
    layer = DrawnAttention(net.width, 2 + a % 3, fused=b % 2 == 0, by_products=b % 3 == 0)
    net.through(layer)


def channel_norm(net: Drawn, a: int, b: int) -> None:
    """Normalize over the channels."""
    if a % 3 == 0:
        net.through(nn.GroupNorm(1, net.width))
        return
    layer = nn.LayerNorm(net.width, bias=b % 2 == 0) if a % 3 == 1 else nn.RMSNorm(net.width)
    name = net.hold(layer)
    net.then(lambda net, x, _: net.layers[name](x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


def tied(net: Drawn, a: int, b: int) -> None:
    """Let two layers share one weight, the second of them transposed for some networks."""
    first, second = nn.Conv2d(net.width, net.width, 1), nn.Conv2d(net.width, net.width, 1)
    second.weight = first.weight
    names = net.hold(first), net.hold(second)

    def run(net: Any, x: Tensor, _: list[Tensor]) -> Tensor:
        y = F.relu(net.layers[names[0]](x))
        if b % 2:
            return net.layers[names[1]](y)
        weight = net.layers[names[1]].weight.flatten(1).T
        return F.conv2d(y, weight[:, :, None, None])

    net.then(run)


def in_place(net: Drawn, a: int, b: int) -> None:
    """Modify activations in place."""
    kinds: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda x: x.clone().add_(1),
        lambda x: (x * 2).relu_().mul_(0.5),
        lambda x: F.silu(x + 0, inplace=True),
        lambda x: (x + 0).clamp_(-1, 1).add_(x),
    )
    net.then(lambda _, x, __: kinds[a % len(kinds)](x))


def odd(net: Drawn, a: int, b: int) -> None:
    """Change the size of the images to an odd or even one."""
    if net.side <= 8:
        net.then(lambda _, x, __: F.pad(x, (0, 1, 1, 0)), side=net.side + 1)


STEPS: dict[str, Callable[[Drawn, int, int], None]] = {
    step.__name__: step
    for step in (
        conv,
        strided,
        grouped,
        depthwise,
        transposed,
        norm,
        activation,
        residual,
        concat,
        chunk,
        gate,
        shuffled,
        pixels,
        padded,
        excite,
        pool,
        resize,
        last_axis,
        repeated,
        over_channels,
        flattened,
        written,
        folded,
        sequence_first,
        aliased,
        counter,
        functional_norm,
        attention,
        channel_norm,
        tied,
        in_place,
        odd,
    )
}
