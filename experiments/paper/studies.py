"""Studies beyond the paper: the number of images, and channels selected by other criteria."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import entrim
from entrim import Budget, EntropicSelector, Reconstruction, Widths
from entrim.errors import BadSettingError
from experiments import models
from experiments.models import TrainedModel
from experiments.paper.criteria import CRITERIA, CriterionScores, NoCriterionError
from experiments.paper.panels import (
    Panel,
    half_resnet_panel,
    last_row_panel,
    lenet_panel,
    load_models,
    requested_panels,
    same_size_options,
    stream_panel,
    whole_panel,
)
from experiments.paper.pruning import IMAGES, SparsifyOptions, Training, prune_row, stage_path
from experiments.paper.records import NO_RECORD, Point, PreviousRecord, label, position_in
from experiments.paper.report import Line, Report
from experiments.paper.reproduce import Options, images_per_epoch, quick_notes
from experiments.paper.rows import Row
from experiments.paper.timing import describe_duration, measure_seconds_per_image
from experiments.work import NotFinishedError, Work

COUNTS = (25, 50, 100, 250, 500, 1000, 2500, 10_000)
SELECTORS = ("entropic", "greedy", "lasso", "random")
_STAGES = ("collect", "select", "reconstruct")
_ORIGINAL_WEIGHTS: dict[str, Any] = {"reconstruction": None}


_SOLUTION: dict[str, Any] = {"reconstruction": Reconstruction(weights="solution")}
_STREAMS = {"conv1": 64, "layer2.0.conv2": 128, "layer3.0.conv2": 256}
"""The channels of the residual stream in the first three stages of ResNet18, by group."""
_WHOLE: dict[str, Budget | Widths] = {
    "ResNet18, half of all channels": Widths(0.5),
    "ResNet18, a quarter of all channels": Widths(0.25),
    "VGG-16, 36 % of the parameters": Budget(params=0.36),
}
"""Targets for all groups of a network, including the residual stream, by row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to prune every row."""

    name: str
    options: Callable[[TrainedModel, Row], SparsifyOptions]
    images: int = IMAGES
    tuned: bool = False
    """Whether the pruned network is also fine tuned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Rows of several networks, each pruned in many ways and tested, some of them fine tuned."""

    name: str
    title: str
    variants: tuple[Variant, ...]
    panels: tuple[Panel, ...]
    seconds: bool = False
    """Whether the time of collecting, selecting and reconstructing is shown too."""
    published: Mapping[str, str] = field(default_factory=dict)
    """What others published, by row."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The pruned rows, which are the columns of the table."""
        return tuple(row.name for panel in self.panels for row in panel.rows)

    def plan(self, options: Options) -> str:
        """Return what will be run."""
        panels = requested_panels(self.panels, options)
        rows = sum(len(panel.rows) for panel in panels)
        variants = self._requested(options)
        count = len(variants) * rows * len(options.seeds)
        tuned = sum(v.tuned for v in variants) * len(options.seeds)
        epochs = {
            p.network: tuned * len(p.rows) * max(p.tuning_epochs(options), default=0)
            for p in panels
        }
        each = {name: measure_seconds_per_image(name) for name, n in epochs.items() if n}
        seconds = images_per_epoch(options) * sum(epochs[name] * one for name, one in each.items())
        trainings = ", ".join(f"{n} of {name}" for name, n in epochs.items() if n)
        return (
            f"{self.name}: {', '.join(panel.network for panel in panels)}; "
            f"variants: {len(variants)}, rows: {rows}, seeds: "
            f"{', '.join(map(str, options.seeds))}; {count} prunings of seconds to minutes each; "
            f"epochs of fine tuning: {trainings or 'none'}"
            + (f", {describe_duration(seconds)}" if trainings else "")
        )

    def run(self, work: Work, options: Options, previous: PreviousRecord = NO_RECORD) -> Report:
        """Return the drops by variant and row, after running what is not finished yet."""
        new: list[Point] = []
        notes, run = quick_notes(options), set()
        for panel, trained, described in load_models(self.panels, work, options, previous, notes):
            run.add(label(panel.network, trained.seed))
            stages = self._stages(work, trained, panel) if previous.points else {}
            previous, stale = previous.without_stale(described, ("variant", "row"), stages)
            notes += stale
            for variant in self._requested(options):
                for row in panel.rows:
                    epochs = panel.tuning_epochs(options) if variant.tuned else ()
                    point = self._point(work, trained, variant, row, epochs)
                    if "pruned" in point or "cannot" in point:
                        new.append({**point, **described})
        found = _Results(self, previous.merge(new, ("variant", "row", "seed"), self._order))
        notes += [*found.unknown_notes(), *previous.notes(run)]
        return Report(
            experiment=self.name,
            title=self.title,
            columns=self.columns,
            lines=(*found.lines(options), *self._published_lines()),
            notes=tuple(notes),
            measured=found.measured,
            quick=options.quick,
        )

    def _requested(self, options: Options) -> list[Variant]:
        """Return the variants to run."""
        if options.variants is None:
            return list(self.variants)
        for pattern in options.variants:
            if not any(fnmatchcase(variant.name, pattern) for variant in self.variants):
                raise BadSettingError(
                    f"{self.name} has no variant {pattern!r}: name some of "
                    f"{', '.join(variant.name for variant in self.variants)}"
                )
        return [v for v in self.variants if any(fnmatchcase(v.name, p) for p in options.variants)]

    def _order(self, point: Point) -> tuple[int, int, int]:
        variant = position_in([variant.name for variant in self.variants], point["variant"])
        return position_in(self.columns, point["row"]), point["seed"], variant

    def _stages(
        self, work: Work, trained: TrainedModel, panel: Panel
    ) -> dict[tuple[str, str], str]:
        """Return today's stage of every variant of every row."""
        found = {}
        for variant in self.variants:
            for row in panel.rows:
                try:
                    options = variant.options(trained, row)
                except NoCriterionError:
                    continue
                name = self._stage_name(trained, variant, row)
                path = stage_path(work, trained, name, options, variant.images)
                found[variant.name, row.name] = path.name
        return found

    def _stage_name(self, trained: TrainedModel, variant: Variant, row: Row) -> str:
        return f"{trained.network} seed {trained.seed} {row.name} {self.name} {variant.name}"

    def _point(
        self,
        work: Work,
        trained: TrainedModel,
        variant: Variant,
        row: Row,
        epochs: tuple[int, ...],
    ) -> dict[str, Any]:
        """Return one pruned network and its fine tuning, as far as it was run."""
        point: dict[str, Any] = {"variant": variant.name, "row": row.name, "seed": trained.seed}
        if variant.images > len(trained.train_set):
            return point
        name = self._stage_name(trained, variant, row)
        try:
            options = variant.options(trained, row)
            pruned, path = prune_row(work, trained, row, name, options, variant.images)
        except NoCriterionError as error:
            return {**point, "cannot": str(error)}
        except NotFinishedError:
            return point
        if not epochs:
            return {**point, "pruned": pruned}
        small = entrim.load(trained.model, path)
        training = Training(work, trained)
        tuned = training.accuracies(f"{name} fine tuning", small, trained.fine_tuning, epochs)
        return {**point, "pruned": pruned, "tuned": tuned}

    def _published_lines(self) -> list[Line]:
        """Return what others published, if anything."""
        if not self.published:
            return []
        shown = {column: [self.published.get(column, "-")] for column in self.columns}
        return [Line(row="as published by others", quantity="drop, raw", ours=shown)]


