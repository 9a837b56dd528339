"""Values of the channels of a group, as the layers behind it receive them."""

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

import entrim

_BATCH = 100
_ALIVE = 1e-6
"""Channels with a smaller variance, relative to the median of their layer, are dead."""
PerImage = Callable[[Float[Tensor, "N C P"]], Float[Tensor, "N C ..."]]
"""One or more values for every image and channel, from the values at all positions."""


def consumers_of(
    model: nn.Module, example_inputs: Tensor, groups: Sequence[str]
) -> dict[str, list[str]]:
    """Return the names of the layers that read each group."""
    graph = entrim.trace(model, example_inputs)
    return {
        name: [layer.layer for layer in graph.consumers if name in layer.columns_per_channel]
        for name in groups
    }


@torch.no_grad()
def channel_values(
    model: nn.Module, images: Tensor, groups: Sequence[str], per_image: PerImage
) -> dict[str, Float[Tensor, "T channels ..."]]:
    """Return `per_image` of the inputs of the first layer behind each group.

    This is after BatchNorm, activation and pooling. The layer must read no other channels.
    """
    found: dict[str, list[Tensor]] = {group: [] for group in groups}
    handles = []
    for group, layers in consumers_of(model, images[:2], groups).items():
        channels = model.get_submodule(group).get_parameter("weight").shape[0]

        def keep(_: nn.Module, inputs: tuple[Tensor], *, to=found[group], size=channels) -> None:
            x = inputs[0]
            to.append(per_image(x.reshape(len(x), size, -1)))

        handles.append(model.get_submodule(layers[0]).register_forward_pre_hook(keep))
    try:
        for batch in images.split(_BATCH):
            model(batch)
    finally:
        for handle in handles:
            handle.remove()
    return {group: torch.cat(values) for group, values in found.items()}


def live_channels(model: nn.Module, images: Tensor, groups: Sequence[str]) -> Mapping[str, int]:
    """Return the number of channels of each group whose variance is above 1e-6 of the median."""

    def moments(x: Tensor) -> Tensor:
        return torch.stack([x.double().mean(2), x.double().square().mean(2)], dim=2)

    alive = {}
    for group, values in channel_values(model, images, groups, moments).items():
        mean, square = values.mean(0).unbind(1)
        variance = square - mean.square()
        alive[group] = int((variance > _ALIVE * variance.median()).sum())
    return alive
