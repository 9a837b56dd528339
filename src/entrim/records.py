"""The shape of every result that is written down."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
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
    """What a network costs, without the time."""

    params: int
    macs: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Distilled:
    """What training the smaller network towards the original has done."""

    images: int
    """How many were learned from."""
    held_out: int
    """How many others told when to stop."""
    settings: Mapping[str, Any]
    before: float
    """The loss on the images held out, at the start."""
    after: float
    """The same of the network that was handed out."""
    epochs: int
    """How many were run."""
    best: int
    """The epoch whose network was handed out; 0 is the start."""
    ending: str
    """The sentence that says why it ended."""
    seconds: float

    def __str__(self) -> str:
        return (
            f"distilled on {self.images} images for {self.epochs} epochs in {self.seconds:.1f} s: "
            f"loss on {self.held_out} others {self.before:.4g} -> {self.after:.4g}; {self.ending}"
        )


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
    before: Size
    after: Size
    proof: Mapping[str, float]
    """The largest relative difference of the sliced and of the final network, and the tolerance."""
    seconds: Mapping[str, float]
    """By stage."""
    notes: tuple[str, ...]
    """What the user was warned about."""
    distilled: Distilled | None = None
    """The training that followed, where there was one."""

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
        after = [stages] if self.distilled is None else [stages, str(self.distilled)]
        return "\n".join([*lines, *after, *(f"note: {note}" for note in self.notes)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a run, for whoever shows progress."""

    stage: str
    """trace, collect, choose, rebuild or cut; distill."""
    name: str
    """What was finished: a batch, a group, a layer; the epoch of a training."""
    done: int
    total: int
    detail: str = ""
    loss: float | None = None
    """Of the batch, in a training."""
    seconds_left: float | None = None
    """Where it can be told, as if no early stop came."""


def _fall(what: str, before: int, after: int) -> str:
    return f"{before:,} -> {after:,} {what} ({before / max(after, 1):.2f} times fewer)"
