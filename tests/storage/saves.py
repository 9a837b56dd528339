"""A small pruned network, and everything that can be compared with a loaded one."""

from typing import Any

import torch
from torch import Tensor, nn

from entrim import Plan, apply_plan
from tests.surgery.kinds import shaken
from tests.surgery.test_surgery import PLAN, Small

IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def small_one(model: nn.Module | None = None, plan: Plan = PLAN) -> nn.Module:
    torch.manual_seed(0)
    return apply_plan(shaken(Small()) if model is None else model, plan, IMAGES)


def everything(model: nn.Module) -> dict[str, Any]:
    """Return everything about a network except its hooks."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    found: dict[str, Any] = {
        name: (t.dtype, t.shape, t.stride(), t.requires_grad, t.detach().double().tolist())
        for name, t in tensors.items()
    }
    for name, module in model.named_modules():
        plain = (int, float, bool, str, tuple)
        found["/" + name] = {k: v for k, v in vars(module).items() if isinstance(v, plain)}
    found["state"] = list(model.state_dict())
    return found


class Tied(nn.Module):
    """A weight with two names, a layer with two names, and buffers outside the state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.c.weight, self.again = self.b.weight, self.b
        self.out = nn.Linear(6, 2)
        self.register_buffer("scale", torch.rand(6), persistent=False)
        self.register_buffer("scale_again", self.get_buffer("scale"), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.again(self.b(self.a(x)).relu()).relu() * self.get_buffer("scale")
        return self.out(self.c(x).relu() + self.get_buffer("scale_again"))
