"""The result of a run: the pruned network, its plan and its record; saved, loaded, scored."""

import json
import math
import os
import platform
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, SupportsFloat

import torch
from torch import nn

from entrim.allocation.allocate import AllocationPoint, SelectedPoint
from entrim.calibration.collect import LayerStatistics
from entrim.calibration.data import CalibrationData, Images, read_images
from entrim.config import BATCH_SIZE, SIZES, Budget, Target
from entrim.errors import BadImagesError, BadSettingError, BudgetWarning, LatencyWarning, LoadError
from entrim.graph.channel_graph import ChannelGraph, Group
from entrim.graph.eager import (
    ExampleInputs,
    call,
    copy_without_hooks,
    isolate_random_state,
    leaves,
    samples,
    unwrap,
)
from entrim.metrics import compare as compare_outputs
from entrim.metrics import holdout_record, output_kinds
from entrim.records import GroupRecord, Record, Score, Size, TradeOff
from entrim.report.comparison import RunComparison
from entrim.report.page import write_page
from entrim.report.plot import Chart, plot
from entrim.report.report_data import ReportData, read
from entrim.report.summary import Summary
from entrim.selection.base import ChannelSelection, GroupTarget
from entrim.storage import model_folder
from entrim.storage.checkpoint import VERSIONS, fingerprint
from entrim.surgery.measure import measure
from entrim.surgery.plan import Plan
from entrim.surgery.prune import SourceModel, values_of

MAX_POINTS = 99
"""Maximum number of points of a path in a record, in addition to the selected one."""

if TYPE_CHECKING:
    Metric = Callable[[nn.Module], SupportsFloat]
else:
    Metric = object  # other types raise an error of entrim, with a remedy


