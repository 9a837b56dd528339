"""Records of results as plain data that can be saved as JSON."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from entrim.errors import LoadError

FORMAT = 2
_NOTHING_GAINED = "and nothing was gained: the network is unchanged"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """The selection in one group of channels, and its reason."""

    name: str
    layers: tuple[str, ...]
    """The layers that produce the channels."""
    readers: tuple[str, ...]
    """The layers that consume the channels."""
    channels: int
    kept: tuple[int, ...]
    reason: str
    """How the channels were selected, as one phrase."""
    w: tuple[float, ...] | None = None
    """Importance of each channel, if the selection was entropic."""
    eps_w: float | None = None
    eps_l2: float | None = None
    loss: float | None = None
    optimality_residual: float | None = None
    trace: tuple[float, ...] = ()
    """F after every accepted step."""
    ridge_solves: int = 0
    stability: float | None = None
    """Mean Jaccard overlap of the kept set with those of bootstrap samples, if requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRecord:
    """The accuracy of a refitted layer."""

    layer: str
    rows: int
    columns: int
    error: float
    """Squared error of the kept outputs, relative to their variance."""
    images: int | None = None
    """The number of images, mirror images included, if it is not that of all."""
    holdout_error: float | None = None
    """The same error on hold-out images, if the layer was refitted without images, from moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Size and latency of a network. Comparison ignores the latency."""

    params: int
    macs: int
    bytes: int
    latency: float = field(compare=False)
    """Seconds of one forward pass on the example inputs, the median of several runs."""
    deviation: float = field(compare=False)
    """Interquartile range of the seconds."""
    batch: int = field(compare=False)
    """Number of images of the pass."""
    energy: float | None = field(compare=False, default=None)
    """Joules per image of the whole processor, idle power included; None if not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeOff:
    """Costs of the network at other widths, and the predicted divergence."""

    params: int
    macs: int
    bytes: int
    divergence: float
    """Sum over groups of the divergence of the outputs if only this group is pruned."""
    selected: bool
    """Whether these widths were selected."""
    widths: tuple[int, ...] = ()
    """The width of every group in `Record.groups`, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure and its 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """The agreement that a target guarantees for images like the hold-out images."""

    agreement: float
    """The requested agreement."""
    confidence: float
    low: float
    """Lower confidence bound of the agreement of the returned network."""
    tested: int
    """Number of networks that were tested, from the widest on."""
    holds: bool
    """False if the hold-out images were used for another agreement target before."""

    def __str__(self) -> str:
        found = (
            f"agreement of at least {self.agreement:.1%} with {self.confidence:.0%} confidence, "
            f"lower bound {self.low:.1%}"
        )
        if self.holds:
            return f"guaranteed on images like these: {found}"
        return (
            f"not guaranteed, because these hold-out images were used for another target: {found}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdout:
    """Comparison of the pruned network with the original on images that pruning did not use."""

    images: int
    """Number of images of the comparison."""
    outputs: tuple[str, ...]
    """What each output was compared as: "logits", "probabilities" or "values"."""
    recognized: bool
    """Whether this was recognized automatically."""
    agreement: Estimate | None
    """Share of equal predicted classes; None if all outputs are values."""
    divergence: Estimate | None
    """Mean KL divergence of the class probabilities; None if all outputs are values."""
    error: Estimate | None
    """Squared error of the outputs relative to their variance; None if it is undefined."""
    selection_images: int = 0
    """Number of hold-out images on which the widths were selected."""
    guarantee: Guarantee | None = None
    """Set for `Budget(agreement=...)`."""
    note: str | None = None
    """Explanation of an error that is much larger than on the fitting images, with a remedy."""

    def __str__(self) -> str:
        parts = [
            f"{name} {value} (95 % interval {low} to {high})"
            for name, (value, low, high) in self.figures().items()
        ]
        assumed = ", recognized automatically" if self.recognized else ""
        found = f"on {self.images} unseen images: {', '.join(parts) or 'nothing comparable'}"
        kinds = f"outputs compared as {' and '.join(self.outputs)}{assumed}"
        more = [] if self.guarantee is None else [str(self.guarantee)]
        return "; ".join([found, kinds, *more])

    def figures(self) -> dict[str, tuple[str, str, str]]:
        """Return every defined figure as text: value, and both ends of its interval."""
        shown = {
            "agreement": (self.agreement, "{:.1%}"),
            "KL divergence": (self.divergence, "{:.3g}"),
            "error": (self.error, "{:.3g}"),
        }
        return {
            name: (form.format(e.value), form.format(e.low), form.format(e.high))
            for name, (e, form) in shown.items()
            if e is not None
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Distilled:
    """Result of training the pruned network to reproduce the outputs of the original."""

    images: int
    """Number of training images."""
    holdout: int
    """Number of validation images, on which the training was judged."""
    settings: Mapping[str, Any]
    before: float
    """Loss on the validation images before the training."""
    after: float
    """Loss on the validation images of the returned network."""
    epochs: int
    """Number of finished epochs."""
    best: int
    """The epoch whose state was returned; 0 is the state before the training."""
    ending: str
    """Why the training ended, as one phrase."""
    seconds: float
    date: str | None = None
    """Time of the end, in the format of `Record.date`."""

    @property
    def gained(self) -> bool:
        """Whether the returned network is a trained one."""
        return self.best > 0

    def __str__(self) -> str:
        result = self.ending if self.gained else f"{self.ending}, {_NOTHING_GAINED}"
        return (
            f"distilled on {self.images} images for {self.epochs} epochs in {self.seconds:.1f} s: "
            f"loss on {self.holdout} others {self.before:.4g} -> {self.after:.4g}; {result}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A metric of the network before and after pruning, for users with labels."""

    name: str
    """Name of the metric, such as "accuracy, %"."""
    before: float
    after: float
    on: str = ""
    """Test data, such as "5,000 images of test.npz"."""

    def __str__(self) -> str:
        on = f", on {self.on}" if self.on else ""
        return f"{self.name}: {self.before:.4g} -> {self.after:.4g}{on}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The record of a run: settings, selections, errors, sizes and times, as plain data."""

    model: str
    images: int
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    groups: tuple[GroupRecord, ...]
    layers: tuple[LayerRecord, ...]
    frozen: tuple[tuple[str, int, str], ...]
    """Layer, number of channels, and reason."""
    tradeoff: tuple[TradeOff, ...]
    """From the original to the narrowest network; empty for penalties and given widths."""
    before: Size
    after: Size
    proof: Mapping[str, float]
    """Largest relative differences of the sliced and the final network, and the tolerance; on the
    command line also that of the written ONNX file in onnxruntime, "onnx"."""
    seconds: Mapping[str, float]
    """Seconds by stage."""
    notes: tuple[str, ...]
    """Warnings of the run."""
    distilled: Distilled | None = None
    """The last distillation, if any."""
    earlier: tuple[Distilled, ...] = ()
    """Earlier distillations, in chronological order."""
    score: Score | None = None
    """Set by `SparsifyResult.with_scores`."""
    error: float | None = None
    """Squared error of the outputs relative to their variance, on images that the weights were
    fitted on: lower than on other images. None after distillation, or if it is undefined."""
    holdout: Holdout | None = None
    """The same comparison on unseen images; None without hold-out images, or if they were not
    available after a distillation."""
    holdout_digests: tuple[str, ...] = ()
    """Checksum of each of these unseen images: distillation does not train on them."""
    original: str | None = None
    """Checksum of all tensors of the original network."""
    images_checksum: str | None = None
    """Checksum of the images."""
    seed: int | None = None
    """The `seed` of the run; None if no random numbers were drawn."""
    threads: int | None = None
    """Number of threads of PyTorch."""
    date: str | None = None
    """Time of the end of the run: UTC, ISO 8601, to the second."""
    removed_blocks: tuple[str, ...] = ()
    """Residual blocks that were replaced by an identity."""
    pruned: str | None = None
    """Checksum of all tensors of the pruned network, when the figures were measured."""

    @property
    def worst_layer(self) -> tuple[str, float] | None:
        """The layer with the largest error on hold-out images, if layers were measured there."""
        known = [
            (one.layer, one.holdout_error) for one in self.layers if one.holdout_error is not None
        ]
        return max(known, key=lambda pair: pair[1], default=None)

    def __repr__(self) -> str:
        return f"<Record of {self.model}, pruned with {self.images} images: print it for a table>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the table in IPython and notebooks."""
        printer.text(str(self))

    def metrics(self) -> dict[str, float]:
        """Return the figures of the run by names such as "macs/after", for experiment trackers."""
        sizes = ("params", "macs", "bytes", "latency")
        found = {
            f"{name}/{when}": float(getattr(size, name))
            for when, size in (("before", self.before), ("after", self.after))
            for name in sizes
        }
        if self.error is not None:
            found["error/fitting"] = self.error
        if self.holdout is not None:
            for name in ("agreement", "divergence", "error"):
                if (estimate := getattr(self.holdout, name)) is not None:
                    found[f"{name}/unseen"] = estimate.value
        if self.distilled is not None:
            found |= {"loss/before": self.distilled.before, "loss/after": self.distilled.after}
        return found | {f"seconds/{stage}": value for stage, value in self.seconds.items()}

    def to_json(self) -> str:
        """Return the record as JSON."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> "Record":
        """Return the record written by `to_json`; raise a LoadError for other data."""
        try:
            data = json.loads(text)
            if data.pop("format") != FORMAT:
                raise LoadError(
                    "the record has another format: read it with the version that wrote it"
                )
            return _record(data)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if isinstance(error, LoadError):
                raise
            raise LoadError(
                f"the record cannot be read ({error!r}): update entrim, or run sparsify again"
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
        if self.removed_blocks:
            lines.append(f"removed residual blocks: {', '.join(self.removed_blocks)}")
        stages = ", ".join(f"{name} {value:.1f} s" for name, value in self.seconds.items())
        unseen = self.holdout or "not measured on unseen images"
        lines += [stages, str(unseen)]
        lines += [str(part) for part in (self.distilled, self.score) if part]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def _record(data: dict[str, Any]) -> Record:
    many = {"groups": GroupRecord, "layers": LayerRecord, "tradeoff": TradeOff}
    many |= {"earlier": Distilled} if "earlier" in data else {}  # not in older records
    made = {name: tuple(kind(**_tuples(d)) for d in data.pop(name)) for name, kind in many.items()}
    one = {"distilled": Distilled, "score": Score, "holdout": _holdout}
    made |= {name: kind(**data.pop(name)) for name, kind in one.items() if data.get(name)}
    sizes = {name: Size(**data.pop(name)) for name in ("before", "after")}
    frozen = tuple((layer, channels, reason) for layer, channels, reason in data.pop("frozen"))
    return Record(**sizes, **made, frozen=frozen, **_tuples(data))


def _holdout(**data: Any) -> Holdout:
    parts = {
        "guarantee": Guarantee,
        **dict.fromkeys(("agreement", "divergence", "error"), Estimate),
    }
    made = {name: kind(**data.pop(name)) for name, kind in parts.items() if data.get(name)}
    return Holdout(**_tuples(data), **made)


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries with lists of JSON converted to tuples."""
    return {key: tuple(v) if isinstance(v, list) else v for key, v in data.items()}


def _decrease(what: str, before: int, after: int) -> str:
    return f"{before:,} -> {after:,} {what} ({before / max(after, 1):.2f} times fewer)"
