"""The tables of the paper, reproduced: prune, test, fine tune, and compare with the printed."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace

from entrim.errors import BadSettingError, DataError
from experiments import models
from experiments.models import TrainedModel
from experiments.paper.lines import Lines, checks
from experiments.paper.literature import literature
from experiments.paper.pruning import (
    METHODS,
    RowResult,
    count_alive,
    describe,
    measure_row,
    row_stage,
)
from experiments.paper.published import Cell, tables
from experiments.paper.records import NO_RECORD, Point, PreviousRecord, label, position_in
from experiments.paper.report import NOT_RUN, Report
from experiments.paper.rows import EMPTY, Row, rows_of
from experiments.paper.timing import describe_duration, measure_seconds_per_image
from experiments.training import has_bfloat16
from experiments.work import NotFinishedError, Work

QUICK_EPOCHS = 1
_TRAIN_IMAGES = 50_000
"""Images of one epoch, for all networks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a run."""

    seeds: tuple[int, ...] = (0,)
    quick: bool = False
    methods: tuple[str, ...] = tuple(METHODS)
    epochs: tuple[int, ...] | None = None
    """Of fine tuning and of training from new weights, instead of the published ones."""
    scratch: bool = True
    networks: tuple[str, ...] | None = None
    """Networks of a study to run; None for all."""
    rows: tuple[str, ...] | None = None
    """Rows of a table to run; None for all."""
    variants: tuple[str, ...] | None = None
    """Patterns of the variants of a study to run; None for all."""

    bfloat16: bool = False
    """Train in bfloat16."""

    def prepare(self, trained: TrainedModel) -> TrainedModel:
        """Return the network with the precision of its trainings."""
        return replace(trained, bfloat16=self.bfloat16)

    @property
    def epoch_override(self) -> tuple[int, ...] | None:
        """The epochs that replace the published ones; None to keep those."""
        return (QUICK_EPOCHS,) if self.quick and self.epochs is None else self.epochs

    def __post_init__(self) -> None:
        if self.bfloat16 and not has_bfloat16():
            raise BadSettingError("this CPU has no instructions for bfloat16: leave --bfloat16 out")
        if min(self.seeds, default=-1) < 0:
            raise BadSettingError(f"seeds must be non-negative integers, got {list(self.seeds)}")
        if min(self.epochs or (1,)) < 1:
            raise BadSettingError(
                f"epochs must be positive integers, got {list(self.epochs or ())}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRun:
    """A table of the paper whose rows are one network, pruned."""

    name: str
    title: str
    network: str
    accuracy: str
    """The published table whose row "baseline" has the accuracy."""
    load: Callable[..., TrainedModel]
    training: int = 0
    """Epochs to train the network itself, if that is not finished."""
    quick_training: int = 0
    """The same for a quick run."""

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of the table."""
        return rows_of(self.name)

    def plan(self, options: Options) -> str:
        """Return what will be run, and the estimated time if nothing is finished yet."""
        rows = self._requested(options)
        each = sum(
            max(row.tuned, default=0) + sum(row.scratch) + max(row.by_epoch, default=0)
            for row in rows
        )
        images = images_per_epoch(options)
        training = self.quick_training if options.quick else self.training
        epochs = (each * len(options.methods) + training) * len(options.seeds)
        seconds = epochs * measure_seconds_per_image(self.network) * images
        return (
            f"{self.name}: {self.network}, rows {', '.join(row.name for row in rows)}; "
            f"{len(options.methods)} methods, seeds {', '.join(map(str, options.seeds))}; at most "
            f"{epochs} epochs of training on {images:,} images, {describe_duration(seconds)}, and "
            "the pruning itself"
        )

    def run(self, work: Work, options: Options, previous: PreviousRecord = NO_RECORD) -> Report:
        """Return published and own results, after running what is not finished yet."""
        rows = self._requested(options)
        new: list[Point] = []
        notes, run = quick_notes(options), set()
        for seed in options.seeds:
            name = label(self.network, seed)
            try:
                trained = options.prepare(self.load(work, seed, quick=options.quick))
                described = {
                    **describe(work, trained),
                    "alive": count_alive(work, trained, self.rows),
                }
            except (NotFinishedError, DataError) as error:
                if work.only_finished and previous.matching(seed=seed):
                    continue  # a record can be printed without its network
                if isinstance(error, DataError):
                    raise
                notes.append(f"{name}: {NOT_RUN}")
                continue
            run.add(name)
            notes.append(f"{name}: {trained.origin}; baseline {described['baseline']:.2f} %")
            previous.check_same_network(described)
            stages = {
                (row.name, method): row_stage(work, trained, row, method)
                for row in self.rows
                for method in (METHODS if previous.matching(seed=seed) else ())
            }
            previous, stale = previous.without_stale(described, ("row", "method"), stages)
            notes += stale
            results = (
                measure_row(work, trained, row, method)
                for row in rows
                for method in options.methods
            )
            new += [{**asdict(result), **described} for result in results if result.pruned]
        points = previous.merge(new, ("row", "method", "seed"), self._order)
        baselines = {point["seed"]: point["baseline"] for point in points}
        found = [RowResult.of(point) for point in points]
        lines = Lines(found, baselines, tables()[self.accuracy].cell("baseline", "accuracy"))
        return Report(
            experiment=self.name,
            title=self.title,
            columns=tuple(METHODS.values()),
            lines=tuple(
                line for row in self.rows for line in lines.of(row, _with_epochs(row, options))
            ),
            checks=() if options.quick else checks(self.name, self.rows, found, baselines),
            sections=literature(self.network, self.rows[-1].name, found, baselines),
            notes=(*notes, *previous.notes(run)),
            measured=points,
            quick=options.quick,
        )

    def _requested(self, options: Options) -> list[Row]:
        """Return the rows to run with their epochs."""
        names = [row.name for row in self.rows]
        if unknown := [name for name in options.rows or () if name not in names]:
            raise BadSettingError(
                f"{self.name} has no row {', '.join(unknown)}: name some of {', '.join(names)}"
            )
        requested = (row for row in self.rows if options.rows is None or row.name in options.rows)
        return [_with_epochs(row, options) for row in requested]

    def _order(self, point: Point) -> tuple[int, int, int]:
        row = position_in([row.name for row in self.rows], point["row"])
        return point["seed"], row, position_in(tuple(METHODS), point["method"])


