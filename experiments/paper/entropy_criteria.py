"""The entropy criteria of the paper's related work: of filter outputs, and of kernels (KSE)."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from experiments.models import TrainedModel
from experiments.paper.activations import channel_values, consumers_of

_IMAGES = 500
_BINS = 100
_NEIGHBORS = 5


def output_entropy(trained: TrainedModel, layers: Sequence[str]) -> dict[str, Tensor]:
    """Return the entropy of the averaged output of every filter over images (Luo and Wu, 2017).

    The outputs are averaged over positions. Their values on the images are counted in 100 bins
    between the lowest and the highest.
    """
    images = trained.images(min(_IMAGES, len(trained.train_set)))
    values = channel_values(trained.model, images, layers, lambda x: x.mean(2))
    return {name: histogram_entropy(found) for name, found in values.items()}


def histogram_entropy(values: Float[Tensor, "T channels"]) -> Float[Tensor, " channels"]:
    """Return the entropy of the histogram of each column.

    >>> histogram_entropy(torch.tensor([[0.0, 1.0], [1.0, 1.0]]))
    tensor([0.6931, 0.0000])
    """
    counts = torch.stack([torch.histc(column, _BINS) for column in values.T])
    return torch.special.entr(counts / len(values)).sum(1)


def kernel_sparsity_and_entropy(trained: TrainedModel, layers: Sequence[str]) -> dict[str, Tensor]:
    """Return the KSE indicator of every channel from the kernels behind it (Li et al., 2019).

    sqrt(s / (1 + e)): s is the sum of the absolute weights that read the channel, e the entropy of
    the distances of its kernels to their 5 nearest neighbors; both are scaled to 0 to 1 in a layer.
    """
    consumers = consumers_of(trained.model, trained.images(2), layers)
    scores = {}
    for name in layers:
        channels = trained.model.get_submodule(name).get_parameter("weight").shape[0]
        weight = trained.model.get_submodule(consumers[name][0]).get_parameter("weight").detach()
        scores[name] = kse(weight.reshape(len(weight), channels, -1))
    return scores


def kse(kernels: Float[Tensor, "M channels k"]) -> Float[Tensor, " channels"]:
    """Return the indicator of each channel, from its kernel in each of the M filters."""
    sparsity = kernels.abs().sum((0, 2))
    entropy = torch.stack([_distance_entropy(mine) for mine in kernels.unbind(1)])
    return (_unit_range(sparsity) / (1 + _unit_range(entropy))).sqrt()


def _distance_entropy(kernels: Float[Tensor, "M k"]) -> Float[Tensor, ""]:
    """Return the entropy of the sums of distances to the nearest neighbors."""
    nearest = min(_NEIGHBORS + 1, len(kernels))  # a kernel is its own nearest neighbor
    density = torch.cdist(kernels, kernels).topk(nearest, largest=False).values.sum(1)
    total = density.sum()
    return torch.special.entr(density / total).sum() if total > 0 else total


def _unit_range(values: Float[Tensor, " channels"]) -> Float[Tensor, " channels"]:
    low, high = values.aminmax()
    return (values - low) / (high - low).clamp_min(torch.finfo(values.dtype).tiny)