STALE = "the network was changed after it was pruned: refresh(images) measures it again"
"""The note in the record of a network whose figures are no longer valid."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SparsifyResult:
    """A pruned network, the plan that produces it, and the record of the run.

    `print(result.summary())` shows the sizes before and after, the figures on unseen images and the
    next steps; a notebook shows them for `result`.

    Attributes
    ----------
    model : nn.Module
        The pruned network.
    plan : Plan
        The kept channels and new weights; `apply_plan` produces the same network from it.
    record : Record
        Everything that was decided and measured, as plain data.
    original : nn.Module
        The network that was passed in, unchanged.
    fitting_images, holdout_images : CalibrationData or None
        The images that were used for pruning, and the unseen images of `record.holdout`. None for a
        result that was loaded, and for images that were stored on disk.
    """

    model: nn.Module
    plan: Plan
    record: Record
    original: nn.Module
    fitting_images: CalibrationData | None = None
    holdout_images: CalibrationData | None = None

    def __repr__(self) -> str:
        record, unseen = self.valid_record(), "not measured on unseen images"
        if record.holdout is not None and (figures := record.holdout.figures()):
            name, (value, _, _) = next(iter(figures.items()))
            unseen = f"{name} {value} on {record.holdout.images} unseen images"
        before, after = record.before, record.after
        sizes = (
            f"{after.params / max(before.params, 1):.0%} of the parameters, "
            f"{after.macs / max(before.macs, 1):.0%} of the MACs"
        )
        return f"<SparsifyResult of {record.model}: {sizes}; {unseen}>"

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def summary(self) -> Summary:
        """Return sizes, latency, figures on unseen images and next steps as a table.

        Examples
        --------
        >>> import torch, entrim
        >>> _ = torch.manual_seed(0)
        >>> nn = torch.nn
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> small = entrim.sparsify(net, torch.randn(200, 4), entrim.Widths({"0": 3}))
        >>> print(*str(small.summary()).splitlines()[3].split())
        parameters 67 27 2.48×
        """
        return Summary.of(self._report_data())

    def report(self, file: str | os.PathLike[str]) -> Path:
        """Write the report of the run as one self-contained HTML page, and return the file."""
        return write_page(self._report_data(), Path(file))

    def plot(self, name: str = "network") -> Chart:
        """Return a chart, which a notebook shows and `save` writes as SVG.

        Parameters
        ----------
        name : {"network", "params", "macs", "bytes"}, default "network"
            The widths of all layers before and after, or the trade-off between a size and the
            predicted divergence.
        """
        return plot(self._report_data(), name)

    def _report_data(self) -> ReportData:
        source = SourceModel.of(self.model)
        tensors = {} if source is None else source.tensors
        return ReportData.of(Path(), self.valid_record(), tensors, ())

    def valid_record(self) -> Record:
        """Return the record without the figures that were measured on other weights.

        They are outdated if the network was trained, or changed otherwise, after it was pruned.
        """
        record, now_pruned = self.record, fingerprint(values_of(self.model).values())
        if record.pruned in (None, now_pruned):
            return record
        return replace(
            record,
            layers=(),
            error=None,
            holdout=None,
            score=None,
            pruned=now_pruned,
            notes=(*(note for note in record.notes if note != STALE), STALE),
        )

    def refresh(self, images: Images | None = None) -> "SparsifyResult":
        """Measure sizes, latency, agreement and error again, for a network that was trained.

        Parameters
        ----------
        images : Tensor or iterable, optional
            Images that were used neither for pruning nor for training. By default the hold-out
            images of the run. Images that the weights were fitted on are left out, if they are
            known.

        Returns
        -------
        SparsifyResult
            The same network with a new record.

        Raises
        ------
        BadImagesError
            If no images are passed and the result has none, or all were used for fitting.

        Examples
        --------
        >>> import torch, entrim
        >>> _ = torch.manual_seed(0)
        >>> nn = torch.nn
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> small = entrim.sparsify(net, torch.randn(200, 4), entrim.Widths({"0": 3}))
        >>> with torch.no_grad():
        ...     _ = small.model[0].weight.mul_(1.1)  # stands for a training
        >>> small.refresh(torch.randn(100, 4)).record.holdout.images
        100
        """
        unseen = self._unseen_images(images)
        kinds = self.record.settings.get("calibration", {}).get("outputs", "auto")
        first = unseen.batch(slice(0, self.record.before.batch))
        model, original = (copy_without_hooks(one).eval() for one in (self.model, self.original))
        with torch.no_grad(), isolate_random_state():
            known = output_kinds(leaves(call(original, first)), samples(first), kinds)
        found = compare_outputs(model, original, unseen.batches(BATCH_SIZE), known)
        record = self.valid_record()
        holdout = holdout_record(
            found, None, recognized=kinds == "auto", selection_images=0, guarantee=None
        )
        record = replace(
            record,
            before=size_record(original, first),
            after=size_record(model, first),
            error=None,
            holdout=holdout,
            holdout_digests=tuple({*record.holdout_digests, *unseen.digests()}),
            notes=tuple(note for note in record.notes if note != STALE),
            pruned=fingerprint(values_of(self.model).values()),
        )
        return replace(self, record=record, holdout_images=unseen.in_memory())

    def _unseen_images(self, images: Images | None) -> CalibrationData:
        """Return the images of `refresh`."""
        if images is None:
            if self.holdout_images is None or not self.holdout_images.count:
                raise BadImagesError("the result has no hold-out images: pass unseen images")
            return self.holdout_images
        given = read_images(images, self.model)
        fitted = set() if self.fitting_images is None else set(self.fitting_images.digests())
        kept = [k for k, digest in enumerate(given.digests()) if digest not in fitted]
        if not kept:
            raise BadImagesError("all images were used for pruning: pass other, unseen images")
        return given if len(kept) == given.count else given.subset(torch.tensor(kept))

    def with_scores(
        self, metric: Metric, name: str = "accuracy, %", *, on: str = ""
    ) -> "SparsifyResult":
        """Return the same result with a metric of both networks in the record.

        For users who have labels; nothing else needs them. `distill` drops the score, because it
        returns another network.

        Parameters
        ----------
        metric : callable
            Called with a copy of either network in eval mode; returns a number.
        name : str, default "accuracy, %"
            Name of the metric, shown in the report.
        on : str, default ""
            Description of the test data, shown in the report.

        Returns
        -------
        SparsifyResult
            A copy of the result with `record.score`.

        Raises
        ------
        BadSettingError
            If `metric` is not callable, or returns a number that is not finite.

        Examples
        --------
        >>> import torch, entrim
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> x = torch.randn(200, 4)
        >>> labels = net(x).argmax(1)
        >>> def accuracy(network):
        ...     return 100 * (network(x).argmax(1) == labels).double().mean()
        >>> small = entrim.sparsify(net, x[:99], entrim.Widths({"0": 3}))
        >>> small.with_scores(accuracy, on="200 images").record.score.before
        100.0
        """
        check_metric(metric, "metric")
        before, after = (
            score_of(metric, copy_without_hooks(model).eval(), "metric")
            for model in (self.original, self.model)
        )
        score = Score(name=name, before=before, after=after, on=on)
        return replace(self, record=replace(self.valid_record(), score=score))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write network, plan and record into `folder` in one step; `entrim.load` reads it.

        If the network was changed after it was pruned, figures of the network before are left out
        of the saved record; `refresh` measures them again.
        """
        model_folder.save(self.model, self.plan, folder, record=self.valid_record().to_json())

    @classmethod
    def load(cls, model: nn.Module, folder: str | os.PathLike[str]) -> "SparsifyResult":
        """Return the result that `save` wrote, so that it can be distilled or saved again.

        If only the pruned network is needed, use `entrim.load`, which accepts any weights.

        Parameters
        ----------
        model : nn.Module
            The original network with the weights that it had when it was pruned. It becomes
            `original`, the teacher of `distill`.
        folder : str or path
            The folder written by `save`.

        Raises
        ------
        LoadError
            If the folder is damaged, or `model` has other weights.

        Examples
        --------
        >>> import tempfile, torch, entrim
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> x, folder = torch.randn(99, 4), tempfile.mkdtemp()
        >>> entrim.sparsify(net, x, entrim.Widths({"0": 3})).save(folder)
        >>> better = entrim.distill(entrim.SparsifyResult.load(net, folder), x)
        >>> better.model[0].out_features
        3
        """
        model, place = unwrap(model), Path(folder)
        small, manifest = model_folder.read(model, place)
        record = model_folder.record_in(manifest, place)
        if record.original not in (None, fingerprint(values_of(model).values())):
            raise LoadError(
                f"{place} was pruned from a {record.model} with other weights: load the original "
                "weights into the network first"
            )
        plan = Plan.from_json(json.dumps(manifest["plan"]))
        weights = {name: t.clone() for name, t in values_of(small).items()}
        plan = replace(plan, weights=weights)
        return cls(model=small, plan=plan, record=record, original=model)


