"""What the paper leaves open: how many images are enough, and how others choose channels."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import entrim
from experiments import models
from experiments.models import Subject
from experiments.paper.criteria import CRITERIA, NoCriterionError, Ranking
from experiments.paper.cutting import IMAGES, Lessons, cut_row, place_of
from experiments.paper.earlier import NOTHING, Earlier, Point, named, place_in
from experiments.paper.panels import (
    Panel,
    asked_for,
    at_hand,
    halved_resnet,
    last_of,
    lenet,
    within,
)
from experiments.paper.planning import about, seconds_per_image
from experiments.paper.published import tables
from experiments.paper.report import Line, Report
from experiments.paper.reproduce import Options, lesson_of, shrunk
from experiments.paper.rows import Row
from experiments.work import NotFinishedError, Work

COUNTS = (25, 50, 100, 250, 500, 1000, 2500, 10_000)
SELECTORS = ("entropic", "greedy", "lasso", "random")
_OLD = {"mode": "independent", "refit": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to cut every row."""

    name: str
    options: Callable[[Subject, Row], Mapping[str, Any]]
    images: int = IMAGES
    tuned: bool = False
    """Whether it is fine tuned too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Rows of several networks, each cut in many ways and tested, some of them fine tuned."""

    name: str
    title: str
    variants: tuple[Variant, ...]
    panels: tuple[Panel, ...]
    published: tuple[str, ...] = ()
    """Tables of other methods that are printed beside it."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The rows that are cut, which are the columns of the table."""
        return tuple(row.name for panel in self.panels for row in panel.rows)

    def plan(self, options: Options) -> str:
        """Return what will be run."""
        panels = asked_for(self.panels, options)
        rows = sum(len(panel.rows) for panel in panels)
        cuts = len(self.variants) * rows * len(options.seeds)
        tuned = sum(v.tuned for v in self.variants) * len(options.seeds)
        epochs = {
            p.network: tuned * len(p.rows) * max(p.taught(options), default=0) for p in panels
        }
        each = {name: seconds_per_image(name) for name, n in epochs.items() if n}
        seconds = lesson_of(options) * sum(epochs[name] * one for name, one in each.items())
        lessons = ", ".join(f"{n} of {name}" for name, n in epochs.items() if n)
        return (
            f"{self.name}: {', '.join(panel.network for panel in panels)}; "
            f"variants: {len(self.variants)}, rows: {rows}, seeds: "
            f"{', '.join(map(str, options.seeds))}; {cuts} cuts of seconds to minutes each; "
            f"epochs of fine tuning: {f'{lessons}, {about(seconds)}' if lessons else 'none'}"
        )

    def run(self, work: Work, options: Options, earlier: Earlier = NOTHING) -> Report:
        """Return the drops by variant and row, after running what is not finished yet."""
        new: list[Point] = []
        notes, run = shrunk(options), set()
        for panel, subject, told in at_hand(self.panels, work, options, earlier, notes):
            run.add(named(panel.network, subject.seed))
            stages = self._stages(work, subject, panel) if earlier.points else {}
            earlier, gone = earlier.but_for_stale(told, ("variant", "row"), stages)
            notes += gone
            for variant in self.variants:
                for row in panel.rows:
                    epochs = panel.taught(options) if variant.tuned else ()
                    point = self._point(work, subject, variant, row, epochs)
                    if "cut" in point or "cannot" in point:
                        new.append({**point, **told})
        found = _Found(self, earlier.beside(new, ("variant", "row", "seed"), self._order))
        notes += [*found.unknown(), *earlier.notes(run)]
        return Report(
            experiment=self.name,
            title=self.title,
            columns=self.columns,
            lines=(*found.lines(options), *self._others()),
            notes=tuple(notes),
            measured=found.measured,
            quick=options.quick,
        )

    def _order(self, point: Point) -> tuple[int, int, int]:
        variant = place_in([variant.name for variant in self.variants], point["variant"])
        return place_in(self.columns, point["row"]), point["seed"], variant

    def _stages(self, work: Work, subject: Subject, panel: Panel) -> dict[tuple[str, str], str]:
        """Return which stage every variant of every row is today."""
        found = {}
        for variant in self.variants:
            for row in panel.rows:
                try:
                    options = variant.options(subject, row)
                except NoCriterionError:
                    continue
                name = self._named(subject, variant, row)
                place = place_of(work, subject, name, options, variant.images)
                found[variant.name, row.name] = place.name
        return found

    def _named(self, subject: Subject, variant: Variant, row: Row) -> str:
        return f"{subject.network} seed {subject.seed} {row.name} {self.name} {variant.name}"

    def _point(
        self,
        work: Work,
        subject: Subject,
        variant: Variant,
        row: Row,
        epochs: tuple[int, ...],
    ) -> dict[str, Any]:
        """Return one cut and what teaching it gave, as far as it was run."""
        told = {"variant": variant.name, "row": row.name, "seed": subject.seed}
        if variant.images > len(subject.lesson):
            return told
        name = self._named(subject, variant, row)
        try:
            options = variant.options(subject, row)
            cut, place = cut_row(work, subject, row, name, options, variant.images)
        except NoCriterionError as error:
            return {**told, "cannot": str(error)}
        except NotFinishedError:
            return told
        if not epochs:
            return {**told, "cut": cut}
        small = entrim.load(subject.model, place)
        lessons = Lessons(work, subject)
        tuned = lessons.after(f"{name} fine tuning", small, subject.fine_tuning, epochs)
        return {**told, "cut": cut, "tuned": tuned}

    def _others(self) -> list[Line]:
        """Return what other methods have published, on other networks, with fine tuning."""
        return [
            Line(
                row=f"{method.replace('ours', 'the paper')}, {table.network}, as printed",
                quantity=column,
                paper=table.cell(method, column),
                ours=dict.fromkeys(self.columns, ()),
                elsewhere=True,
            )
            for table in map(tables().__getitem__, self.published)
            for method in table.rows
            for column in table.columns
        ]


