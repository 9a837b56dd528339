"""A smaller network with the plan that made it and the record of how: kept, read back, scored."""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from entrim.errors import LoadError
from entrim.graph.eager import copy_without_hooks
from entrim.records import Record, Score
from entrim.scoring import Metric, check_metric, score_of
from entrim.storage import model_folder as files
from entrim.storage.checkpoint import fingerprint
from entrim.surgery.plan import Plan
from entrim.surgery.structure import values_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sparsified:
    """A smaller network, the plan that made it, and the record of how."""

    model: nn.Module
    plan: Plan
    record: Record
    original: nn.Module
    """The network that was handed over, untouched."""

    def scored(self, metric: Metric, name: str = "accuracy, %", *, on: str = "") -> "Sparsified":
        """Return the same with `metric` of the network before and after in the record.

        For those who have labels: nothing else here needs them. `metric` is called with either
        network, a copy in eval mode, and returns a number. `name` says what it is and `on` what it
        was measured on; both stand in the report. `distill` drops the score: it is of another
        network then.

        >>> import torch, entrim
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> x = torch.randn(200, 4)
        >>> labels = net(x).argmax(1)
        >>> def accuracy(network):
        ...     return 100 * (network(x).argmax(1) == labels).double().mean()
        >>> small = entrim.sparsify(net, x[:99], widths={"0": 3})
        >>> small.scored(accuracy, on="200 images").record.score.before
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
        """Write network, plan and record into `folder`, in one step; `entrim.load` reads it."""
        files.save(self.model, self.plan, folder, record=self.record.to_json())

    @classmethod
    def load(cls, model: nn.Module, folder: str | os.PathLike[str]) -> "Sparsified":
        """Return what `save` wrote into `folder`, so that it can be distilled or saved again.

        `model` is the network before the cut, with the weights that it had then: it becomes
        `original`, which is what `distill` learns from. The plan that comes back names every tensor
        of the smaller network. Where only the network is wanted, `entrim.load` takes any weights.

        >>> import tempfile, torch, entrim
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> x, folder = torch.randn(99, 4), tempfile.mkdtemp()
        >>> entrim.sparsify(net, x, widths={"0": 3}).save(folder)
        >>> better = entrim.distill(entrim.Sparsified.load(net, folder), x)
        >>> better.model[0].out_features
        3
        """
        place = Path(folder)
        small, manifest = files.read(model, place)
        record = files.record_in(manifest, place)
        if record.original not in (None, fingerprint(values_of(model).values())):
            raise LoadError(
                f"{place} was cut from a {record.model} with other weights: give the network the "
                "weights that it had then"
            )
        plan = Plan.from_json(json.dumps(manifest["plan"]))
        plan = Plan(plan.kept, {name: t.clone() for name, t in values_of(small).items()})
        return cls(model=small, plan=plan, record=record, original=model)
