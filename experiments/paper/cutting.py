"""One row of a table, measured: cut in several ways, tested, tuned, trained from new weights."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import entrim
from entrim import Budget, Measurement, Plan, SparsifyResult, apply_plan, measure, sparsify
from entrim.distillation.trainer import TrainingConfig
from experiments.models import Subject
from experiments.paper.criteria import Ranking
from experiments.paper.rows import Row
from experiments.paper.turns import faster
from experiments.storage import fingerprint_of
from experiments.training import fresh
from experiments.work import NotFinishedError, Point, Work

IMAGES = 500
"""Unlabelled images that a network is cut with."""
_EXAMPLE = 4
FALL = 3e-3
"""Where the paper's alternation stops. It names no figure; this one was chosen so that two LeNets
keep as many channels as it prints, and to convergence they keep fewer (`python -m experiments
bench stop`)."""
WAYS = {
    "paper": "the paper's method and eps",
    "widths": "the paper's method, at its widths",
    "default": "our default, within its parameters",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One row, cut in one way, of one seed; None and missing epochs stand for "not run"."""

    row: str
    way: str
    seed: int
    cut: Point | None = None
    timing: Point | None = None
    """How many times faster than before, and the circumstances."""
    tuned: Mapping[int, float] = field(default_factory=dict)
    scratch: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, point: Mapping[str, Any]) -> "Measured":
        """Return what a point of a record tells."""
        names = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in point.items() if name in names})


def told_of(work: Work, subject: Subject) -> Point:
    """Return what every point of a record tells of its network, the accuracy as handed over too."""
    name = f"{subject.network} seed {subject.seed} baseline"
    identity = _identity(subject)
    found = work.point(name, identity, lambda: {"accuracy": subject.accuracy(subject.model)})
    told = {name: identity[name] for name in ("network", "seed", "weights")}
    return {**told, "baseline": found["accuracy"], "origin": subject.origin}


def measure_row(
    work: Work,
    subject: Subject,
    row: Row,
    way: str,
    tuned: tuple[int, ...],
    scratch: tuple[int, ...],
) -> Measured:
    """Return what the row gives when it is cut in this way, as far as it may be run."""
    name = _named(subject, row, way)
    try:
        cut, place = cut_row(work, subject, row, name, options_of(subject, row, way))
    except NotFinishedError:
        return Measured(row=row.name, way=way, seed=subject.seed)
    small = entrim.load(subject.model, place).eval()
    new = fresh(small, subject.seed)
    lessons = Lessons(work, subject)
    return Measured(
        row=row.name,
        way=way,
        seed=subject.seed,
        cut=cut,
        timing=_timing(work, subject, name, small),
        tuned=lessons.after(f"{name} fine tuning", small, subject.fine_tuning, tuned),
        scratch=lessons.after(
            f"{subject.network} seed {subject.seed} from scratch", new, subject.training, scratch
        ),
    )


def stage_of_row(work: Work, subject: Subject, row: Row, way: str) -> str:
    """Return which stage a row is that is cut in this way today."""
    return place_of(work, subject, _named(subject, row, way), options_of(subject, row, way)).name


def _named(subject: Subject, row: Row, way: str) -> str:
    return f"{subject.network} seed {subject.seed} {row.name} {way}"


def _timing(work: Work, subject: Subject, name: str, small: nn.Module) -> Point | None:
    settings = {**_identity(subject), "small": fingerprint_of(small)}
    try:
        return work.point(
            f"{name} timing",
            settings,
            lambda: faster(subject.model, small, subject.images(_EXAMPLE)),
        )
    except NotFinishedError:
        return None


def cut_row(
    work: Work,
    subject: Subject,
    row: Row,
    name: str,
    options: Mapping[str, Any],
    images: int = IMAGES,
) -> tuple[Point, Path]:
    """Return what `sparsify` with these options makes of the network, and where that is saved."""
    place = place_of(work, subject, name, options, images)
    point = work.point(
        name,
        _settings(subject, options, images),
        lambda: _cut(work, subject, row, options, subject.images(images), place),
        beside=place,
    )
    return {**point, "stage": place.name}, place


def place_of(
    work: Work, subject: Subject, name: str, options: Mapping[str, Any], images: int = IMAGES
) -> Path:
    """Return where a cut of this name and these options is kept."""
    return work.place(name, _settings(subject, options, images))


