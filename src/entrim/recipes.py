"""What a training is told, and what it hands back."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from entrim.errors import BadSettingError

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda _: 1.0,
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    "steps": lambda done: 0.1 ** ((done >= 0.5) + (done >= 0.75)),
    "one cycle": lambda done: min(5 * done, 1.25 * (1 - done)),
}
"""The learning rate relative to its start, by the part of the run that is done."""

OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "sgd": lambda *args, **options: torch.optim.SGD(*args, momentum=0.9, nesterov=True, **options),
    "momentum": lambda *args, **options: torch.optim.SGD(*args, momentum=0.9, **options),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a network is trained."""

    epochs: int
    batch: int
    learning_rate: float
    optimiser: str = "adam"
    """Or "sgd", with Nesterov's momentum 0.9, or "momentum", with a plain one."""
    weight_decay: float = 0.0
    schedule: str = "cosine"
    halve_every: int | None = None
    """Epochs after which the learning rate is halved, again and again, on top of the schedule."""
    mode: str = "train"
    """Or "eval": dropout rests and BatchNorm keeps its statistics, while all weights learn."""
    patience: int | None = None
    """Epochs without a better loss on the images held out before the run stops; None for never."""
    hand_out: str = "best"
    """The state with the least loss on the images held out, or the "last"."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "patience", "halve_every"):
            value = getattr(self, name)
            if value is None and name in ("patience", "halve_every"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise BadSettingError(f"{name} is {value!r}: hand over a whole number from 1")
        if not 0 < self.learning_rate < math.inf:
            raise BadSettingError(f"learning_rate is {self.learning_rate}: it must be positive")
        if not 0 <= self.weight_decay < math.inf:
            raise BadSettingError(f"weight_decay is {self.weight_decay}: hand over 0 or more")
        for name, known in (
            ("optimiser", OPTIMISERS),
            ("schedule", SCHEDULES),
            ("mode", ("train", "eval")),
            ("hand_out", ("best", "last")),
        ):
            if getattr(self, name) not in known:
                choice = ", ".join(map(repr, known))
                raise BadSettingError(f"{name} is {getattr(self, name)!r}: choose one of {choice}")

    def rate(self, epoch: int, done: float) -> float:
        """Return the learning rate in `epoch`, counted from 0, when this part of the run is done.

        >>> recipe = Recipe(
        ...     epochs=20, batch=1, learning_rate=1.0, schedule="constant", halve_every=7
        ... )
        >>> [recipe.rate(epoch, epoch / 20) for epoch in (0, 6, 7, 13, 14, 19)]
        [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
        """
        halved = 0 if self.halve_every is None else epoch // self.halve_every
        return self.learning_rate * SCHEDULES[self.schedule](done) * 0.5**halved

    def continues(self, shorter: "Recipe") -> bool:
        """Return whether a run of `shorter` is the beginning of a run of this recipe.

        It is where fewer epochs are all that differs and the schedule does not look at the end.
        """
        fewer = shorter.epochs < self.epochs and self.schedule == "constant"
        return fewer and replace(shorter, epochs=self.epochs) == self


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """What a network shall learn."""

    count: int
    """The images to learn from; they are named by their numbers."""
    loss: Callable[[nn.Module, Tensor, torch.Generator], Tensor]
    """The mean loss on the images of these numbers; whatever is random comes from the generator."""
    held_out: Callable[[nn.Module], float]
    """The loss on images that are not learned from; it is asked in eval mode, without gradients."""
    identity: str
    """A fingerprint of images and aims: a checkpoint of other ones is refused."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """The network that was handed out, and how it came there."""

    model: nn.Module
    before: float
    """The loss on the images held out, at the start."""
    after: float
    """The same of `model`: where the best is handed out never above `before`, because the start
    is a candidate too."""
    best: int
    """The epoch that `model` is from; 0 is the start."""
    history: tuple[tuple[float, float], ...]
    """For every epoch the mean loss of its batches, and the loss on the images held out."""
    ending: str
    """The sentence that says why it ended."""
    diverged: bool
    seconds: float
    """Of computing, also before the run was resumed."""