def _with_epochs(row: Row, options: Options) -> Row:
    """Return the row with the epochs to run, for the trainings that it has."""

    def override(published: Mapping[int, Cell]) -> Mapping[int, Cell]:
        if not published or options.epoch_override is None:
            return published
        return {n: published.get(n, EMPTY) for n in options.epoch_override}

    new = {
        name: override(getattr(row, name)) if options.scratch else {}
        for name in ("scratch", "by_epoch")
    }
    return replace(row, tuned=override(row.tuned), **new)


def quick_notes(options: Options) -> list[str]:
    """Return the note of a quick run."""
    if not options.quick:
        return []
    epochs = ", ".join(map(str, options.epoch_override or ())) or "no"
    return [
        f"QUICK: {models.QUICK_TRAIN_IMAGES:,} training images, {epochs} epochs of fine tuning and "
        f"from scratch, {models.QUICK_TEST_IMAGES:,} test images: the figures are no results"
    ]


def images_per_epoch(options: Options) -> int:
    """Return the number of images in one epoch."""
    return models.QUICK_TRAIN_IMAGES if options.quick else _TRAIN_IMAGES


def _vgg(name: str, title: str) -> TableRun:
    return TableRun(
        name=name,
        title=title,
        network="VGG-16",
        accuracy="vgg16-results",
        load=models.vgg16,
    )


def _lenet(name: str, title: str) -> TableRun:
    return TableRun(
        name=name,
        title=title,
        network="LeNet",
        accuracy=name,
        load=models.lenet,
        training=20,
        quick_training=models.QUICK_TRAINING_EPOCHS,
    )


EXPERIMENTS = {
    run.name: run
    for run in (
        _lenet("lenet-conv", "the inputs of fc1"),
        _lenet("lenet-full", "the inputs of fc1, fc2 and fc3"),
        _vgg("vgg16-groups", "groups of layers"),
        _vgg("vgg16-full", "all layers"),
        _vgg("vgg16-epochs", "fine tuning against new weights, epoch by epoch"),
        _vgg("vgg16-scratch", "new weights, trained longer"),
        TableRun(
            name="resnet18",
            title="the second convolution of blocks",
            network="ResNet18",
            accuracy="resnet18-results",
            load=models.resnet18,
        ),
    )
}
