"""The random generators that a training draws from: a scope of their own, kept and put back."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def own_randomness() -> Iterator[None]:
    """Let seeds be set inside, for dropout, and put the caller's random numbers back."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield


def seed(own: torch.Generator, number: int) -> None:
    """Put `own` and the generators that layers draw from where this number leads."""
    own.manual_seed(number)
    torch.manual_seed(number)


def states_of(own: torch.Generator) -> dict[str, Any]:
    """Return where `own` and the generators that layers draw from are."""
    return {
        "own": own.get_state(),
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all(),
    }


def put_back(own: torch.Generator, states: dict[str, Any]) -> None:
    """Put all generators where `states_of` found them."""
    own.set_state(states["own"])
    torch.set_rng_state(states["cpu"])
    torch.cuda.set_rng_state_all(states["cuda"])


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """A place between two steps: what a step changes before it moves the weights.

    These are the generators and the buffers; where a step was left before the weights moved,
    putting them back undoes it.
    """

    states: dict[str, Any]
    buffers: dict[str, Tensor]

    @classmethod
    def of(cls, model: nn.Module, own: torch.Generator) -> "Mark":
        """Return the place where `model` and the generators are."""
        return cls(states_of(own), {name: b.clone() for name, b in model.named_buffers()})

    def go_back(self, model: nn.Module, own: torch.Generator) -> None:
        """Put buffers and generators back."""
        put_back(own, self.states)
        for name, buffer in model.named_buffers():
            buffer.copy_(self.buffers[name])
