"""A small network that was cut, and all that can be told about one that comes back."""

from typing import Any

import torch
from torch import nn

from entrim import Plan, apply_plan
from tests.network.kinds import shaken
from tests.network.test_surgery import PLAN, Small

IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def small_one(model: nn.Module | None = None, plan: Plan = PLAN) -> nn.Module:
    torch.manual_seed(0)
    return apply_plan(shaken(Small()) if model is None else model, plan, IMAGES)


def everything(model: nn.Module) -> dict[str, Any]:
    """Return all that can be told about a network but its hooks."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    facts: dict[str, Any] = {
        name: (t.dtype, t.shape, t.stride(), t.requires_grad, t.detach().double().tolist())
        for name, t in tensors.items()
    }
    for name, module in model.named_modules():
        plain = (int, float, bool, str, tuple)
        facts["/" + name] = {k: v for k, v in vars(module).items() if isinstance(v, plain)}
    facts["state"] = list(model.state_dict())
    return facts