def compare(
    results: Sequence["SparsifyResult | str | os.PathLike[str]"],
    names: Sequence[str] | None = None,
) -> RunComparison:
    """Compare several results, or folders of saved ones.

    Parameters
    ----------
    results : sequence of SparsifyResult or path
        The results, for instance of repeated calls of `Pruner.prune`.
    names : sequence of str, optional
        A heading for each; by default the share of the MACs, or the name of the folder.

    Returns
    -------
    RunComparison
        Print it for a table; `save("compare.html")` writes a page.

    Examples
    --------
    >>> import torch, entrim
    >>> _ = torch.manual_seed(0)
    >>> nn = torch.nn
    >>> net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
    >>> with entrim.Pruner(net, torch.randn(300, 8)) as pruner:
    ...     found = [pruner.prune(entrim.Budget(macs=share)) for share in (0.75, 0.5)]
    >>> print(str(entrim.compare(found)).splitlines()[0].split())
    ['75%', '50%']
    """
    if not isinstance(results, Sequence) or not results or isinstance(results, str):
        raise BadSettingError("results must be a list of results or of folders, such as [r1, r2]")
    runs = [one._report_data() if isinstance(one, SparsifyResult) else read(one) for one in results]
    if names is None:
        names = [
            f"{run.record.after.macs / max(run.record.before.macs, 1):.0%}"
            if not run.folder
            else Path(run.folder).name
            for run in runs
        ]
    if len(names) != len(runs):
        raise BadSettingError(
            f"there are {len(names)} names for {len(runs)} results: pass one each"
        )
    return RunComparison(tuple(names), tuple(runs))


def check_metric(metric: Metric, name: str) -> None:
    """Raise a BadSettingError if `metric` is not callable."""
    if not callable(metric):
        raise BadSettingError(
            f"{name} must be a function of the network that returns a number (higher is better), "
            f"got {type(metric).__name__}"
        )


def score_of(metric: Metric, model: nn.Module, name: str) -> float:
    """Return the value of `metric` for `model`; it must be finite."""
    value = float(metric(model))
    if not math.isfinite(value):
        raise BadSettingError(f"{name} returned {value}: return a finite number")
    return value


def size_record(model: nn.Module, example_inputs: ExampleInputs) -> Size:
    """Return the measured sizes and latency of a network."""
    cost = measure(model, example_inputs)
    latency = cost.latency
    return Size(
        params=cost.params,
        macs=cost.macs,
        bytes=cost.bytes,
        latency=latency.median,
        deviation=latency.deviation,
        batch=latency.batch,
        energy=cost.energy,
    )


def group_records(
    statistics: LayerStatistics,
    targets: Mapping[str, GroupTarget],
    selection: Mapping[str, ChannelSelection],
    stability: Mapping[str, float],
) -> tuple[GroupRecord, ...]:
    """Return the record of every group in which channels were selected."""
    groups = {group.name: group for group in statistics.graph.groups}
    return tuple(
        _group_record(statistics, groups[name], targets[name], found, stability.get(name))
        for name, found in selection.items()
    )


