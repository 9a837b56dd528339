"""The shape of every result that is written down."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """What was decided about one group of channels, and why."""

    name: str
    layers: tuple[str, ...]
    """The layers that produce the channels."""
    readers: tuple[str, ...]
    """The layers that read them."""
    channels: int
    kept: tuple[int, ...]
    how: str
    """The sentence that says how these channels were chosen."""
    w: tuple[float, ...] | None = None
    """The importance of every channel, where the choice was entropic."""
    eps_w: float | None = None
    eps_l2: float | None = None
    loss: float | None = None
    certificate: float | None = None
    trace: tuple[float, ...] = ()
    """F after every accepted step."""
    ridge_solves: int = 0
    stability: float | None = None
    """Mean overlap (Jaccard) of the kept set with those of resampled images, on request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRecord:
    """How well a refitted layer still does its work."""

    layer: str
    rows: int
    columns: int
    error: float
    """Squared error of the outputs that stay, relative to their variance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What a network costs. Two are equal if the sizes are, whatever the time."""

    params: int
    macs: int
    bytes: int
    latency: float = field(compare=False)
    """Seconds of one pass over the example, the median of measured runs."""
    spread: float = field(compare=False)
    """The interquartile range of those seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeOff:
    """What the network would cost with other widths, and the damage foreseen there."""

    params: int
    macs: int
    bytes: int
    damage: float
    """The sum over groups of the divergence of the outputs with that group alone cut."""
    taken: bool
    """Whether these widths were chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Everything that happened on the way from a network to a smaller one."""

    model: str
    images: int
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    groups: tuple[GroupRecord, ...]
    layers: tuple[LayerRecord, ...]
    frozen: tuple[tuple[str, int, str], ...]
    """Layer, channels, reason."""
    tradeoff: tuple[TradeOff, ...]
    """From the whole network down to the narrowest; empty where eps or widths decided."""
    before: Size
    after: Size
    proof: Mapping[str, float]
    """The largest relative difference of the sliced and of the final network, and the tolerance."""
    seconds: Mapping[str, float]
    """By stage."""
    notes: tuple[str, ...]
    """What the user was warned about."""

    def to_json(self) -> str:
        """Return the record as JSON."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)})

    def __str__(self) -> str:
        lines = [
            f"{self.model}: {_fall('parameters', self.before.params, self.after.params)}, "
            f"{_fall('MACs', self.before.macs, self.after.macs)}"
        ]
        width = max((len(group.name) for group in self.groups), default=0)
        lines += [
            f"  {group.name:<{width}}  {group.channels:>5} -> {len(group.kept):<5} {group.how}"
            for group in self.groups
        ]
        stages = ", ".join(f"{name} {value:.1f} s" for name, value in self.seconds.items())
        return "\n".join([*lines, stages, *(f"note: {note}" for note in self.notes)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a run, for whoever shows progress."""

    stage: str
    """trace, collect, choose, sense, allocate, rebuild or cut."""
    name: str
    """What was finished: a batch, a group, a layer."""
    done: int
    total: int
    detail: str = ""


def _fall(what: str, before: int, after: int) -> str:
    return f"{before:,} -> {after:,} {what} ({before / max(after, 1):.2f} times fewer)"
