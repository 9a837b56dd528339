"""How large the smaller network may be, how slow, and how far from the original."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from entrim.errors import BadSettingError

SIZES = {"params": "parameters", "macs": "MACs", "bytes": "bytes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The most that may remain. Several at once must all hold.

    Of the sizes (`params`, `macs`, `bytes`) a float is a fraction, a whole number absolute.

    >>> import entrim
    >>> entrim.Budget(params=0.3, macs=2_000_000).limits({"params": 1000, "macs": 5_000_000})
    {'params': 300, 'macs': 2000000}
    """

    params: float | int | None = None
    macs: float | int | None = None
    """Multiply-accumulates for one image."""
    bytes: float | int | None = None
    """Of all parameters and buffers in their own precision."""
    latency: float | int | None = None
    """Seconds of one pass over the example on this machine, the median of measured runs."""
    max_error: float | int | None = None
    """||y - y0||^2 / ||y0 - mean||^2 at the outputs, over some of the images handed over. Alone, it
    makes the network as small as it allows."""

    def __post_init__(self) -> None:
        if not self.sizes and self.latency is None and self.max_error is None:
            raise BadSettingError(
                "the budget is empty: name params=, macs=, bytes=, latency= or max_error="
            )
        for name, value in self.sizes.items():
            fraction = isinstance(value, float) and 0 < value <= 1
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            if not fraction and not whole:
                raise BadSettingError(
                    f"{name} is {value!r}: hand over the fraction that remains, above 0.0 and up "
                    "to 1.0, or a whole number"
                )
        for name, unit in (("latency", "seconds"), ("max_error", "a share of the variance")):
            value = getattr(self, name)
            number = isinstance(value, int | float) and 0 < value < math.inf
            if value is not None and not number:
                raise BadSettingError(f"{name} is {value!r}: hand over {unit}, above 0")

    @property
    def sizes(self) -> dict[str, float | int]:
        """The sizes that are limited."""
        given = {kind: getattr(self, kind) for kind in SIZES}
        return {kind: value for kind, value in given.items() if value is not None}

    def limits(self, whole: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes in absolute numbers, for a network that has `whole`."""
        return {
            kind: int(value * whole[kind]) if isinstance(value, float) else value
            for kind, value in self.sizes.items()
        }
