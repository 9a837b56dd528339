"""The paper's tables, run again: cut, test, fine tune, and set beside what was printed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from entrim.errors import BadSettingError
from entrim.experiments import subjects
from entrim.experiments.bars import verdicts
from entrim.experiments.cutting import WAYS, Measured, baseline, measure_row
from entrim.experiments.earlier import NOTHING, Earlier, Point
from entrim.experiments.planning import about, seconds_per_image
from entrim.experiments.published import Cell, tables
from entrim.experiments.report import Line, Report
from entrim.experiments.rows import EMPTY, Row, rows_of
from entrim.experiments.subjects import Subject
from entrim.experiments.work import NotFinishedError, Work

QUICK_EPOCHS = 1
_DECIMALS = {"parameters": 0, "FLOPs": 0}
_QUANTITIES = {"FLOPs": "FLOPs; ours MACs", "size": "size, MB", "speedup": "speedup, batch of 4"}
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
            try:
                subject = self.subject(work, seed, quick=options.quick)
                base = baseline(work, subject)
            except NotFinishedError:
                notes.append(f"seed {seed}: not run")
                continue
            notes.append(f"seed {seed}: {subject.origin}; baseline {base:.2f} %")
            run.add(seed)
            earlier.refuse_another(base, seed=seed)
            cuts = (
                measure_row(work, subject, row, way, tuple(row.tuned), tuple(row.scratch))
                for row in rows
                for way in options.ways
            )
            new += [{**asdict(one), "baseline": base} for one in cuts if one.cut]
        points = earlier.beside(new, ("row", "way", "seed"))
        notes += earlier.notes(lambda p: f"seed {p['seed']}", {f"seed {seed}" for seed in run})
        baselines = {point["seed"]: point["baseline"] for point in points}
        found = [Measured.of(point) for point in points]
        lines = _Lines(found, baselines, tables()[self.accuracy].cell("baseline", "accuracy"))
        return Report(
            experiment=self.name,
            title=self.title,
            columns=tuple(WAYS.values()),
            lines=tuple(line for row in self.rows for line in lines.of(row, options)),
            verdicts=() if options.quick else verdicts(self.name, self.rows, found, baselines),
            notes=tuple(notes),
            measured=points,
            quick=options.quick,
        )


@dataclass(frozen=True, slots=True)
class _Lines:
    """The lines of a table, from what was measured."""

    found: Sequence[Measured]
    baselines: dict[int, float]
    printed: Cell
    """The paper's baseline."""

    def of(self, row: Row, options: Options) -> list[Line]:
        """Return the lines of one row, published epochs and those that were asked for."""
        lines = [self._widths(row)]
        for name, cell in row.cells.items():
            if name == "accuracy":
                lines += self._accuracy(row, "raw", cell, lambda m: (m.cut or {}).get("accuracy"))
                continue
            values = self._values(row, lambda m, name=name: _figure(m, name))
            lines.append(
                Line(
                    row=row.name,
                    quantity=_QUANTITIES.get(name, name),
                    paper=cell,
                    arithmetic=row.arithmetic.get(name, EMPTY),
                    ours=values,
                    decimals=_DECIMALS.get(name, 2),
                )
            )
        told = _told(row, options)
        for kind, text in (("tuned", "fine tuned"), ("scratch", "from scratch")):
            printed = getattr(row, kind)
            for epochs in sorted({*printed, *getattr(told, kind)}):
                get = lambda m, kind=kind, epochs=epochs: getattr(m, kind).get(epochs)  # noqa: E731
                name = f"{text} {epochs} epoch{'s' * (epochs > 1)}"
                lines += self._accuracy(row, name, printed.get(epochs, EMPTY), get)
        return lines

    def _values(
        self, row: Row, get: Callable[[Measured], float | str | None]
    ) -> dict[str, list[float | str]]:
        values = {
            way: [get(m) for m in self.found if m.row == row.name and m.way == way] for way in WAYS
        }
        return {
            way: [v if isinstance(v, str) else float(v) for v in some if v is not None]
            for way, some in values.items()
        }

    def _widths(self, row: Row) -> Line:
        paper = "-".join(map(str, row.widths.values()))

        def kept(measured: Measured) -> str | None:
            if measured.cut is None:
                return None
            return "-".join(str(measured.cut["widths"][group]) for group in row.widths)

        values = self._values(row, kept)
        return Line(row=row.name, quantity="channels kept", paper=Cell(paper), ours=values)

    def _accuracy(
        self, row: Row, name: str, cell: Cell, get: Callable[[Measured], float | None]
    ) -> list[Line]:
        """Return the accuracy and the drop from the own baseline."""
        base = self.printed.value
        drop = EMPTY
        if base is not None and cell.value is not None:
            drop = Cell(f"{base - cell.value:.2f}")

        def lost(measured: Measured) -> float | None:
            value = get(measured)
            return None if value is None else self.baselines[measured.seed] - value

        return [
            Line(
                row=row.name, quantity=f"accuracy, {name}", paper=cell, ours=self._values(row, get)
            ),
            Line(row=row.name, quantity=f"drop, {name}", paper=drop, ours=self._values(row, lost)),
        ]


def _figure(measured: Measured, name: str) -> float | None:
    """Return what the cut alone gave, in the unit of the paper."""
    if name == "speedup":
        return None if measured.timing is None else measured.timing["speedup"]
    if measured.cut is None:
        return None
    return measured.cut["bytes"] / 1e6 if name == "size" else float(measured.cut[name])


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
        f"QUICK: {subjects.QUICK_LESSON:,} images to learn from, {epochs} epochs of fine tuning "
        f"and from scratch, {subjects.QUICK_TEST:,} to test: the figures are no results"
    ]


def lesson_of(options: Options) -> int:
    """Return how many images one epoch holds."""
    return subjects.QUICK_LESSON if options.quick else _LESSON


def _vgg(name: str, title: str) -> TableRun:
    return TableRun(
        name=name,
        title=title,
        network="VGG-16",
        accuracy="vgg16-results",
        subject=subjects.vgg16,
    )


def _lenet(name: str, title: str) -> TableRun:
    return TableRun(
        name=name,
        title=title,
        network="LeNet",
        accuracy=name,
        subject=subjects.lenet,
        training=20,
        quick_training=subjects.QUICK_TRAINING,
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
            subject=subjects.resnet18,
            training=subjects.RESNET18_EPOCHS,
            quick_training=subjects.RESNET18_EPOCHS,
        ),
    )
}
