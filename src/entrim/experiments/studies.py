"""What the paper leaves open, on LeNet: how many images are enough, and other ways to choose."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from entrim.experiments import subjects
from entrim.experiments.cutting import IMAGES, baseline, cut_row, options_of
from entrim.experiments.published import tables
from entrim.experiments.report import Line, Report
from entrim.experiments.reproduce import Options, shrunk
from entrim.experiments.rows import Row, rows_of
from entrim.experiments.subjects import Subject
from entrim.experiments.work import NotFinishedError, Work

COUNTS = (25, 50, 100, 250, 500, 1000, 2500, 10_000)
SELECTORS = ("entropic", "greedy", "lasso", "magnitude", "random")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to cut every row of the LeNet tables."""

    name: str
    options: Callable[[Subject, Row], Mapping[str, Any]]
    images: int = IMAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The rows of the LeNet tables, each cut in many ways and tested, nothing trained."""

    name: str
    title: str
    variants: tuple[Variant, ...]
    tables: tuple[str, ...] = ("lenet-conv", "lenet-full")
    """Whose rows are cut."""
    published: tuple[str, ...] = ()
    """Tables of other methods that are printed beside it."""
    subject: Callable[..., Subject] = subjects.lenet

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows that are cut."""
        return tuple(row for table in self.tables for row in rows_of(table))

    def plan(self, options: Options) -> str:
        """Return what will be run."""
        cuts = len(self.variants) * len(self.rows) * len(options.seeds)
        return (
            f"{self.name}: LeNet, {len(self.variants)} variants of {len(self.rows)} rows, seeds "
            f"{', '.join(map(str, options.seeds))}: {cuts} cuts of some seconds each, nothing "
            "trained but LeNet itself where it is not there yet"
        )

    def run(self, work: Work, options: Options) -> Report:
        """Return the drops by variant and row, after running what is not finished yet."""
        names = [row.name for row in self.rows]
        drops = {v.name: {name: [] for name in names} for v in self.variants}
        notes, measured = shrunk(options), []
        for seed in options.seeds:
            try:
                subject = self.subject(work, seed, quick=options.quick)
                base = baseline(work, subject)
            except NotFinishedError:
                notes.append(f"seed {seed}: not run")
                continue
            notes.append(f"seed {seed}: {subject.origin}; baseline {base:.2f} %")
            for variant in self.variants:
                for row in self.rows:
                    point = self._point(work, subject, variant, row)
                    if point is None:
                        continue
                    drops[variant.name][row.name].append(base - point["accuracy"])
                    told = {"variant": variant.name, "row": row.name, "seed": seed}
                    measured.append({**told, "baseline": base, "cut": point})
        lines = [Line(row=name, quantity="drop, raw", ours=ours) for name, ours in drops.items()]
        return Report(
            experiment=self.name,
            title=self.title,
            columns=tuple(names),
            lines=(*lines, *self._others(names)),
            notes=tuple(notes),
            measured=measured,
        )

    def _point(
        self, work: Work, subject: Subject, variant: Variant, row: Row
    ) -> dict[str, Any] | None:
        """Return one cut, None where it was not run."""
        if variant.images > len(subject.lesson):
            return None
        name = f"{subject.network} seed {subject.seed} {row.name} {self.name} {variant.name}"
        try:
            told = variant.options(subject, row)
            return cut_row(work, subject, row, name, told, variant.images)[0]
        except NotFinishedError:
            return None

    def _others(self, names: list[str]) -> list[Line]:
        """Return what other methods have published, on other networks, with fine tuning."""
        return [
            Line(
                row=f"{method}, {table.network}, as printed",
                quantity=column,
                paper=table.cell(method, column),
                ours=dict.fromkeys(names, ()),
            )
            for table in map(tables().__getitem__, self.published)
            for method in table.rows
            for column in ("baseline accuracy", "accuracy", "sparsity")
        ]


def _default(subject: Subject, row: Row) -> dict[str, Any]:
    return options_of(subject, row, "default")


def _selected(selector: str) -> Callable[[Subject, Row], dict[str, Any]]:
    def options(_: Subject, row: Row) -> dict[str, Any]:
        return {"layers": list(row.eps), "widths": dict(row.widths), "selector": selector}

    return options


STUDIES = {
    study.name: study
    for study in (
        Study(
            name="images",
            title="how many unlabelled images are enough, by our default",
            variants=tuple(
                Variant(name=f"{count:,} images", options=_default, images=count)
                for count in COUNTS
            ),
        ),
        Study(
            name="comparison",
            title="channels chosen in other ways, at the same widths and with the same rebuild",
            variants=(
                *(Variant(name=f"by {name}", options=_selected(name)) for name in SELECTORS),
                Variant(name="our default, within the same parameters", options=_default),
            ),
            published=("vgg16-comparison", "resnet18-comparison"),
        ),
    )
}
