"""The shape of every result that is written down."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from entrim.errors import LoadError

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
    """The training that followed, where there was one."""
    original: str | None = None
    """The checksum of all tensors of the network before the cut."""

    def to_json(self) -> str:
        """Return the record as JSON."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> "Record":
        """Return the record written by `to_json`; anything else is refused with a LoadError."""
        try:
            data = json.loads(text)
            if data.pop("format") > FORMAT:
                raise LoadError("the record has a newer format: update entrim")
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
    """trace, resume, collect, choose, sense, allocate, rebuild or cut; search; distill."""
    name: str
    """What was finished: a batch, a group, a layer, a trial, an epoch."""
    done: int
    total: int
    detail: str = ""
    loss: float | None = None
    """Of the batch, in a training."""
    seconds_left: float | None = None
    """Where it can be told, as if no early stop came."""
    settled: bool = False
    """Whether a group of channels is decided, or a layer rebuilt: a line of the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One setting that a search tried."""

    number: int
    eps: Mapping[str, tuple[float, float]]
    """(eps_w, eps_l2) by pattern, as `sparsify(eps=...)` takes it."""
    widths: Mapping[str, int]
    """Channels that stay in every group that was chosen in."""
    params: float
    """The fraction of the parameters that remains."""
    macs: float
    """The fraction of the MACs that remains."""
    lost: float
    """What the layers lose by a refit on their kept channels, relative to their variance, summed
    over the groups: an estimate without labels, made before anything is rebuilt."""
    score: float | None
    """None where the trial was pruned or failed."""
    how: str
    """The sentence that says how the trial ended."""
    seconds: float
    """What rebuilding, cutting and scoring took; 0 where the trial ended before."""
    digest: str
    """Alike for trials that lead to the same network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRecord:
    """Everything that a search tried, and its Pareto front."""

    model: str
    images: int
    cost: str
    """What was minimised beside the score: params or macs."""
    intact: float
    """The score of the network as it was handed over."""
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    front: tuple[Trial, ...]
    """Trials that no other beats in cost and score, the cheapest first."""
    trials: tuple[Trial, ...]
    """All that ended, in the order in which they began."""
    seconds: Mapping[str, float]
    """By stage, in this process."""

    @property
    def spared(self) -> int:
        """The number of trials that ended without being rebuilt and scored."""
        return sum(trial.seconds == 0 for trial in self.trials)

    @property
    def saved(self) -> float:
        """The seconds that this spared, at the mean of those trials that were scored."""
        took = [trial.seconds for trial in self.trials if trial.seconds]
        return self.spared * sum(took) / len(took) if took else 0.0

    def to_json(self) -> str:
        """Return the record as JSON."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)})

    def __str__(self) -> str:
        lines = [
            f"{self.model}: score {self.intact:.4g} intact; {len(self.trials)} trials, "
            f"{self.spared} of them not scored, which saved about {self.saved:.1f} s"
        ]
        lines += [
            f"  {trial.params:>6.1%} of the parameters, {trial.macs:>6.1%} of the MACs: "
            f"score {trial.score:.4g} (trial {trial.number})"
            for trial in self.front
        ]
        return "\n".join(lines)


def pareto(trials: Sequence[Trial], cost: str) -> tuple[Trial, ...]:
    """Return the trials that no other beats in `cost` and score, the cheapest first.

    Of trials alike in both the earliest stands for all.
    """
    scored = [trial for trial in trials if trial.score is not None]
    front: list[Trial] = []
    for trial in sorted(scored, key=lambda t: (getattr(t, cost), -(t.score or 0.0), t.number)):
        if not front or (trial.score or 0.0) > (front[-1].score or 0.0):
            front.append(trial)
    return tuple(front)


def _record(data: dict[str, Any]) -> Record:
    parts = {"groups": GroupRecord, "layers": LayerRecord, "tradeoff": TradeOff}
    sizes = {name: Size(**data.pop(name)) for name in ("before", "after")}
    made = {name: tuple(kind(**_tuples(d)) for d in data.pop(name)) for name, kind in parts.items()}
    distilled = data.pop("distilled", None)
    frozen = tuple((layer, channels, reason) for layer, channels, reason in data.pop("frozen"))
    return Record(
        **sizes,
        **made,
        frozen=frozen,
        distilled=None if distilled is None else Distilled(**distilled),
        **_tuples(data),
    )


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries with the tuples that JSON made lists of."""
    return {key: tuple(v) if isinstance(v, list) else v for key, v in data.items()}


def _fall(what: str, before: int, after: int) -> str:
    return f"{before:,} -> {after:,} {what} ({before / max(after, 1):.2f} times fewer)"
