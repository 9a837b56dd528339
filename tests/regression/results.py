"""What a case returns, as plain values, and how two results are compared."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

RELATIVE = {"kept": 0.0, "numbers": 1e-9, "rough": 1e-3}
ABSOLUTE = 1e-12
"""Numbers agree if they differ by at most the larger of both."""

Number = float | list[float]


@dataclass(frozen=True, slots=True)
class Result:
    """The channels that were chosen, and numbers that follow from them."""

    kept: dict[str, list[int]]
    """Compared exactly."""
    numbers: dict[str, Number]
    """Compared to nine digits."""
    rough: dict[str, Number]
    """Compared to three digits: what a general-purpose solver finds to its own tolerance."""

    @classmethod
    def of(
        cls,
        kept: Mapping[str, Iterable[int]],
        numbers: Mapping[str, Any],
        rough: Mapping[str, Any] | None = None,
    ) -> "Result":
        """Return the result in plain numbers of 13 digits, more than a comparison looks at."""
        return cls(
            {name: [int(channel) for channel in channels] for name, channels in kept.items()},
            {name: _plain(value) for name, value in numbers.items()},
            {name: _plain(value) for name, value in (rough or {}).items()},
        )

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return the result as JSON holds it."""
        return asdict(self)


def digest(values: Tensor | np.ndarray) -> list[float]:
    """Return the sum, the sum of squares and a fixed projection of all values."""
    flat = np.asarray(values.detach() if isinstance(values, Tensor) else values).ravel()
    raw = np.random.PCG64(flat.size).random_raw(flat.size)
    direction = raw / 2.0**63 - 1
    return [float(flat.sum()), float(flat @ flat), float(flat @ direction)]


def digests_of(model: nn.Module) -> dict[str, list[float]]:
    """Return the digest of every floating-point tensor of a network."""
    return {
        f"tensor {name}": digest(tensor)
        for name, tensor in model.state_dict().items()
        if tensor.is_floating_point()
    }


def differences(reference: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line for each entry of two results (as dictionaries) that does not agree."""
    for part in found:
        old, new = reference[part], found[part]
        for name in [*old, *(name for name in new if name not in old)]:
            if name not in new or name not in old:
                where = "the reference" if name in old else "the result"
                yield f"{part}: {name!r} is in {where} only"
            elif not agree(old[name], new[name], part):
                yield f"{part}: {name!r} is {new[name]}, the reference is {old[name]}"


def agree(old: Any, new: Any, part: str) -> bool:
    """Whether two entries are alike: integers exactly, others as their part of a result asks."""
    a, b = np.asarray(old), np.asarray(new)
    if a.shape != b.shape:
        return False
    if a.dtype.kind == b.dtype.kind == "i":
        return bool((a == b).all())
    tolerance = np.maximum(RELATIVE[part] * np.abs(a), ABSOLUTE)
    return bool((np.abs(a - b) <= tolerance).all())


def _plain(value: Any) -> Any:
    if isinstance(value, Sequence | np.ndarray):
        return [_plain(item) for item in value]
    if isinstance(value, int | np.integer):
        return int(value)
    return float(f"{float(value):.12e}")
