"""One row of a table: pruned by several methods, tested, fine tuned, trained from new weights."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import entrim
from entrim import (
    Budget,
    Calibration,
    Measurement,
    Plan,
    Reconstruction,
    SparsifyResult,
    Widths,
    paper_preset,
)
from entrim.distillation.trainer import TrainingConfig
from experiments.models import TrainedModel
from experiments.paper.activations import live_channels
from experiments.paper.criteria import CriterionScores
from experiments.paper.rows import Row
from experiments.paper.timing import measure_speedup
from experiments.storage import model_fingerprint
from experiments.training import reinitialize
from experiments.work import NotFinishedError, Point, ReportCallback, Work

IMAGES = 500
"""Number of unlabeled images for pruning."""
_EXAMPLES = 4
MIN_DECREASE = 3e-3
"""Where the paper's alternation stops. It names no figure; with this one two LeNets keep as many
channels as it prints, and to convergence they keep fewer (`python -m experiments bench stop`)."""
METHODS = {
    "paper": "the paper's alternation and eps",
    "widths": "widths of the paper, fast solver",
    "default": "our default, within its parameters",
}
"""The first is the published algorithm. The second keeps as many channels as the paper prints:
`solve_k` finds them with increasing eps and the fast solver. Both use the entropic weights."""
SparsifyOptions = Mapping[str, Any]
"""Keyword arguments of `entrim.sparsify`; the selector may be a `CriterionScores`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """One row of one seed, pruned by one method; None and missing epochs mean "not run"."""

    row: str
    method: str
    seed: int
    pruned: Point | None = None
    timing: Point | None = None
    """The speedup, and how it was measured."""
    alive: Mapping[str, int] = field(default_factory=dict)
    """Channels of the original network that are alive, by group; empty if they were not counted."""
    tuned: Mapping[int, float] = field(default_factory=dict)
    scratch: Mapping[int, float] = field(default_factory=dict)
    by_epoch: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, point: Mapping[str, Any]) -> "RowResult":
        """Return the result in a point of a record."""
        names = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in point.items() if name in names})


def describe(work: Work, trained: TrainedModel) -> Point:
    """Return the description of the network in every point of a record, with its accuracy."""
    name = f"{trained.network} seed {trained.seed} baseline"
    identity = _identity(trained)
    found = work.point(name, identity, lambda: {"accuracy": trained.accuracy(trained.model)})
    described = {name: identity[name] for name in ("network", "seed", "weights")}
    return {**described, "baseline": found["accuracy"], "origin": trained.origin}


def count_alive(work: Work, trained: TrainedModel, rows: Sequence[Row]) -> Point:
    """Return the number of channels of every group of the rows that are alive at all."""
    groups = sorted({group for row in rows for group in row.eps})
    name = f"{trained.network} seed {trained.seed} channels alive"
    return work.point(
        name,
        {**_identity(trained), "groups": groups, "images": IMAGES},
        lambda: {"alive": live_channels(trained.model, trained.images(IMAGES), groups)},
    )["alive"]


def measure_row(
    work: Work,
    trained: TrainedModel,
    row: Row,
    method: str,
) -> RowResult:
    """Return the result of one row and method, for its epochs, as far as it may be run."""
    name = _stage_name(trained, row, method)
    try:
        pruned, path = prune_row(work, trained, row, name, sparsify_options(trained, row, method))
    except NotFinishedError:
        return RowResult(row=row.name, method=method, seed=trained.seed)
    small = entrim.load(trained.model, path).eval()
    new = reinitialize(small, trained.seed)
    training = Training(work, trained)
    scratch = f"{trained.network} seed {trained.seed} from scratch"
    return RowResult(
        row=row.name,
        method=method,
        seed=trained.seed,
        pruned=pruned,
        timing=_timing(work, trained, name, small),
        tuned=training.accuracies(
            f"{name} fine tuning", small, trained.fine_tuning, tuple(row.tuned)
        ),
        scratch=training.accuracies(scratch, new, trained.training, tuple(row.scratch)),
        by_epoch=training.by_epoch(
            f"{scratch}, every epoch", new, trained.training, tuple(row.by_epoch)
        ),
    )