@dataclass(frozen=True, slots=True)
class _Found:
    """What a study has measured, now and earlier."""

    study: Study
    measured: Sequence[Point]

    def unknown(self) -> list[str]:
        """Return a note on points of an earlier record that the table has no place for."""
        variants = {variant.name for variant in self.study.variants}
        lost = [
            one
            for one in self.measured
            if one["variant"] not in variants or one["row"] not in self.study.columns
        ]
        return [f"points of rows or variants that are unknown here: {len(lost)}"] if lost else []

    def lines(self, options: Options) -> list[Line]:
        """Return the drop of every variant, raw and after fine tuning."""
        asked = {n for panel in self.study.panels for n in panel.taught(options)}
        epochs = sorted(asked.union(*(one.get("tuned", ()) for one in self.measured)))
        found = []
        for variant in self.study.variants:
            found.append(self._line(variant, "raw", lambda m: m["cut"]["accuracy"]))
            for n in epochs if variant.tuned else ():
                text = f"fine tuned {n} epoch{'s' * (n > 1)}"
                found.append(self._line(variant, text, lambda m, n=n: m.get("tuned", {}).get(n)))
        return found

    def _line(
        self, variant: Variant, text: str, get: Callable[[Mapping[str, Any]], float | None]
    ) -> Line:
        ours: dict[str, Sequence[float | str]] = {}
        for column in self.study.columns:
            values: list[float | str] = []
            for one in self.measured:
                if (one["variant"], one["row"]) != (variant.name, column):
                    continue
                if "cannot" in one:
                    values.append(one["cannot"])
                elif (accuracy := get(one)) is not None:
                    values.append(one["baseline"] - accuracy)
            ours[column] = values
        seeds = len({one["seed"] for one in self.measured})
        return Line(row=variant.name, quantity=f"drop, {text}", ours=ours, seeds=seeds)


def _at_widths(row: Row) -> dict[str, Any]:
    return {"layers": list(row.eps), "widths": dict(row.widths)}


def _selected(selector: str, **more: Any) -> Callable[[Subject, Row], dict[str, Any]]:
    return lambda _, row: {**_at_widths(row), "selector": selector, **more}


def _ranked(criterion: str, **more: Any) -> Callable[[Subject, Row], dict[str, Any]]:
    def options(subject: Subject, row: Row) -> dict[str, Any]:
        ranking = Ranking(criterion, subject, tuple(row.eps))
        return {**_at_widths(row), "scores": ranking, **more}

    return options


def _variants() -> tuple[Variant, ...]:
    """Return how others choose, with the old weights as they do and rebuilt, and how we do."""
    old = "old weights"
    kept = [
        Variant(name=f"random, {old}", options=_selected("random", **_OLD), tuned=True),
        *(
            Variant(name=f"{name}, {old}", options=_ranked(name, **_OLD), tuned=True)
            for name in CRITERIA
        ),
    ]
    rebuilt = [Variant(name=f"{name}, rebuilt", options=_ranked(name)) for name in CRITERIA]
    ours = [
        Variant(name=f"{name}, rebuilt", options=_selected(name), tuned=True) for name in SELECTORS
    ]
    ours.append(
        Variant(name="entrim, within the same parameters and MACs", options=within, tuned=True)
    )
    return (*kept, *rebuilt, *ours)


STUDIES = {
    study.name: study
    for study in (
        Study(
            name="images",
            title="how many unlabelled images are enough, at the same widths",
            variants=tuple(
                Variant(name=f"{count:,} images", options=_selected("greedy"), images=count)
                for count in COUNTS
            ),
            panels=(lenet(epochs=0), halved_resnet("ResNet-56", models.resnet56)),
        ),
        Study(
            name="comparison",
            title="channels chosen in other ways, at the same widths",
            variants=_variants(),
            panels=(
                lenet(epochs=3),
                halved_resnet("ResNet-20", models.resnet20),
                last_of("VGG-16", "vgg16-full", models.vgg16),
                last_of("ResNet18", "resnet18", models.resnet18),
            ),
            published=("vgg16-comparison", "resnet18-comparison"),
        ),
    )
}
