"""The result of a run: the pruned network, its plan and its record; saved, loaded, scored."""

import json
import math
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, SupportsFloat

from torch import nn

from entrim.allocation.allocate import AllocationPoint, SelectedPoint
from entrim.calibration.collect import LayerStatistics
from entrim.calibration.data import CalibrationData
from entrim.config import SIZES, Budget
from entrim.errors import BadSettingError, BudgetWarning, LatencyWarning, LoadError
from entrim.graph.eager import ExampleInputs, copy_without_hooks, unwrap
from entrim.records import GroupRecord, Record, Score, Size, TradeOff
from entrim.selection.base import ChannelSelection, GroupTarget
from entrim.storage import model_folder
from entrim.storage.checkpoint import fingerprint
from entrim.surgery.measure import measure
from entrim.surgery.plan import Plan
from entrim.surgery.structure import values_of

MAX_POINTS = 99
"""Maximum number of points of a path in a record, in addition to the selected one."""
VERSIONS = ("entrim", "torch")

if TYPE_CHECKING:
    Metric = Callable[[nn.Module], SupportsFloat]
else:
    Metric = object  # other types raise an error of entrim, with a remedy


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SparsifyResult:
    """A pruned network, the plan that produces it, and the record of the run.

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
    fitting_images: CalibrationData | None = field(default=None, repr=False)
    holdout_images: CalibrationData | None = field(default=None, repr=False)

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
        return replace(self, record=replace(self.record, score=score))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write network, plan and record into `folder` in one step; `entrim.load` reads it."""
        model_folder.save(self.model, self.plan, folder, record=self.record.to_json())

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
    return tuple(
        _group_record(statistics, name, targets[name], found, stability.get(name))
        for name, found in selection.items()
    )


def _group_record(
    statistics: LayerStatistics,
    name: str,
    target: GroupTarget,
    found: ChannelSelection,
    stability: float | None,
) -> GroupRecord:
    group = statistics.graph.group(name)
    penalty = target.penalty
    return GroupRecord(
        name=name,
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


def tradeoff_records(point: SelectedPoint | None) -> tuple[TradeOff, ...]:
    """Return at most a hundred points of the path, among them the selected one."""
    if point is None:
        return ()
    path = list(point.path)
    some = [*path[:: -(-len(path) // MAX_POINTS)], path[-1]]
    points = {tuple(one.widths.items()): one for one in (*some, point.at)}
    ordered = sorted(points.values(), key=lambda one: (one.divergence, -one.costs["params"]))
    return tuple(_tradeoff(one, one is point.at) for one in ordered)


def _tradeoff(point: AllocationPoint, selected: bool) -> TradeOff:
    return TradeOff(
        params=round(point.costs["params"]),
        macs=round(point.costs["macs"]),
        bytes=round(point.costs["bytes"]),
        divergence=point.divergence,
        selected=selected,
    )


def versions(more: Sequence[str] = ()) -> dict[str, str]:
    """Return the versions of entrim, PyTorch, NumPy, Python and the packages in `more`."""
    packages = {name: version(name) for name in (*VERSIONS, "numpy", *more)}
    return packages | {"Python": platform.python_version()}


def now() -> str:
    """Return the current time in the format of records."""
    return datetime.now(UTC).isoformat(timespec="seconds")


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