def row_stage(work: Work, trained: TrainedModel, row: Row, method: str) -> str:
    """Return the name of the stage in which this method prunes a row today."""
    options = sparsify_options(trained, row, method)
    return stage_path(work, trained, _stage_name(trained, row, method), options).name


def _stage_name(trained: TrainedModel, row: Row, method: str) -> str:
    return f"{trained.network} seed {trained.seed} {row.name} {method}"


def _timing(work: Work, trained: TrainedModel, name: str, small: nn.Module) -> Point | None:
    settings = {**_identity(trained), "small": model_fingerprint(small)}
    try:
        return work.point(
            f"{name} timing",
            settings,
            lambda: measure_speedup(trained.model, small, trained.images(_EXAMPLES)),
        )
    except NotFinishedError:
        return None


def prune_row(
    work: Work,
    trained: TrainedModel,
    row: Row,
    name: str,
    options: SparsifyOptions,
    images: int = IMAGES,
) -> tuple[Point, Path]:
    """Return the result of `sparsify` with these options, and the folder of the network."""
    path = stage_path(work, trained, name, options, images)
    point = work.point(
        name,
        _settings(trained, options, images),
        lambda: _prune(work, trained, row, options, trained.images(images), path),
        artifact=path,
    )
    return {**point, "stage": path.name}, path


def stage_path(
    work: Work, trained: TrainedModel, name: str, options: SparsifyOptions, images: int = IMAGES
) -> Path:
    """Return the folder of a network that is pruned with these options."""
    return work.path_of(name, _settings(trained, options, images))


def _settings(trained: TrainedModel, options: SparsifyOptions, images: int) -> dict[str, Any]:
    return {**_identity(trained), "options": to_plain(options), "images": images}


@dataclass(frozen=True, slots=True)
class Training:
    """Trainings with labels, each for several numbers of epochs."""

    work: Work
    trained: TrainedModel

    def accuracies(
        self,
        name: str,
        model: nn.Module,
        config: Callable[[int, int], TrainingConfig],
        epochs: tuple[int, ...],
    ) -> dict[int, float]:
        """Return the accuracy after each number of epochs, as far as it may be run."""
        found = {}
        for count in sorted(epochs):  # a longer training may continue a shorter one
            one = config(count, self.trained.seed)
            try:
                point = self.work.point(
                    name,
                    self._settings(model, one),
                    lambda one=one: self._measure(name, model, one),
                )
            except NotFinishedError:
                continue
            found[count] = point["accuracy"]
        return found

    def by_epoch(
        self,
        name: str,
        model: nn.Module,
        config: Callable[[int, int], TrainingConfig],
        epochs: tuple[int, ...],
    ) -> dict[int, float]:
        """Return the accuracy after some epochs of one training, the longest of them."""
        if not epochs:
            return {}
        one, tested = config(max(epochs), self.trained.seed), self.trained
        task = replace(
            tested.task(),
            holdout=lambda model: 100 - tested.accuracy(model),
            identity=f"{tested.task().identity} tested every epoch",
        )

        def measure() -> Point:
            done = self.work.train_with_history(name, model, task, one)
            return {"accuracies": [100 - (wrong or 0.0) for _, wrong in done.history]}

        try:
            found = self.work.point(name, self._settings(model, one), measure)["accuracies"]
        except NotFinishedError:
            return {}
        return {count: found[count - 1] for count in sorted(epochs)}

    def _settings(self, model: nn.Module, config: TrainingConfig) -> dict[str, Any]:
        settings = {**_identity(self.trained), "start": model_fingerprint(model)}
        half = {"bfloat16": True} if self.trained.bfloat16 else {}
        return {**settings, "config": asdict(config), **half}

    def train(self, name: str, model: nn.Module, config: TrainingConfig) -> nn.Module:
        """Return `model` after a training."""
        return self.work.train(name, model, self.trained.task(), config)

    def _measure(self, name: str, model: nn.Module, config: TrainingConfig) -> Point:
        return {"accuracy": self.trained.accuracy(self.train(name, model, config))}


