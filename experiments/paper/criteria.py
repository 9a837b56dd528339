"""Rankings of channels by what others look at: filters, BatchNorm, gradients, the next layer."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from entrim.errors import EntrimError
from experiments.errors import MissingPackageError
from experiments.models import Subject

_LABELLED = 500
"""Images with labels that a gradient is averaged over; as many as the others see without."""
_BATCH = 100
BATCHNORM = "BatchNorm scale"
Scores = dict[str, Float[Tensor, " channels"]]
Criterion = Callable[[Subject, Sequence[str]], Scores]


class NoCriterionError(EntrimError, ValueError):
    """A network lacks what a criterion looks at."""


def l1_norm(subject: Subject, layers: Sequence[str]) -> Scores:
    """Return the sum of the absolute weights of every filter."""
    return {
        name: subject.model.get_parameter(f"{name}.weight").detach().abs().flatten(1).sum(1)
        for name in layers
    }


def batchnorm_scale(subject: Subject, layers: Sequence[str]) -> Scores:
    """Return the absolute scale that a BatchNorm gives every channel."""
    _refuse_without_batchnorm(subject.model)
    return _of_torch_pruning("BNScaleImportance")(subject, layers)


def _refuse_without_batchnorm(model: nn.Module) -> None:
    if not any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
        raise NoCriterionError("no BatchNorm")


def taylor(subject: Subject, layers: Sequence[str]) -> Scores:
    """Return torch-pruning's first-order change of the loss; it needs labels."""
    return _of_torch_pruning("GroupTaylorImportance", labelled=True)(subject, layers)


def _of_torch_pruning(name: str, labelled: bool = False) -> Criterion:
    """Return one of torch-pruning's criteria, summed as it does over all that shares a channel."""

    def scores(subject: Subject, layers: Sequence[str]) -> Scores:
        try:
            import torch_pruning as tp
        except ImportError as error:
            raise MissingPackageError("this comparison", "torch-pruning") from error

        model, example = copy.deepcopy(subject.model), subject.images(2)
        if labelled:
            _learn_gradients(model, subject)
        graph: Any = tp.DependencyGraph().build_dependency(model, example_inputs=example)
        rank = getattr(tp.importance, name)()
        found = {}
        for layer in layers:
            module = model.get_submodule(layer)
            channels = list(range(module.get_parameter("weight").shape[0]))
            prune = graph.get_pruner_of_module(module).prune_out_channels
            found[layer] = rank(graph.get_pruning_group(module, prune, idxs=channels)).detach()
        return found

    return scores


def _learn_gradients(model: nn.Module, subject: Subject) -> None:
    """Leave the gradients of the loss on some labelled images in `model`."""
    some = subject.lesson[:_LABELLED]
    with torch.enable_grad():
        for images, labels in zip(
            some.images.split(_BATCH), some.labels.split(_BATCH), strict=True
        ):
            F.cross_entropy(model(subject.how(images)), labels, reduction="sum").backward()


CRITERIA: dict[str, Criterion] = {
    "L1 norm": l1_norm,
    BATCHNORM: batchnorm_scale,
    "torch-pruning's group L2 norm": _of_torch_pruning("GroupMagnitudeImportance"),
    "torch-pruning's LAMP": _of_torch_pruning("LAMPImportance"),
    "torch-pruning's FPGM": _of_torch_pruning("FPGMImportance"),
    "torch-pruning's Taylor, with labels": taylor,
}
"""By the name in the table."""


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """What a criterion will say of a network when it is asked; NoCriterionError where it cannot.

    Scores differ in their last bits from machine to machine, so a ranking is known by its name.
    """

    criterion: str
    subject: Subject
    layers: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.criterion == BATCHNORM:
            _refuse_without_batchnorm(self.subject.model)

    def scores(self) -> Scores:
        """Return the scores of the channels."""
        return CRITERIA[self.criterion](self.subject, self.layers)
