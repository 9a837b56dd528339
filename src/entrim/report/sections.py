"""The values that the sections of the report show."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from entrim.config import SIZES
from entrim.records import GroupRecord, Holdout, LayerRecord, Record, Size
from entrim.report.markup import Part, bar
from entrim.report.numbers import moment, percent, seconds, short, size, times
from entrim.report.report_data import Layer

WORDS = {
    **SIZES,
    "latency": "per forward pass",
    "max_error": "error",
    "agreement": "agreement",
}
Row = list[Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One number at the top of the report."""

    number: str
    label: str
    change: str
    share: float | None = None
    """The length of its bar."""
    class_name: str | None = None


def cards(record: Record) -> list[Card]:
    """Return the score, the sizes and the latency, before and after."""
    found = [
        _size_card("parameters", "params", record, short),
        _size_card("MACs per image", "macs", record, short),
        _size_card("bytes in memory", "bytes", record, size),
        _latency_card(record.before, record.after),
    ]
    if record.before.energy is not None and record.after.energy is not None:
        found.append(_energy_card(record.before.energy, record.after.energy))
    if record.holdout is not None and record.holdout.figures():
        found.insert(0, _holdout_card(record.holdout))
    return found if record.score is None else [_score_card(record), *found]


def _score_card(record: Record) -> Card:
    """Return the card of the metric, with a bar if the ratio of the scores is meaningful."""
    score = record.score
    assert score is not None
    return Card(
        number=f"{score.after:.4g}",
        label=score.name,
        change=f"{score.before:.4g} → {score.after:.4g}" + (f", on {score.on}" if score.on else ""),
        share=score.after / score.before if score.before > 0 and score.after >= 0 else None,
        class_name="score",
    )


def _holdout_card(holdout: Holdout) -> Card:
    """Return the card of the agreement on unseen images, or of the error of values."""
    found = holdout.agreement or holdout.error
    assert found is not None
    same = holdout.agreement is not None
    return Card(
        number=percent(found.value),
        label="same predicted class" if same else "error of the outputs",
        change=f"{percent(found.low)} to {percent(found.high)}, on {holdout.images} unseen images",
        share=min(1.0, found.value),
        class_name="holdout",
    )


def _size_card(label: str, name: str, record: Record, write: Callable[[int | float], str]) -> Card:
    before, after = getattr(record.before, name), getattr(record.after, name)
    return Card(
        number=times(before, after),
        label=f"fewer {label}",
        change=f"{write(before)} → {write(after)}",
        share=share(record, name),
    )


def _latency_card(before: Size, after: Size) -> Card:
    """Return the card of the latency, and whether the difference is within the noise."""
    faster = after.latency <= before.latency
    significant = abs(before.latency - after.latency) > (before.deviation + after.deviation) / 2
    ends = (before.latency, after.latency) if faster else (after.latency, before.latency)
    return Card(
        number=times(*ends),
        label=("lower" if faster else "higher")
        + (" latency" if significant else " latency, within the noise"),
        change=f"{seconds(before.latency)} → {seconds(after.latency)} ± "
        f"{seconds(after.deviation / 2)}, for {after.batch} image{'s' * (after.batch != 1)}",
        share=after.latency / before.latency if before.latency else 1.0,
        class_name="slower" if significant and not faster else None,
    )


def _energy_card(before: float, after: float) -> Card:
    """Return the card of the energy per image, which few systems can measure."""
    lower = after <= before
    return Card(
        number=times(before, after) if lower else times(after, before),
        label=f"{'lower' if lower else 'higher'} energy per image",
        change=f"{before:.3g} J → {after:.3g} J, of the whole processor",
        share=after / before if before else 1.0,
    )


def share(record: Record, name: str) -> float:
    """Return the kept fraction of a size."""
    return getattr(record.after, name) / max(getattr(record.before, name), 1)


def layer_rows(layers: Sequence[Layer]) -> list[Row]:
    """Return the widths of every layer, and why it was not pruned."""
    return [_layer_row(layer) for layer in layers]


def _layer_row(layer: Layer) -> Row:
    note = "; ".join(layer.reasons) or ("" if layer.included else "excluded")
    kept = percent(layer.after / max(layer.before, 1))
    return [layer.name, layer.before, layer.after, kept, note]


def describe_limits(budget: Mapping[str, Any]) -> str:
    """Return the limits of a budget in words; empty without a budget."""
    return ", ".join(
        f"{_describe_limit(key, value)} {WORDS[key]}"
        for key, value in budget.items()
        if key in WORDS and value is not None
    )


def _describe_limit(resource: str, value: int | float) -> str:
    if resource == "latency":
        return f"at most {seconds(value)}"
    if resource == "agreement":
        return f"at least {percent(value)}"
    share = resource == "max_error" or isinstance(value, float)
    return f"at most {percent(value) if share else f'{value:,}'}"


