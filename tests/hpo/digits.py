"""The digits, a small network trained on them, and searches with it."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import entrim


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Return the images of scikit-learn, and their classes."""
    pixels, classes = load_digits(return_X_y=True)
    return torch.as_tensor(pixels).float().view(-1, 1, 8, 8) / 16, torch.as_tensor(classes)


@cache
def trained() -> nn.Sequential:
    """Return a small network trained on the first 1,000 digits."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(32, 24),
        nn.ReLU(),
        nn.Linear(24, 10),
    )
    x, y = digits()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(8):
        for rows in torch.randperm(1000).split(100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model.eval()


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    x, y = digits()
    return float((model(x[1000:1400]).argmax(1) == y[1000:1400]).double().mean())


def run_search(
    score: Callable[[nn.Module], float] = accuracy, **options: Any
) -> entrim.SearchResult:
    return entrim.search(trained(), digits()[0][:200], score, **{"trials": 6, **options})


@cache
def default_search() -> entrim.SearchResult:
    """Return a search of twelve trials, all scored, with the default ranges."""
    return run_search(trials=12, early_stop=None)


def without_times(found: entrim.SearchResult) -> list[entrim.Trial]:
    """Return the trials without their times."""
    return [replace(trial, seconds=0.0) for trial in found.record.trials]
