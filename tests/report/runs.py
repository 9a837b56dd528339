"""Saved runs to report on."""

import re
from collections import OrderedDict
from pathlib import Path

import torch
from torch import nn

import entrim

HOSTILE = "<img src=x onerror=alert(1)></title><script>alert(2)</script>&'"


def network(name: str = "second") -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 3))
    names = ("first", "a", name, "b", "last")
    return nn.Sequential(OrderedDict(zip(names, layers, strict=True))).eval()


def images() -> torch.Tensor:
    return torch.randn(200, 12, generator=torch.Generator().manual_seed(1))


def save_penalty_run(folder: Path) -> Path:
    """Save a run with importances, traces and a layer with a hostile name."""
    penalty = entrim.EntropicPenalty(eps_w=-1e-3, eps_l2=1e-3)
    entrim.sparsify(network(HOSTILE), images(), penalty).save(folder)
    return folder


def save_budget_run(folder: Path) -> Path:
    """Save a run with a trade-off curve."""
    budget = entrim.Budget(params=0.5)
    entrim.sparsify(network(), images(), budget, exclude="first").save(folder)
    return folder


def visible_text(page: str) -> str:
    """Return the visible text of a page."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page.split("</style>")[1]))