def common_reason(groups: Sequence[GroupRecord]) -> tuple[str | None, bool]:
    """Return the reason that several groups share, or None, and whether all groups share it."""
    usual, count = Counter(group.reason for group in groups).most_common(1)[0]
    return (usual, count == len(groups)) if count > 1 else (None, False)


def group_notes(group: GroupRecord, usual: str | None) -> str:
    """Return the notes of a group, with the reason of its selection if it is not the `usual`."""
    notes = [] if group.reason == usual else [sentence(group.reason)]
    if len(group.layers) > 1:
        more = f" and {len(group.layers) - 3} more layers" if len(group.layers) > 3 else ""
        notes.append(f"Shared by {', '.join(group.layers[:3])}{more}.")
    if group.stability is not None:
        notes.append(f"Stability {group.stability:.2f}.")
    return " ".join(notes)


def sentence(text: str) -> str:
    """Return a phrase as a sentence.

    >>> sentence("greedy elimination")
    'Greedy elimination.'
    """
    return f"{text[:1].upper()}{text[1:]}."


def error_scale(layers: Sequence[LayerRecord]) -> float:
    """Return the end of the error bars: the next of 0.001, 0.002, 0.005, 0.01, ..."""
    largest = max(layer.error for layer in layers)
    steps = (digit * 10.0**power for power in range(-3, 9) for digit in (1, 2, 5))
    return next((step for step in steps if step >= largest), largest)


def refit_head(layers: Sequence[LayerRecord], scale: float) -> list[str]:
    """Return the heads of the columns of `refit_rows`."""
    unseen = [] if any(layer.holdout_error is None for layer in layers) else ["hold-out images"]
    return ["layer", f"0 to {percent(scale)}", "error", *unseen, "inputs", "equations"]


def refit_rows(layers: Sequence[LayerRecord], scale: float) -> list[Row]:
    """Return the error of every refitted layer, and the size of its system of equations."""
    return [
        [
            layer.layer,
            bar(layer.error / scale),
            percent(layer.error),
            *([] if layer.holdout_error is None else [percent(layer.holdout_error)]),
            f"{layer.columns:,}",
            f"{layer.rows:,}",
        ]
        for layer in layers
    ]


def frozen_rows(frozen: Sequence[tuple[str, int, str]]) -> list[Row]:
    """Return the frozen layers by reason."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for layer, channels, reason in frozen:
        reasons[reason].append(f"{layer} ({channels})")
    return [[reason, ", ".join(layers)] for reason, layers in reasons.items()]


def holdout_rows(record: Record) -> list[Row]:
    """Return the figures on unseen images with their intervals, and the error on the others."""
    figures = {} if record.holdout is None else record.holdout.figures()
    rows: list[Row] = [
        [f"{name}, unseen images", value, f"{low} to {high}"]
        for name, (value, low, high) in figures.items()
    ]
    if record.error is not None:
        rows.append(["error, fitting images", f"{record.error:.3g}", ""])
    return rows


def stages(record: Record) -> dict[str, float]:
    """Return the seconds of the stages that took any."""
    return {name: value for name, value in record.seconds.items() if value > 0}


def environment_rows(record: Record) -> list[Row]:
    """Return what else the result depends on, if the record contains it."""
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    rows: list[tuple[str, str | int | None]] = [
        ("finished", moment(record.date)),
        ("versions", versions),
        ("threads", record.threads),
        ("seed", "no random numbers used" if record.seed is None else record.seed),
    ]
    for done in (*record.earlier, record.distilled):
        if done is not None:
            rows.append(("distillation finished", moment(done.date)))
            rows.append(("seed of the distillation", done.settings.get("seed")))
    rows.append(("checksum of the original network", record.original))
    rows.append(("checksum of the images", record.images_checksum))
    return [[name, value] for name, value in rows if value is not None]


def setting_rows(settings: Mapping[str, Any]) -> Iterator[Row]:
    """Yield every setting; a configuration value as its type, then its fields."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and "type" in value:
            yield [name, value["type"]]
            yield from ([key, describe(key, v)] for key, v in value.items() if key != "type")
        else:
            yield [name, describe(name, value)]


def describe(name: str, value: Any) -> str:
    """Return a setting in words.

    >>> describe("exclude", []), describe("residual_correction", True), describe("macs", None)
    ('none', 'yes', 'not set')
    >>> describe("memory_limit", 2 * 10**9), describe("exclude", ["fc", "conv1"])
    ('2 GB', 'fc, conv1')
    """
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "memory_limit":
        return size(value)
    if isinstance(value, Mapping):
        given = [f"{key} {describe('', part)}" for key, part in value.items() if part is not None]
        return "; ".join(given) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(describe("", part) for part in value) or "none"
    return str(value)