@dataclass(frozen=True, slots=True)
class _Results:
    """New and earlier results of a study."""

    study: Study
    measured: Sequence[Point]

    def unknown_notes(self) -> list[str]:
        """Return a note on points of an earlier record that are not in the table."""
        variants = {variant.name for variant in self.study.variants}
        lost = [
            one
            for one in self.measured
            if one["variant"] not in variants or one["row"] not in self.study.columns
        ]
        return [f"points of rows or variants that are unknown here: {len(lost)}"] if lost else []

    def lines(self, options: Options) -> list[Line]:
        """Return the drop of every variant, raw and after fine tuning."""
        requested = {n for panel in self.study.panels for n in panel.tuning_epochs(options)}
        epochs = sorted(requested.union(*(one.get("tuned", ()) for one in self.measured)))
        found = []
        for variant in self.study.variants:
            found.append(self._drop(variant, "raw", lambda p: p["pruned"]["accuracy"]))
            for n in epochs if variant.tuned else ():
                text = f"fine tuned {n} epoch{'s' * (n > 1)}"
                found.append(self._drop(variant, text, lambda p, n=n: p.get("tuned", {}).get(n)))
            if self.study.seconds:
                found.append(self._line(variant, "seconds", _seconds))
        return found

    def _drop(
        self, variant: Variant, text: str, get: Callable[[Mapping[str, Any]], float | None]
    ) -> Line:
        """Return the drop from the baseline of an accuracy."""

        def drop(point: Mapping[str, Any]) -> float | None:
            accuracy = get(point)
            return None if accuracy is None else point["baseline"] - accuracy

        return self._line(variant, f"drop, {text}", drop)

    def _line(
        self, variant: Variant, quantity: str, get: Callable[[Mapping[str, Any]], float | None]
    ) -> Line:
        ours: dict[str, Sequence[float | str]] = {}
        for column in self.study.columns:
            values: list[float | str] = []
            for one in self.measured:
                if (one["variant"], one["row"]) != (variant.name, column):
                    continue
                if "cannot" in one:
                    values.append(one["cannot"])
                elif (value := get(one)) is not None:
                    values.append(value)
            ours[column] = values
        seeds = len({one["seed"] for one in self.measured})
        return Line(row=variant.name, quantity=quantity, ours=ours, seeds=seeds)