def _group_record(
    statistics: LayerStatistics,
    group: Group,
    target: GroupTarget,
    found: ChannelSelection,
    stability: float | None,
) -> GroupRecord:
    penalty = target.penalty
    return GroupRecord(
        name=group.name,
        layers=group.layers,
        readers=tuple(c.spec.layer for c in statistics.consumers_of(group)),
        channels=group.channels,
        kept=found.kept,
        reason=found.reason,
        w=None if found.w is None else tuple(found.w.tolist()),
        eps_w=None if penalty is None else penalty.eps_w,
        eps_l2=None if penalty is None else penalty.eps_l2,
        loss=found.loss,
        optimality_residual=found.optimality_residual,
        trace=found.trace,
        ridge_solves=found.ridge_solves,
        stability=stability,
    )


def tradeoff_records(point: SelectedPoint | None, groups: Collection[str]) -> tuple[TradeOff, ...]:
    """Return at most a hundred points of the path, with the widths of `groups`.

    The selected point is among them.
    """
    if point is None:
        return ()
    path = list(point.path)
    some = [*path[:: -(-len(path) // MAX_POINTS)], path[-1]]
    points = {tuple(one.widths.items()): one for one in (*some, point.at)}
    ordered = sorted(points.values(), key=lambda one: (one.divergence, -one.costs["params"]))
    return tuple(_tradeoff(one, groups, one is point.at) for one in ordered)


def _tradeoff(point: AllocationPoint, groups: Collection[str], selected: bool) -> TradeOff:
    return TradeOff(
        params=round(point.costs["params"]),
        macs=round(point.costs["macs"]),
        bytes=round(point.costs["bytes"]),
        divergence=point.divergence,
        selected=selected,
        widths=tuple(point.widths[name] for name in groups),
    )


def versions(more: Sequence[str] = ()) -> dict[str, str]:
    """Return the versions of entrim, PyTorch, NumPy, Python and the packages in `more`."""
    packages = {name: version(name) for name in (*VERSIONS, "numpy", *more)}
    return packages | {"Python": platform.python_version()}


def now() -> str:
    """Return the current time in the format of records."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def nothing_pruned(target: Target | None, selection: Mapping[str, ChannelSelection]) -> str:
    """Return the explanation that nothing was pruned, except at a penalty."""
    if not selection:
        return (
            "nothing was pruned, because no group was selected: widen include=, exclude= or "
            "the widths, raise memory_limit, or allow several consumers (single_consumer=False)"
        )
    if isinstance(target, Budget):
        return "nothing was pruned: the original network is within the budget"
    if target is None:
        return "nothing was pruned: no reduction is worth its divergence; pass a Budget"
    return "nothing was pruned: every group keeps the requested width"


def normalization_notes(graph: ChannelGraph, kept: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Yield a note if the statistics of normalizations over channels change."""
    layers = [graph.norms[weight] for weight in graph.restricted_norms(kept)]
    if layers:
        others = f" and {len(layers) - 1} more" if len(layers) > 1 else ""
        yield (
            f"{layers[0]}{others} normalize over the channels: their statistics are those of the "
            "kept channels, in the pruned network and in the reference of its verification"
        )


def budget_warnings(
    budget: Budget, limits: Mapping[str, int | float], point: SelectedPoint, after: Size
) -> Iterator[tuple[str, type[UserWarning]]]:
    """Yield a warning for each limit that the finished network exceeds.

    Predicted sizes are exact unless channels of one group differ in size; latency is noisy.
    """
    for kind in (kind for kind in SIZES if kind in limits):
        limit, found = limits[kind], getattr(after, kind)
        if found > limit:
            yield (
                f"the budget was {limit:,} {SIZES[kind]}, but the pruned network has {found:,}, "
                "because channels of one group differ in size: request "
                f"{kind}={int(limit * limit / found):,} or less",
                BudgetWarning,
            )
    if budget.latency is not None and after.latency > budget.latency:
        assert point.seconds is not None
        limit, first, last, half = (
            f"{1e3 * seconds:.3g} ms"
            for seconds in (budget.latency, point.seconds, after.latency, after.deviation / 2)
        )
        noise = after.latency - budget.latency <= after.deviation / 2
        yield (
            f"a latency of {limit} was requested, but the pruned network takes {last} ± {half}, "
            f"which is {'within' if noise else 'beyond'} the noise of that measurement; it took "
            f"{first} when it was selected: request less, or run on an idle machine",
            LatencyWarning,
        )
