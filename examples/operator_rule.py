"""A rule of your own: let entrim follow channels through a custom operator.

An operator without a rule freezes the channels that pass through it. A rule describes how the
channels of the output are related to those of the inputs. It receives each call of the operator
while the network is traced, and returns the layout of the output.
"""

import torch
from torch import Tensor, nn

import entrim
from entrim.graph.tracer import ChannelLayout, OpCall


@torch.library.custom_op("examples::channel_scale", mutates_args=())
def channel_scale(x: Tensor, scale: Tensor) -> Tensor:
    """Return `x` with every channel multiplied by its own scale."""
    return x * scale[:, None, None]


@channel_scale.register_fake
def _(x: Tensor, scale: Tensor) -> Tensor:
    return torch.empty_like(x)


def scale_rule(call: OpCall) -> ChannelLayout:
    """Follow `channel_scale`: the channels pass, and `scale` has one entry for each."""
    ids = call.state.channels.ids_along(call.value("x"), 1)  # the channels along dimension 1
    call.attach("scale", ids)  # where channel d is removed, entry d of the scale is removed too
    return ChannelLayout(call.shape, 1, ids)


class ScaledConvs(nn.Module):
    """Two convolutions with the custom operator between them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.scale = nn.Parameter(torch.rand(16) + 0.5)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.classes = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of ten classes."""
        x = channel_scale(self.conv1(x), self.scale).relu()
        return self.classes(self.conv2(x).relu().mean((2, 3)))


def main() -> None:
    """Trace a network without the rule and with it, then prune it."""
    torch.manual_seed(0)
    model, images = ScaledConvs().eval(), torch.randn(200, 3, 12, 12)
    before = entrim.trace(model, images[:2])
    print("groups without the rule:", [group.name for group in before.groups])
    print(next(f"{f.layer}: {f.reason}" for f in before.frozen if f.layer == "conv1"))
    entrim.register_rule("examples::channel_scale", scale_rule)
    after = entrim.trace(model, images[:2])
    print("groups with the rule:", [group.name for group in after.groups])
    small = entrim.sparsify(model, images, entrim.Widths(0.5)).model
    shapes = [tuple(net.get_parameter("scale").shape) for net in (model, small)]
    print("the scale has", shapes[0], "->", shapes[1])


if __name__ == "__main__":
    main()