def _seconds(point: Mapping[str, Any]) -> float:
    """Return the time of the stages that depend on the number of images and the selector."""
    return sum(point["pruned"]["seconds"].get(stage, 0.0) for stage in _STAGES)


def _at_widths(row: Row) -> dict[str, Any]:
    return {"include": list(row.eps), "budget": Widths(dict(row.widths))}


def _by_selector(selector: str, **more: Any) -> Callable[[TrainedModel, Row], dict[str, Any]]:
    return lambda _, row: {**_at_widths(row), "selector": selector, **more}


def _by_criterion(criterion: str, **more: Any) -> Callable[[TrainedModel, Row], dict[str, Any]]:
    def options(trained: TrainedModel, row: Row) -> dict[str, Any]:
        scores = CriterionScores(criterion, trained, tuple(row.eps))
        return {**_at_widths(row), "selector": scores, **more}

    return options


def _by_coupling(coupling: str, **more: Any) -> Callable[[TrainedModel, Row], dict[str, Any]]:
    selector = EntropicSelector(coupling=coupling)
    return lambda _, row: {**_at_widths(row), "selector": selector, **more}


def _label_free(_: TrainedModel, row: Row) -> dict[str, Any]:
    return {"budget": _WHOLE[row.name]}


def _variants() -> tuple[Variant, ...]:
    """Return the criteria of others with original and with reconstructed weights, and ours."""
    original = {"random": _by_selector("random", **_ORIGINAL_WEIGHTS)}
    original |= {name: _by_criterion(name, **_ORIGINAL_WEIGHTS) for name in CRITERIA}
    ours = {f"{name}, rebuilt": _by_selector(name) for name in SELECTORS}
    ours["entrim, within the same parameters and MACs"] = same_size_options
    return (
        *(Variant(name=f"{n}, old weights", options=o, tuned=True) for n, o in original.items()),
        *(Variant(name=f"{name}, rebuilt", options=_by_criterion(name)) for name in CRITERIA),
        *(Variant(name=name, options=options, tuned=True) for name, options in ours.items()),
    )


STUDIES = {
    study.name: study
    for study in (
        Study(
            name="images",
            title="the number of unlabeled images, at the same widths",
            variants=tuple(
                Variant(
                    name=f"{count:,} images{text}", options=_by_selector(selector), images=count
                )
                for selector, text in (("greedy", ""), ("entropic", ", entropic"))
                for count in COUNTS
            ),
            panels=(
                lenet_panel(epochs=0),
                half_resnet_panel("ResNet-56", models.resnet56),
                last_row_panel("VGG-16", "vgg16-full", models.vgg16),
                last_row_panel("ResNet18", "resnet18", models.resnet18),
            ),
            seconds=True,
        ),
        Study(
            name="coupling",
            title="several consumers of one group: one w for all, or the largest w",
            variants=tuple(
                Variant(name=f"{coupling}, {text}", options=_by_coupling(coupling, **weights))
                for text, weights in (("entropic weights", _SOLUTION), ("rebuilt", {}))
                for coupling in ("joint", "max")
            ),
            panels=(stream_panel("ResNet18", models.resnet18, _STREAMS),),
        ),
        Study(
            name="labelfree",
            title="published results without labels and without fine tuning",
            variants=tuple(
                Variant(name=f"entrim, {count} images", options=_label_free, images=count)
                for count in (128, IMAGES)
            ),
            panels=(
                whole_panel(
                    "ResNet18",
                    models.resnet18,
                    ("half of all channels", "a quarter of all channels"),
                ),
                whole_panel("VGG-16", models.vgg16, ("36 % of the parameters",)),
            ),
            published={
                "ResNet18, half of all channels": "23 (folding, repaired)",
                "ResNet18, a quarter of all channels": "84.8 % left (GRAIL, second hand)",
                "VGG-16, 36 % of the parameters": "0.54 (neuron merging)",
            },
        ),
        Study(
            name="comparison",
            title="channels chosen in other ways, at the same widths",
            variants=_variants(),
            panels=(
                lenet_panel(epochs=3),
                half_resnet_panel("ResNet-20", models.resnet20),
                last_row_panel("VGG-16", "vgg16-full", models.vgg16),
                last_row_panel("ResNet18", "resnet18", models.resnet18),
            ),
        ),
    )
}
