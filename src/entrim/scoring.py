"""What a metric says of a network: a finite number, or it is refused."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, SupportsFloat

from torch import nn

from entrim.errors import BadSettingError

if TYPE_CHECKING:
    Metric = Callable[[nn.Module], SupportsFloat]
else:
    Metric = object  # so that what cannot be called is refused by us, with the remedy


def check_metric(metric: Metric, name: str) -> None:
    """Refuse what is no function."""
    if not callable(metric):
        raise BadSettingError(
            f"{name} is a {type(metric).__name__}: hand over a function of the network that "
            "returns a number, the higher the better"
        )


def score_of(metric: Metric, model: nn.Module, name: str) -> float:
    """Return what `metric`, which the caller knows as `name`, says of `model`."""
    value = float(metric(model))
    if not math.isfinite(value):
        raise BadSettingError(f"{name} returned {value}, which is not a finite number")
    return value
