"""The description of a kind of network, and parts of such networks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:  # the networks are built without entrim, too
    from entrim.graph.eager import ExampleInputs


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
    """A network, its example inputs, and its expected channel graph."""

    build: Callable[[], nn.Module]
    groups: dict[str, int]
    frozen: dict[str, str] = field(default_factory=dict)
    """Layer -> a part of the reason why it is frozen."""
    example_inputs: "Callable[[], ExampleInputs]" = lambda: torch.randn(2, 3, 8, 8)


KINDS: dict[str, Kind] = {}


def register_kind(
    name: str, groups: dict[str, int], frozen: dict[str, str] | None = None, **settings: Any
) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    def register(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        KINDS[name] = Kind(build, groups, frozen or {}, **settings)
        return build

    return register


def shaken(model: nn.Module) -> nn.Module:
    """Return `model` with random norms, slopes and scales, unlike those of a new network."""
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


def shuffle(x: Tensor, groups: int) -> Tensor:
    b, c, h, w = x.shape
    return x.view(b, groups, c // groups, h, w).transpose(1, 2).reshape(b, c, h, w)
