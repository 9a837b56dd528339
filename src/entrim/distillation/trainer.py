"""The training loop. An interrupted run continues after the last finished epoch.

Everything random in an epoch follows from the seed and the number of the epoch. A checkpoint
contains the rest: the tensors of the network, of its best state and of the optimizer, and the
progress of the run.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from entrim.callbacks import ProgressEvent
from entrim.errors import BadSettingError
from entrim.graph.eager import copy_module, isolate_random_state, remove_hooks
from entrim.storage.checkpoint import CheckpointStore, fingerprint
from entrim.surgery.prune import values_of

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda _: 1.0,
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    "steps": lambda done: 0.1 ** ((done >= 0.5) + (done >= 0.75)),
}
"""Learning rate relative to `TrainingConfig.learning_rate`, by the finished fraction of the run."""

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": lambda *args, **options: torch.optim.SGD(*args, momentum=0.9, nesterov=True, **options),
    "momentum": lambda *args, **options: torch.optim.SGD(*args, momentum=0.9, **options),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """The options of a training."""

    epochs: int
    batch: int
    learning_rate: float
    optimizer: str = "adam"
    """Or "adamw", or "sgd" (Nesterov momentum 0.9), or "momentum" (momentum 0.9)."""
    weight_decay: float = 0.0
    schedule: str = "cosine"
    warmup: int = 0
    """Number of steps in which the learning rate rises linearly, in addition to the schedule."""
    step_size: int | None = None
    """Number of epochs after which the learning rate is halved, in addition to the schedule."""
    mode: str = "train"
    """Or "eval": no dropout, and BatchNorm keeps its statistics; all weights are trained."""
    patience: int | None = None
    """Epochs without a lower hold-out loss after which the training stops; None disables it."""
    return_state: str = "best"
    """The state with the lowest hold-out loss; or the "last"; or "better": the last if its hold-out
    loss is below that of the initial state, which is returned otherwise. Then the hold-out loss is
    computed at the beginning and at the end only."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "patience", "step_size"):
            value = getattr(self, name)
            if value is None and name in ("patience", "step_size"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise BadSettingError(f"{name} must be a positive integer, got {value!r}")
        if not 0 < self.learning_rate < math.inf:
            raise BadSettingError(f"learning_rate must be positive, got {self.learning_rate}")
        if self.return_state == "better" and self.patience is not None:
            raise BadSettingError('patience needs return_state="best": leave one of them out')
        if not 0 <= self.weight_decay < math.inf:
            raise BadSettingError(f"weight_decay must be at least 0, got {self.weight_decay}")
        for name, known in (
            ("optimizer", OPTIMIZERS),
            ("schedule", SCHEDULES),
            ("mode", ("train", "eval")),
            ("return_state", ("best", "last", "better")),
        ):
            if getattr(self, name) not in known:
                choice = ", ".join(map(repr, known))
                raise BadSettingError(
                    f"{name} must be one of {choice}, got {getattr(self, name)!r}"
                )

    def factor(self, step: int, steps_per_epoch: int) -> float:
        """Return the learning rate at a step, relative to `learning_rate`.

        >>> config = TrainingConfig(
        ...     epochs=20, batch=1, learning_rate=1.0, schedule="constant", step_size=7
        ... )
        >>> [config.factor(epoch, 1) for epoch in (0, 6, 7, 13, 14, 19)]
        [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
        """
        halved = 0 if self.step_size is None else step // steps_per_epoch // self.step_size
        risen = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        decayed = SCHEDULES[self.schedule](step / (self.epochs * steps_per_epoch))
        return risen * decayed * 0.5**halved

    @property
    def identity(self) -> str:
        """The settings that a checkpoint depends on.

        With a constant learning rate the number of epochs does not matter: a longer run continues
        a shorter one.
        """
        settings = asdict(self)
        if self.schedule == "constant":
            del settings["epochs"]
        return json.dumps(settings)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingTask:
    """A loss to be minimized."""

    count: int
    """The number of training images."""
    loss: Callable[[nn.Module, Tensor, torch.Generator], Tensor]
    """The mean loss on the images with these indices; random numbers come from the generator."""
    holdout: Callable[[nn.Module], float]
    """The loss on the hold-out images; called in eval mode, without gradients."""
    identity: str
    """A fingerprint of images and targets; checkpoints of another task are refused."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingResult:
    """The trained network, and the course of its training."""

    model: nn.Module
    before: float
    """The hold-out loss of the initial network."""
    after: float
    """The hold-out loss of `model`; the best state is never worse than the initial one, which is a
    candidate too."""
    best: int
    """The epoch of `model`; 0 is the initial state."""
    history: tuple[tuple[float, float | None], ...]
    """For every epoch, the mean loss of its batches and the hold-out loss, if it was computed."""
    ending: str
    """The reason why the training ended, as a sentence."""
    diverged: bool
    seconds: float
    """Computing time, including that before the run was resumed."""


_COMPLETE = "all epochs were run"


def train(
    model: nn.Module,
    task: TrainingTask,
    config: TrainingConfig,
    *,
    checkpoints: CheckpointStore | None = None,
    stage: str = "train",
    report: Callable[[ProgressEvent], None] = lambda _: None,
) -> TrainingResult:
    """Return a trained copy of `model`, in the state with the lowest loss on hold-out images.

    If `config.return_state` is "last", it is the state after the last epoch with a finite loss.
    With `checkpoints`, the state after every epoch is stored, and an interrupted run continues from
    it, with the same result on the same machine and number of threads. With a constant learning
    rate, a run also continues from a shorter one. Parameters that do not require gradients are not
    trained.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise BadSettingError(
            "no parameter of the network requires gradients: call model.requires_grad_(True)"
        )
    store = checkpoints or CheckpointStore()
    identity = {
        "settings": config.identity,
        "network": fingerprint(values_of(model).values()),
        "images or targets": task.identity,
    }
    learner = copy_module(model)
    with (
        isolate_random_state(),
        torch.enable_grad(),
        remove_hooks(learner),
        store.open(identity),
    ):
        run = _Run(learner, task, config, stage, report)
        lengths = range(config.epochs, 0, -1)
        known = (store.get(_key(epochs)) for epochs in lengths)
        run.resume(next((state for state in known if state is not None), None))
        run.finish(lambda: store.put(_key(config.epochs), run.checkpoint()))
        return run.result([module.training for module in model.modules()])


def estimate_seconds(model: nn.Module, task: TrainingTask, config: TrainingConfig) -> float:
    """Return the approximate duration of the training, from one timed step on a copy."""
    learner = copy_module(model).train(config.mode == "train")
    index = torch.arange(min(config.batch, task.count))
    seconds = []
    with isolate_random_state(), torch.enable_grad(), remove_hooks(learner):
        for _ in range(2):  # the first step is slower
            begin = time.perf_counter()
            task.loss(learner, index, torch.Generator().manual_seed(config.seed)).backward()
            seconds.append(time.perf_counter() - begin)
    return seconds[-1] * config.epochs * math.ceil(task.count / config.batch)


@dataclass(slots=True)
class _State:
    """The progress of a run, as plain values."""

    epoch: int = 0
    before: float = math.nan
    after: float = math.nan
    best: int = 0
    history: list[tuple[float, float | None]] = field(default_factory=list)
    ending: str = ""
    diverged: bool = False
    seconds: float = 0.0


class _Run:
    """The network that is trained, its optimizer, and the progress."""

    def __init__(
        self,
        model: nn.Module,
        task: TrainingTask,
        config: TrainingConfig,
        stage: str,
        report: Callable[[ProgressEvent], None],
    ) -> None:
        self.model, self.task, self.config = model, task, config
        self.stage, self.report = stage, report
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = OPTIMIZERS[config.optimizer](
            trained, lr=config.learning_rate, weight_decay=config.weight_decay
        )
        self.batches = math.ceil(task.count / config.batch)
        self.scheduler = LambdaLR(self.optimizer, lambda step: config.factor(step, self.batches))
        self.generator = torch.Generator()
        self.state = _State()
        self.best: dict[str, Tensor] = {}
        self.begun = time.perf_counter()

    def finish(self, save: Callable[[], None]) -> None:
        """Run the remaining epochs, and save the state after each."""
        state = self.state
        if not self.best:
            state.before = state.after = self._holdout_loss()
            if not math.isfinite(state.before):
                raise BadSettingError(
                    "the loss is NaN or infinite before the training: check that both networks "
                    "compute finite outputs on these images"
                )
            self.best = _clone(self.model)
        while not state.ending:
            self._epoch()
            save()

    def result(self, modes: list[bool]) -> TrainingResult:
        """Return the selected state, every module in the given mode."""
        state = self.state
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

    def _epoch(self) -> None:
        state, total = self.state, 0.0
        seed = (self.config.seed * 1_000_003 + state.epoch) % 2**63
        self.generator.manual_seed(seed)
        torch.manual_seed(seed)
        order = torch.randperm(self.task.count, generator=self.generator)
        for number, index in enumerate(order.tensor_split(self.batches), 1):
            loss = self._step(index)
            if not math.isfinite(loss):
                return self._stop_diverged()
            total += loss
            self._report_step(loss, number)
        judged = self.config.return_state != "better" or state.epoch + 1 == self.config.epochs
        holdout = self._holdout_loss() if judged else None
        if holdout is not None and not math.isfinite(holdout):
            return self._stop_diverged()
        state.history.append((total / self.batches, holdout))
        state.epoch += 1
        if holdout is not None:
            self._consider(holdout)
        state.ending = self._ending()
        return None

    def _consider(self, holdout: float) -> None:
        """Keep the current state if it is to be returned, with this hold-out loss."""
        state = self.state
        if holdout < state.after or self.config.return_state == "last":
            state.after, state.best, self.best = holdout, state.epoch, _clone(self.model)

    def _ending(self) -> str:
        """Return why the run ends after this epoch; empty where it continues."""
        epoch, patience = self.state.epoch, self.config.patience
        if epoch == self.config.epochs:
            return _COMPLETE
        if patience is not None and epoch - self.state.best >= patience:
            return f"stopped early: no better for {patience} epochs"
        return ""

    def _step(self, index: Tensor) -> float:
        """Take one step on the images with these numbers, unless their loss is not finite."""
        self.model.train(self.config.mode == "train")
        self.optimizer.zero_grad()
        loss = self.task.loss(self.model, index, self.generator)
        value = loss.item()
        if math.isfinite(value):
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
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

    def _report_step(self, loss: float, step: int) -> None:
        state, total = self.state, self.config.epochs * self.batches
        done = state.epoch * self.batches + step
        self.report(
            ProgressEvent(
                stage=self.stage,
                name=f"epoch {state.epoch + 1}",
                done=done,
                total=total,
                detail=f"loss {loss:.4g}, on validation images {state.after:.4g}",
                loss=loss,
                seconds_left=self._seconds() / done * (total - done),
            )
        )

    def checkpoint(self) -> dict[str, Any]:
        """Return everything that the rest of the run depends on."""
        return {
            "progress": {**asdict(self.state), "seconds": self._seconds()},
            "model": values_of(self.model),
            "best": self.best,
            "optimizer": self.optimizer.state_dict(),
            "scheduler": {"last_epoch": self.scheduler.last_epoch},
        }

    def resume(self, known: dict[str, Any] | None) -> None:
        """Continue from a checkpoint of this run, or of a shorter one."""
        if known is None:
            return
        self.state = _State(**known["progress"])
        if self.state.ending == _COMPLETE:
            self.state.ending = self._ending()
        _put(self.model, known["model"])
        self.best = known["best"]
        self.optimizer.load_state_dict(known["optimizer"])
        self.scheduler.last_epoch = known["scheduler"]["last_epoch"]


def _key(epochs: int) -> str:
    return f"state of a run of {epochs} epochs"


def _clone(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in values_of(model).items()}


def _put(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    for name, tensor in values_of(model).items():
        tensor.copy_(tensors[name])
