"""The paper's tables, run again: cut, test, fine tune, and set beside what was printed."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace

from entrim.errors import BadSettingError, DataError
from experiments import models
from experiments.models import Subject
from experiments.paper.bars import verdicts
from experiments.paper.cutting import WAYS, Measured, measure_row, stage_of_row, told_of
from experiments.paper.earlier import NOTHING, Earlier, Point, named, place_in
from experiments.paper.lines import Lines
from experiments.paper.planning import about, seconds_per_image
from experiments.paper.published import Cell, tables
from experiments.paper.report import NOT_RUN, Report
from experiments.paper.rows import EMPTY, Row, rows_of
from experiments.work import NotFinishedError, Work

QUICK_EPOCHS = 1
_LESSON = 50_000
"""Images of one epoch, of all networks here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a run may be told."""

    seeds: tuple[int, ...] = (0,)
    quick: bool = False
    ways: tuple[str, ...] = tuple(WAYS)
    epochs: tuple[int, ...] | None = None
    """Of fine tuning and of training from new weights, instead of the published ones."""
    scratch: bool = True
    networks: tuple[str, ...] | None = None
    """Those of a study that are run; None for all."""

    @property
    def taught(self) -> tuple[int, ...] | None:
        """The epochs that are run instead of the usual ones; None for the usual ones."""
        return (QUICK_EPOCHS,) if self.quick and self.epochs is None else self.epochs

    def __post_init__(self) -> None:
        if min(self.seeds, default=-1) < 0:
            raise BadSettingError(f"seeds are {list(self.seeds)}: name whole numbers from 0")
        if min(self.epochs or (1,)) < 1:
            raise BadSettingError(
                f"epochs are {list(self.epochs or ())}: name whole numbers from 1, or none at all"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRun:
    """A table of the paper that is made by cutting rows of one network."""

    name: str
    title: str
    network: str
    accuracy: str
    """The published table whose row "baseline" holds the accuracy."""
    subject: Callable[..., Subject]
    training: int = 0
    """Epochs that the trained network itself needs where it is not there yet."""
    quick_training: int = 0
    """The same of a quick run."""

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of the table."""
        return rows_of(self.name)

    def plan(self, options: Options) -> str:
        """Return what will be run and about how long it takes here, if nothing is finished yet."""
        rows = [_told(row, options) for row in self.rows]
        each = sum(max(row.tuned, default=0) + sum(row.scratch) for row in rows)
        lesson = lesson_of(options)
        training = self.quick_training if options.quick else self.training
        epochs = (each * len(options.ways) + training) * len(options.seeds)
        seconds = epochs * seconds_per_image(self.network) * lesson
        return (
            f"{self.name}: {self.network}, rows {', '.join(row.name for row in rows)}; "
            f"{len(options.ways)} ways, seeds {', '.join(map(str, options.seeds))}; at most "
            f"{epochs} epochs of training on {lesson:,} images, {about(seconds)}, and the cuts "
            "themselves"
        )

    def run(self, work: Work, options: Options, earlier: Earlier = NOTHING) -> Report:
        """Return published beside ours, after running what is not finished yet."""
        rows = [_told(row, options) for row in self.rows]
        new: list[Point] = []
        notes, run = shrunk(options), set()
        for seed in options.seeds:
            name = named(self.network, seed)
            try:
                subject = self.subject(work, seed, quick=options.quick)
                told = told_of(work, subject)
            except (NotFinishedError, DataError) as error:
                if work.only_finished and earlier.telling(seed=seed):
                    continue  # a record can be read where its network is not
                if isinstance(error, DataError):
                    raise
                notes.append(f"{name}: {NOT_RUN}")
                continue
            run.add(name)
            notes.append(f"{name}: {subject.origin}; baseline {told['baseline']:.2f} %")
            earlier.refuse_another(told)
            stages = {
                (row.name, way): stage_of_row(work, subject, row, way)
                for row in rows
                for way in (WAYS if earlier.telling(seed=seed) else ())
            }
            earlier, gone = earlier.but_for_stale(told, ("row", "way"), stages)
            notes += gone
            cuts = (
                measure_row(work, subject, row, way, tuple(row.tuned), tuple(row.scratch))
                for row in rows
                for way in options.ways
            )
            new += [{**asdict(one), **told} for one in cuts if one.cut]
        points = earlier.beside(new, ("row", "way", "seed"), self._order)
        baselines = {point["seed"]: point["baseline"] for point in points}
        found = [Measured.of(point) for point in points]
        lines = Lines(found, baselines, tables()[self.accuracy].cell("baseline", "accuracy"))
        return Report(
            experiment=self.name,
            title=self.title,
            columns=tuple(WAYS.values()),
            lines=tuple(
                line
                for row, asked in zip(self.rows, rows, strict=True)
                for line in lines.of(row, asked)
            ),
            verdicts=() if options.quick else verdicts(self.name, self.rows, found, baselines),
            notes=(*notes, *earlier.notes(run)),
            measured=points,
            quick=options.quick,
        )

    def _order(self, point: Point) -> tuple[int, int, int]:
        row = place_in([row.name for row in self.rows], point["row"])
        return point["seed"], row, place_in(tuple(WAYS), point["way"])


def _told(row: Row, options: Options) -> Row:
    """Return the row with the epochs that are to be run, of what the row has at all."""

    def chosen(published: Mapping[int, Cell]) -> Mapping[int, Cell]:
        if not published or options.taught is None:
            return published
        return {n: published.get(n, EMPTY) for n in options.taught}

    scratch = chosen(row.scratch) if options.scratch else {}
    return replace(row, tuned=chosen(row.tuned), scratch=scratch)


def shrunk(options: Options) -> list[str]:
    """Return the note that a quick run must carry."""
    if not options.quick:
        return []
    epochs = ", ".join(map(str, options.taught or ())) or "no"
    return [
        f"QUICK: {models.QUICK_LESSON:,} images to learn from, {epochs} epochs of fine tuning "
        f"and from scratch, {models.QUICK_TEST:,} to test: the figures are no results"
    ]


def lesson_of(options: Options) -> int:
    """Return how many images one epoch holds."""
    return models.QUICK_LESSON if options.quick else _LESSON


def _vgg(name: str, title: str) -> TableRun:
    return TableRun(
        name=name,
        title=title,
        network="VGG-16",
        accuracy="vgg16-results",
        subject=models.vgg16,
    )


def _lenet(name: str, title: str) -> TableRun:
    return TableRun(
        name=name,
        title=title,
        network="LeNet",
        accuracy=name,
        subject=models.lenet,
        training=20,
        quick_training=models.QUICK_TRAINING,
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
            subject=models.resnet18,
            training=models.RESNET18_EPOCHS,
            quick_training=models.RESNET18_EPOCHS,
        ),
    )
}