def _identity(trained: TrainedModel) -> dict[str, Any]:
    return {
        "network": trained.network,
        "seed": trained.seed,
        "weights": model_fingerprint(trained.model),
        "train_images": len(trained.train_set),
        "test_images": len(trained.test_set),
    }


def sparsify_options(trained: TrainedModel, row: Row, method: str) -> dict[str, Any]:
    """Return the options of `sparsify` for a row."""
    groups = list(row.eps)
    if method == "paper":
        eps = {group: (-value, value) for group, value in row.eps.items()}
        preset = paper_preset(per_group=eps, solver="alternating", min_decrease=MIN_DECREASE)
        return {"include": groups, **{k: v for k, v in preset.items() if k != "calibration"}}
    if method == "widths":
        return {
            "include": groups,
            "budget": Widths(dict(row.widths)),
            "reconstruction": Reconstruction(weights="solution"),
        }
    return {"include": groups, "budget": Budget(params=size_at(trained, row).params)}


def to_plain(value: Any) -> Any:
    """Return options as JSON data; configuration values without fields at their default.

    >>> to_plain({"budget": Budget(params=0.5), "reconstruction": None})
    {'budget': {'type': 'Budget', 'params': 0.5}, 'reconstruction': None}
    """
    if isinstance(value, CriterionScores):
        return value.criterion
    if is_dataclass(value) and not isinstance(value, type):
        changed = {
            one.name: to_plain(getattr(value, one.name))
            for one in fields(value)
            if getattr(value, one.name) != _default_of(one)
        }
        return {"type": type(value).__name__, **changed}
    if isinstance(value, Mapping):
        return {key: to_plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_plain(entry) for entry in value]
    return value


def _default_of(one: Field[Any]) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()


def size_at(trained: TrainedModel, row: Row) -> Measurement:
    """Return the size of the network at the widths of the row, whichever channels are kept."""
    plan = Plan({group: tuple(range(width)) for group, width in row.widths.items()}, {})
    example = trained.images(_EXAMPLES)
    return entrim.measure(entrim.apply_plan(trained.model, plan, example), example, repeats=2)


def _prune(
    work: Work,
    trained: TrainedModel,
    row: Row,
    options: SparsifyOptions,
    images: Tensor,
    path: Path,
) -> Point:
    selector = options.get("selector")
    scores = {"selector": selector.compute()} if isinstance(selector, CriterionScores) else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are notes of the record
        result = entrim.sparsify(
            trained.model,
            images,
            calibration=Calibration(holdout=0),  # as published
            seed=trained.seed,
            callbacks=[ReportCallback(work.report)],
            **{**options, **scores},
        )
    result.save(path)
    record = result.record
    return {
        "widths": {
            group.name: len(group.kept)
            for group in record.groups
            if any(fnmatchcase(group.name, pattern) for pattern in row.eps)
        },
        "accuracy": trained.accuracy(result.model),
        "parameters": record.after.params,
        "sparsity": 100 * (1 - record.after.params / record.before.params),
        "local sparsity": _local_sparsity(result, row),
        "FLOPs": record.after.macs,
        "bytes": record.after.bytes,
        "seconds": dict(record.seconds),
        "notes": list(record.notes),
    }


def _local_sparsity(result: SparsifyResult, row: Row) -> float | None:
    """Return the percentage of removed weights, of the convolutions pruned on both sides."""
    if not row.inner:
        return None
    big, small = (
        sum(net.get_submodule(name).get_parameter("weight").numel() for name in row.inner)
        for net in (result.original, result.model)
    )
    return 100 * (1 - small / big)
