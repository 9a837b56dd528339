"""Scores of channels by criteria of others: filters, BatchNorm, gradients, the next layer."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

import entrim
from entrim.errors import EntrimError
from experiments.errors import MissingPackageError
from experiments.models import TrainedModel
from experiments.paper.entropy_criteria import kernel_sparsity_and_entropy, output_entropy

_LABELLED = 500
"""Number of labeled images for a gradient; other criteria use the same number without labels."""
_BATCH = 100
BATCHNORM = "BatchNorm scale"
ChannelScores = dict[str, Float[Tensor, " channels"]]
Criterion = Callable[[TrainedModel, Sequence[str]], ChannelScores]


class NoCriterionError(EntrimError, ValueError):
    """A criterion is not defined for a network."""


def l1_norm(trained: TrainedModel, layers: Sequence[str]) -> ChannelScores:
    """Return the sum of the absolute weights of every filter."""
    return {
        name: trained.model.get_parameter(f"{name}.weight").detach().abs().flatten(1).sum(1)
        for name in layers
    }


def batchnorm_scale(trained: TrainedModel, layers: Sequence[str]) -> ChannelScores:
    """Return the absolute scale of every channel in its BatchNorm."""
    _require_batchnorm(trained.model)
    return _torch_pruning_criterion("BNScaleImportance")(trained, layers)


def _require_batchnorm(model: nn.Module) -> None:
    if not any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
        raise NoCriterionError("no BatchNorm")


def taylor(trained: TrainedModel, layers: Sequence[str]) -> ChannelScores:
    """Return torch-pruning's first-order change of the loss; it needs labels."""
    return _torch_pruning_criterion("GroupTaylorImportance", labelled=True)(trained, layers)


def _torch_pruning_criterion(name: str, labelled: bool = False) -> Criterion:
    """Return a criterion of torch-pruning, summed over all layers that share a channel."""

    def scores(trained: TrainedModel, layers: Sequence[str]) -> ChannelScores:
        try:
            import torch_pruning as tp
        except ImportError as error:
            raise MissingPackageError("this comparison", "torch-pruning") from error

        model, example = copy.deepcopy(trained.model), trained.images(2)
        if labelled:
            _accumulate_gradients(model, trained)
        graph: Any = tp.DependencyGraph().build_dependency(model, example_inputs=example)
        importance = getattr(tp.importance, name)()
        found = {}
        for layer in layers:
            module = model.get_submodule(layer)
            channels = list(range(module.get_parameter("weight").shape[0]))
            prune = graph.get_pruner_of_module(module).prune_out_channels
            group = graph.get_pruning_group(module, prune, idxs=channels)
            found[layer] = importance(group).detach()
        return found

    return scores


def _accumulate_gradients(model: nn.Module, trained: TrainedModel) -> None:
    """Leave the gradients of the loss on labeled images in `model`."""
    some = trained.train_set[:_LABELLED]
    with torch.enable_grad():
        for images, labels in zip(
            some.images.split(_BATCH), some.labels.split(_BATCH), strict=True
        ):
            logits = model(trained.normalization(images))
            F.cross_entropy(logits, labels, reduction="sum").backward()


CRITERIA: dict[str, Criterion] = {
    "L1 norm": l1_norm,
    BATCHNORM: batchnorm_scale,
    "torch-pruning's group L2 norm": _torch_pruning_criterion("GroupMagnitudeImportance"),
    "torch-pruning's LAMP": _torch_pruning_criterion("LAMPImportance"),
    "torch-pruning's FPGM": _torch_pruning_criterion("FPGMImportance"),
    "torch-pruning's Taylor, with labels": taylor,
    "entropy of filter outputs": output_entropy,
    "KSE": kernel_sparsity_and_entropy,
}
"""By the name in the table."""


@dataclass(frozen=True, slots=True, eq=False)
class CriterionScores:
    """The scores of a criterion, computed when needed; NoCriterionError if they are undefined.

    Scores differ in their last bits between machines, so that settings contain the name only.
    """

    criterion: str
    trained: TrainedModel
    layers: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.criterion == BATCHNORM:
            _require_batchnorm(self.trained.model)

    def compute(self) -> entrim.Scores:
        """Return the scores of the channels as a selector."""
        return entrim.Scores(CRITERIA[self.criterion](self.trained, self.layers))