def _settings(subject: Subject, options: Mapping[str, Any], images: int) -> dict[str, Any]:
    return {**_identity(subject), "options": _recorded(options), "images": images}


@dataclass(frozen=True, slots=True)
class Lessons:
    """Networks taught with labels for several numbers of epochs, each once."""

    work: Work
    subject: Subject

    def after(
        self,
        name: str,
        model: nn.Module,
        recipe: Callable[[int, int], TrainingConfig],
        epochs: tuple[int, ...],
    ) -> dict[int, float]:
        """Return the accuracy after so many epochs each, as far as it may be run."""
        found = {}
        for count in sorted(epochs):  # a longer run may go on from a shorter one
            told = recipe(count, self.subject.seed)
            settings = {
                **_identity(self.subject),
                "start": fingerprint_of(model),
                "recipe": asdict(told),
            }
            try:
                point = self.work.point(
                    name, settings, lambda told=told: self._learn(name, model, told)
                )
            except NotFinishedError:
                continue
            found[count] = point["accuracy"]
        return found

    def taught(self, name: str, model: nn.Module, recipe: TrainingConfig) -> nn.Module:
        """Return `model` after a training."""
        return self.work.trained(name, model, self.subject.task(), recipe)

    def _learn(self, name: str, model: nn.Module, recipe: TrainingConfig) -> Point:
        return {"accuracy": self.subject.accuracy(self.taught(name, model, recipe))}


def _identity(subject: Subject) -> dict[str, Any]:
    return {
        "network": subject.network,
        "seed": subject.seed,
        "weights": fingerprint_of(subject.model),
        "lesson": len(subject.lesson),
        "test": len(subject.test),
    }


def options_of(subject: Subject, row: Row, way: str) -> dict[str, Any]:
    """Return what `sparsify` is told."""
    if way == "paper":
        eps = {group: (-value, value) for group, value in row.eps.items()}
        return {"preset": "paper", "layers": list(row.eps), "eps": eps, "alternation": FALL}
    if way == "widths":
        return {"preset": "paper", "layers": list(row.eps), "widths": dict(row.widths)}
    return {"layers": list(row.eps), "budget": Budget(params=size_at(subject, row).params)}


def _recorded(options: Mapping[str, Any]) -> dict[str, Any]:
    plain = {k: asdict(v) if isinstance(v, Budget) else v for k, v in options.items()}
    return {k: v.criterion if isinstance(v, Ranking) else v for k, v in plain.items()}


def size_at(subject: Subject, row: Row) -> Measurement:
    """Return the size of the network at the widths of the row, whichever channels stay."""
    plan = Plan({group: tuple(range(width)) for group, width in row.widths.items()}, {})
    example = subject.images(_EXAMPLE)
    return measure(apply_plan(subject.model, plan, example), example, repeats=2)


def _cut(
    work: Work,
    subject: Subject,
    row: Row,
    options: Mapping[str, Any],
    images: Tensor,
    place: Path,
) -> Point:
    ranking = options.get("scores")
    scores = {"scores": ranking.scores()} if isinstance(ranking, Ranking) else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the record keeps them as notes
        result = sparsify(
            subject.model,
            images,
            generator=torch.Generator().manual_seed(subject.seed),
            on_step=work.on_step,
            **{**options, **scores},
        )
    result.save(place)
    record = result.record
    return {
        "widths": {group.name: len(group.kept) for group in record.groups if group.name in row.eps},
        "accuracy": subject.accuracy(result.model),
        "parameters": record.after.params,
        "sparsity": 100 * (1 - record.after.params / record.before.params),
        "local sparsity": _local_sparsity(result, row),
        "FLOPs": record.after.macs,
        "bytes": record.after.bytes,
        "seconds": dict(record.seconds),
        "notes": list(record.notes),
    }


def _local_sparsity(result: SparsifyResult, row: Row) -> float | None:
    """Return the share of weights that went, of the convolutions cut on both sides, in percent."""
    if not row.inner:
        return None
    big, small = (
        sum(net.get_submodule(name).get_parameter("weight").numel() for name in row.inner)
        for net in (result.original, result.model)
    )
    return 100 * (1 - small / big)
