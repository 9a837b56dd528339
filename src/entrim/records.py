"""The shape of every result that is written down."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from entrim.errors import LoadError

FORMAT = 2


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
    reason: str
    """The sentence that says how these channels were chosen."""
    w: tuple[float, ...] | None = None
    """The importance of every channel, where the choice was entropic."""
    eps_w: float | None = None
    eps_l2: float | None = None
    loss: float | None = None
    optimality_residual: float | None = None
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
    deviation: float = field(compare=False)
    """The interquartile range of those seconds."""
    batch: int = field(compare=False)
    """The images of that pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeOff:
    """What the network would cost with other widths, and the damage foreseen there."""

    params: int
    macs: int
    bytes: int
    divergence: float
    """The sum over groups of the divergence of the outputs with that group alone cut."""
    selected: bool
    """Whether these widths were chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distilled:
    """What training the smaller network towards the original has done."""

    images: int
    """How many were learned from."""
    holdout: int
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
    date: str | None = None
    """When it ended, as `Record.date`."""

    def __str__(self) -> str:
        return (
            f"distilled on {self.images} images for {self.epochs} epochs in {self.seconds:.1f} s: "
            f"loss on {self.holdout} others {self.before:.4g} -> {self.after:.4g}; {self.ending}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What a metric says of the network before and after: for those who have labels."""

    name: str
    """What was measured, such as "accuracy, %"."""
    before: float
    after: float
    on: str = ""
    """On what, such as "5,000 images of test.npz"."""

    def __str__(self) -> str:
        on = f", on {self.on}" if self.on else ""
        return f"{self.name}: {self.before:.4g} -> {self.after:.4g}{on}"


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
    distilled: Distilled | None = None
    """The training that followed, where there was one; the last of several."""
    earlier: tuple[Distilled, ...] = ()
    """The trainings before that, the first one first."""
    score: Score | None = None
    """Where there are labels: see `SparsifyResult.with_scores`."""
    error: float | None = None
    """Squared error of the outputs relative to their variance, on images of the run; None after a
    training and where the network puts out no numbers."""
    original: str | None = None
    """The checksum of all tensors of the network before the cut."""
    images_checksum: str | None = None
    """That of the images."""
    seed: int | None = None
    """The `seed` of the run; None where nothing was drawn at random."""
    threads: int | None = None
    """How many PyTorch computed on."""
    date: str | None = None
    """When the run ended: UTC, to the second, as ISO 8601 writes it."""

    def to_json(self) -> str:
        """Return the record as JSON."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> "Record":
        """Return the record written by `to_json`; anything else is refused with a LoadError."""
        try:
            data = json.loads(text)
            if data.pop("format") != FORMAT:
                raise LoadError("the record has another format: use the entrim that wrote it")
            return _record(data)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if isinstance(error, LoadError):
                raise
            raise LoadError(
                f"the record is not as this entrim writes it ({error!r}): update entrim, or run "
                "sparsify again"
            ) from error

    def __str__(self) -> str:
        lines = [
            f"{self.model}: {_decrease('parameters', self.before.params, self.after.params)}, "
            f"{_decrease('MACs', self.before.macs, self.after.macs)}"
        ]
        width = max((len(group.name) for group in self.groups), default=0)
        lines += [
            f"  {group.name:<{width}}  {group.channels:>5} -> {len(group.kept):<5} {group.reason}"
            for group in self.groups
        ]
        stages = ", ".join(f"{name} {value:.1f} s" for name, value in self.seconds.items())
        lines += [stages, *(str(part) for part in (self.distilled, self.score) if part)]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def _record(data: dict[str, Any]) -> Record:
    many = {"groups": GroupRecord, "layers": LayerRecord, "tradeoff": TradeOff}
    many |= {"earlier": Distilled} if "earlier" in data else {}  # not in older records
    made = {name: tuple(kind(**_tuples(d)) for d in data.pop(name)) for name, kind in many.items()}
    one = {"distilled": Distilled, "score": Score}
    made |= {name: kind(**data.pop(name)) for name, kind in one.items() if data.get(name)}
    sizes = {name: Size(**data.pop(name)) for name in ("before", "after")}
    frozen = tuple((layer, channels, reason) for layer, channels, reason in data.pop("frozen"))
    return Record(**sizes, **made, frozen=frozen, **_tuples(data))


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries with the tuples that JSON made lists of."""
    return {key: tuple(v) if isinstance(v, list) else v for key, v in data.items()}


def _decrease(what: str, before: int, after: int) -> str:
    return f"{before:,} -> {after:,} {what} ({before / max(after, 1):.2f} times fewer)"
