"""One training loop that can be stopped, killed and resumed to the same bits.

Everything random in an epoch follows from the seed and the number of the epoch; what a checkpoint
holds decides the rest: tensors of the network, of its best state and of the optimizer, the states
of the random generators, and how far the run is. The learning rate is a function of the step.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from entrim.callbacks import ProgressEvent
from entrim.errors import BadSettingError
from entrim.graph.eager import copy_module, isolate_random_state, remove_hooks
from entrim.storage.checkpoint import fingerprint, read_checkpoint, write_checkpoint
from entrim.surgery.structure import values_of

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda _: 1.0,
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    "steps": lambda done: 0.1 ** ((done >= 0.5) + (done >= 0.75)),
    "one cycle": lambda done: min(5 * done, 1.25 * (1 - done)),
}
"""The learning rate relative to its start, by the part of the run that is done."""

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "sgd": lambda *args, **options: torch.optim.SGD(*args, momentum=0.9, nesterov=True, **options),
    "momentum": lambda *args, **options: torch.optim.SGD(*args, momentum=0.9, **options),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """How a network is trained."""

    epochs: int
    batch: int
    learning_rate: float
    optimizer: str = "adam"
    """Or "sgd", with Nesterov's momentum 0.9, or "momentum", with a plain one."""
    weight_decay: float = 0.0
    schedule: str = "cosine"
    step_size: int | None = None
    """Epochs after which the learning rate is halved, again and again, on top of the schedule."""
    mode: str = "train"
    """Or "eval": dropout rests and BatchNorm keeps its statistics, while all weights learn."""
    patience: int | None = None
    """Epochs without a better loss on the images held out before the run stops; None for never."""
    return_state: str = "best"
    """The state with the least loss on the images held out, or the "last"."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "patience", "step_size"):
            value = getattr(self, name)
            if value is None and name in ("patience", "step_size"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise BadSettingError(f"{name} is {value!r}: hand over a whole number from 1")
        if not 0 < self.learning_rate < math.inf:
            raise BadSettingError(f"learning_rate is {self.learning_rate}: it must be positive")
        if not 0 <= self.weight_decay < math.inf:
            raise BadSettingError(f"weight_decay is {self.weight_decay}: hand over 0 or more")
        for name, known in (
            ("optimizer", OPTIMIZERS),
            ("schedule", SCHEDULES),
            ("mode", ("train", "eval")),
            ("return_state", ("best", "last")),
        ):
            if getattr(self, name) not in known:
                choice = ", ".join(map(repr, known))
                raise BadSettingError(f"{name} is {getattr(self, name)!r}: choose one of {choice}")

    def rate(self, epoch: int, done: float) -> float:
        """Return the learning rate in `epoch`, counted from 0, when this part of the run is done.

        >>> config = TrainingConfig(
        ...     epochs=20, batch=1, learning_rate=1.0, schedule="constant", step_size=7
        ... )
        >>> [config.rate(epoch, epoch / 20) for epoch in (0, 6, 7, 13, 14, 19)]
        [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
        """
        halved = 0 if self.step_size is None else epoch // self.step_size
        return self.learning_rate * SCHEDULES[self.schedule](done) * 0.5**halved

    def continues(self, shorter: "TrainingConfig") -> bool:
        """Return whether a run of `shorter` is the beginning of a run of this recipe.

        It is where fewer epochs are all that differs and the schedule does not look at the end.
        """
        fewer = shorter.epochs < self.epochs and self.schedule == "constant"
        return fewer and replace(shorter, epochs=self.epochs) == self


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingTask:
    """What a network shall learn."""

    count: int
    """The images to learn from; they are named by their numbers."""
    loss: Callable[[nn.Module, Tensor, torch.Generator], Tensor]
    """The mean loss on the images of these numbers; whatever is random comes from the generator."""
    holdout: Callable[[nn.Module], float]
    """The loss on images that are not learned from; it is asked in eval mode, without gradients."""
    identity: str
    """A fingerprint of images and aims: a checkpoint of other ones is refused."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingResult:
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


def seed_generators(own: torch.Generator, number: int) -> None:
    """Put `own` and the generators that layers draw from where this number leads."""
    own.manual_seed(number)
    torch.manual_seed(number)


def generator_states(own: torch.Generator) -> dict[str, Any]:
    """Return where `own` and the generators that layers draw from are."""
    return {
        "own": own.get_state(),
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all(),
    }


def restore_states(own: torch.Generator, states: dict[str, Any]) -> None:
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
        return cls(generator_states(own), {name: b.clone() for name, b in model.named_buffers()})

    def go_back(self, model: nn.Module, own: torch.Generator) -> None:
        """Put buffers and generators back."""
        restore_states(own, self.states)
        for name, buffer in model.named_buffers():
            buffer.copy_(self.buffers[name])


EVERY = 30.0
"""Seconds between two checkpoints; the end of a run writes one too."""
_ALL_RUN = "all epochs were run"


def train(
    model: nn.Module,
    task: TrainingTask,
    recipe: TrainingConfig,
    *,
    checkpoint: Path | None = None,
    shorter: tuple[TrainingConfig, Path] | None = None,
    every: float = EVERY,
    stage: str = "train",
    report: Callable[[ProgressEvent], None] | None = None,
) -> TrainingResult:
    """Return a trained copy of `model`, in the state with the least loss on the images held out.

    Where `recipe.return_state` is "last" it is the state after the last epoch with a finite loss.
    With `checkpoint`, a file, the run is written there every so many seconds and on Ctrl-C, and
    goes on from there, to the same bits on the same machine and number of threads; a finished one
    is handed out at once. Where `checkpoint` does not exist yet, the run goes on from that of a
    `shorter` one, whose recipe must be continued by `recipe`. Parameters that do not ask for
    gradients stay.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise BadSettingError(
            "no parameter of the network asks for gradients: call model.requires_grad_(True)"
        )
    if shorter is not None and not recipe.continues(shorter[0]):
        raise BadSettingError("the shorter run is no beginning of this one: leave it out")
    identity = {
        "settings": json.dumps(asdict(recipe)),
        "network": fingerprint(values_of(model).values()),
        "images or aims": task.identity,
    }
    learner = copy_module(model)
    with isolate_random_state(), torch.enable_grad(), remove_hooks(learner):
        run = _Run(learner, task, recipe, stage, report or (lambda _: None))
        save = _nothing if checkpoint is None else run.writer(checkpoint, identity, every)
        held = None if checkpoint is None else read_checkpoint(checkpoint, identity)
        if held is None and shorter is not None:
            told = {"settings": json.dumps(asdict(shorter[0]))}
            held = read_checkpoint(shorter[1], {**identity, **told})
        run.resume(held)
        return run.to_the_end(save, modes=[module.training for module in model.modules()])


@dataclass(slots=True)
class _State:
    """How far a run is, as plain values."""

    epoch: int = 0
    step: int = 0
    """Batches of this epoch that are done."""
    total: float = 0.0
    """The sum of their losses."""
    before: float = math.nan
    after: float = math.nan
    best: int = 0
    history: list[tuple[float, float]] = field(default_factory=list)
    ending: str = ""
    diverged: bool = False
    seconds: float = 0.0


class _Run:
    """A run: the network that learns, what it needs, and how far it is."""

    def __init__(
        self,
        model: nn.Module,
        task: TrainingTask,
        recipe: TrainingConfig,
        stage: str,
        report: Callable[[ProgressEvent], None],
    ) -> None:
        self.model, self.task, self.recipe = model, task, recipe
        self.stage, self.report = stage, report
        learns = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = OPTIMIZERS[recipe.optimizer](
            learns, lr=recipe.learning_rate, weight_decay=recipe.weight_decay
        )
        self.generator = torch.Generator()
        self.batches = math.ceil(task.count / recipe.batch)
        self.state = _State()
        self.best: dict[str, Tensor] = {}
        self.random: dict[str, Any] | None = None
        """The states of the random generators in the middle of an epoch that is resumed."""
        self.mark: Mark | None = None
        """Where the last step ended; None while weights move and nothing fits together."""
        self.begun = time.perf_counter()

    def to_the_end(self, save: Callable[[bool], None], modes: list[bool]) -> TrainingResult:
        """Run the epochs that are left, and hand out the best state in the given modes."""
        state = self.state
        if not self.best:
            state.before = state.after = self._holdout_loss()
            if not math.isfinite(state.before):
                raise BadSettingError(
                    "the loss is NaN or infinite before anything is trained: check that both "
                    "networks give numbers on these images"
                )
            self.best = _clone(self.model)
        try:
            if not state.ending:  # a finished run is only read
                while not state.ending:
                    self._epoch(save)
                save(True)
        except KeyboardInterrupt:
            if self.mark is not None:
                self.mark.go_back(self.model, self.generator)
                save(True)
            raise
        _put(self.model, self.best)
        for module, mode in zip(self.model.modules(), modes, strict=True):
            module.training = mode
        self.optimizer.zero_grad()
        return TrainingResult(
            model=self.model,
            before=state.before,
            after=state.after,
            best=state.best,
            history=tuple(state.history),
            ending=state.ending,
            diverged=state.diverged,
            seconds=self._seconds(),
        )

    def _epoch(self, save: Callable[[bool], None]) -> None:
        """Run one epoch, or what is left of it."""
        state = self.state
        order = self._order()
        for index in order.tensor_split(self.batches)[state.step :]:
            loss = self._learn(index)
            if not math.isfinite(loss):
                return self._stop_diverged()
            state.step, state.total = state.step + 1, state.total + loss
            self.mark = Mark.of(self.model, self.generator)
            self._report_step(loss)
            save(False)
        held_out = self._holdout_loss()
        if not math.isfinite(held_out):
            return self._stop_diverged()
        self.mark = None
        state.history.append((state.total / self.batches, held_out))
        state.epoch, state.step, state.total = state.epoch + 1, 0, 0.0
        if held_out < state.after or self.recipe.return_state == "last":
            state.after, state.best, self.best = held_out, state.epoch, _clone(self.model)
        state.ending = self._ending()
        self.mark = Mark.of(self.model, self.generator)
        return None

    def _ending(self) -> str:
        """Return why the run ends after this epoch; nothing where it goes on."""
        epoch, patience = self.state.epoch, self.recipe.patience
        if epoch == self.recipe.epochs:
            return _ALL_RUN
        if patience is not None and epoch - self.state.best >= patience:
            return f"stopped early: no better for {patience} epochs"
        return ""

    def _order(self) -> Tensor:
        """Return the order of the images in this epoch, and put the random generators there."""
        seed_generators(self.generator, (self.recipe.seed * 1_000_003 + self.state.epoch) % 2**63)
        order = torch.randperm(self.task.count, generator=self.generator)
        if self.random is not None and self.state.step > 0:
            restore_states(self.generator, self.random)
        self.random = None
        self.mark = Mark.of(self.model, self.generator)
        return order

    def _learn(self, index: Tensor) -> float:
        """Take one step on the images of these numbers, unless their loss is not a number."""
        done = (self.state.epoch * self.batches + self.state.step) / (
            self.recipe.epochs * self.batches
        )
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate(self.state.epoch, done)
        self.model.train(self.recipe.mode == "train")
        self.optimizer.zero_grad()
        loss = self.task.loss(self.model, index, self.generator)
        value = loss.item()
        if math.isfinite(value):
            loss.backward()
            self.mark = None
            self.optimizer.step()
        return value

    @torch.no_grad()
    def _holdout_loss(self) -> float:
        self.model.eval()
        return float(self.task.holdout(self.model))

    def _stop_diverged(self) -> None:
        self.state.diverged = True
        self.state.ending = (
            f"the loss became NaN or infinite in epoch {self.state.epoch + 1}: lower learning_rate"
        )

    def _seconds(self) -> float:
        return self.state.seconds + time.perf_counter() - self.begun

    def _report_step(self, loss: float) -> None:
        state, total = self.state, self.recipe.epochs * self.batches
        done = state.epoch * self.batches + state.step
        self.report(
            ProgressEvent(
                stage=self.stage,
                name=f"epoch {state.epoch + 1}",
                done=done,
                total=total,
                detail=f"loss {loss:.4g}, on images held out {state.after:.4g}",
                loss=loss,
                seconds_left=self._seconds() / done * (total - done),
            )
        )

    def writer(self, file: Path, identity: dict[str, str], every: float) -> Callable[[bool], None]:
        """Return what writes the run to `file` when its time has come, or when it must."""
        last = time.perf_counter()

        def save(must: bool) -> None:
            nonlocal last
            if must or time.perf_counter() - last >= every:
                write_checkpoint(file, identity, self._state())
                last = time.perf_counter()

        return save

    def _state(self) -> dict[str, Any]:
        """Return everything that the rest of the run depends on."""
        return {
            "progress": {**asdict(self.state), "seconds": self._seconds()},
            "model": values_of(self.model),
            "best": self.best,
            "optimizer": self.optimizer.state_dict(),
            "random": generator_states(self.generator),
        }

    def resume(self, held: dict[str, Any] | None) -> None:
        """Go back to where `_held` was asked, by this run or by a shorter one."""
        if held is None:
            return
        self.state = _State(**held["progress"])
        if self.state.ending == _ALL_RUN:
            self.state.ending = self._ending()
        self.state.history = [(a, b) for a, b in self.state.history]
        _put(self.model, held["model"])
        self.best = held["best"]
        self.optimizer.load_state_dict(held["optimizer"])
        self.random = held["random"]


def _clone(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in values_of(model).items()}


def _put(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    for name, tensor in values_of(model).items():
        tensor.copy_(tensors[name])


def _nothing(_: bool) -> None:
    """Write no checkpoint."""
