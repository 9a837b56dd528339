"""What was cut, chosen, refitted and frozen; a section without content is None."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from entrim.records import GroupRecord, TradeOff
from entrim.report import charts, ribbon
from entrim.report.markup import Markup, Part, bar, details, join, table, tag
from entrim.report.numbers import percent, seconds
from entrim.report.report_data import Layer, ReportData

WORDS = {
    "params": "parameters",
    "macs": "MACs",
    "bytes": "bytes",
    "latency": "a pass",
    "max_error": "error",
}


def network(story: ReportData) -> Markup | None:
    """Return the ribbon, and the same as a table."""
    layers = story.layers
    if not layers:
        return None
    rooted = " Its height is the square root of the width." if ribbon.rooted(layers) else ""
    return join(
        tag(
            "p",
            "Each step is a layer, in the order in which the network holds them. The pale ribbon "
            f"is what it was, the strong one what is left.{rooted}",
        ),
        tag("figure", ribbon.across(layers), ribbon.down(layers), _legend()),
        details(
            "Every layer as a table",
            table(
                "Channels of every layer before and after",
                ["layer", "before", "after", "stays", "note"],
                [_layer_row(layer) for layer in layers],
            ),
        ),
    )


def _legend() -> Markup:
    return tag(
        "figcaption",
        tag("span", class_="key kept"),
        "kept ",
        tag("span", class_="key gone"),
        "cut away ",
        tag("span", class_="key whole"),
        "kept whole",
        class_="legend",
    )


def _layer_row(layer: Layer) -> list[Part]:
    note = "; ".join(layer.reasons) or ("" if layer.looked_at else "left alone, as told")
    stays = percent(layer.after / max(layer.before, 1))
    return [layer.name, layer.before, layer.after, stays, note]


def tradeoff(story: ReportData) -> Markup | None:
    """Return the curve of the budget with the point that was taken."""
    points = story.record.tradeoff
    if not points:
        return None
    budget = story.record.settings.get("budget") or {}
    kind = next((name for name in ("params", "macs", "bytes") if budget.get(name)), "params")
    asked = ", ".join(
        f"{_requested(key, v)} {WORDS[key]}"
        for key, v in budget.items()
        if key in WORDS and v is not None
    )
    text = tag(
        "p",
        "Every group was cut on its own to see what that does to the outputs; the curve adds this "
        "damage up on the way from the whole network, at the right, to the narrowest. "
        + (f"Asked for: {asked}." if asked else "No budget was named, so the damage decided."),
    )
    return join(
        tag("div", text, tag("figure", *_both(points, kind)), class_="beside"),
        details(
            "The points as a table",
            table(
                "Sizes and foreseen damage",
                ["parameters", "MACs", "bytes", "damage", "taken"],
                [
                    [
                        f"{p.params:,}",
                        f"{p.macs:,}",
                        f"{p.bytes:,}",
                        f"{p.divergence:.3g}",
                        _tick(p.selected),
                    ]
                    for p in points
                ],
            ),
        ),
    )


def _both(points: Sequence[TradeOff], resource: str) -> list[Markup]:
    return [charts.tradeoff(points, resource, WORDS[resource], wide) for wide in charts.WIDTHS]


def _requested(resource: str, value: int | float) -> str:
    if resource == "latency":
        return f"at most {seconds(value)}"
    share = resource == "max_error" or isinstance(value, float)
    return f"at most {percent(value) if share else f'{value:,}'}"


def _tick(selected: bool) -> str:
    return "taken" if selected else ""


def choices(story: ReportData) -> Markup | None:
    """Return a card for every group: which channels stay, their importance, the way down."""
    groups = story.record.groups
    if not groups:
        return None
    lines = "Every mark is a channel; strong ones stay."
    if any(group.w for group in groups):
        lines += (
            " Below: the importance w of every channel, sorted, and the objective F from step to "
            "step. The certificate is the optimality residual: 0 is a perfect minimum."
        )
    usual, count = Counter(group.reason for group in groups).most_common(1)[0]
    if count > 1:
        whole = count == len(groups)
        alike = "All were chosen alike" if whole else "Where a card does not say how, as usual"
        lines += f" {alike} ({usual})."
    cards = (_choice(group, usual if count > 1 else None) for group in groups)
    return join(tag("p", lines), tag("div", *cards, class_="cards"))


def _choice(group: GroupRecord, usual: str | None) -> Markup:
    """Return the card of one group; how it was chosen is said where that is not as `usual`."""
    shown = [charts.barcode(group.kept, group.channels)]
    if group.w:
        shown.append(charts.importance(group.w, set(group.kept)))
    if len(group.trace) > 1:
        shown.append(charts.descent(group.trace, group.optimality_residual))
    notes = [] if group.reason == usual else [f"{group.reason[:1].upper()}{group.reason[1:]}."]
    if len(group.layers) > 1:
        notes.append(f"Shared by {_some(group.layers)}.")
    if group.stability is not None:
        notes.append(f"Stability {group.stability:.2f}.")
    return tag(
        "article",
        tag("h3", group.name),
        tag("p", tag("strong", len(group.kept)), f" of {group.channels} channels", class_="of"),
        *shown,
        tag("p", " ".join(notes), class_="small") if notes else None,
        class_="card",
    )


def _some(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more layers" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def refits(story: ReportData) -> Markup | None:
    """Return how well every layer does its work with fewer inputs."""
    layers = story.record.layers
    if not layers:
        return None
    most = _round_up(max(layer.error for layer in layers))
    rows: list[list[Part]] = [
        [
            layer.layer,
            bar(layer.error / most),
            percent(layer.error),
            f"{layer.columns:,}",
            f"{layer.rows:,}",
        ]
        for layer in layers
    ]
    scale = percent(most)
    return join(
        tag(
            "p",
            "Each layer was solved again on the channels that stay. The bar is the squared error "
            "of its outputs relative to their variance: 0 is perfect, 100 % is no better than the "
            "mean.",
        ),
        table(
            f"Error of every refitted layer, in the order of the rebuild; bars end at {scale}",
            ["layer", f"0 to {scale}", "error", "inputs", "equations"],
            rows,
            class_="bars",
        ),
    )


def _round_up(value: int | float) -> float:
    """Return the next of 1, 2, 5, 10, 20, 50, ... per mille, so that bars have a scale."""
    steps = (digit * 10.0**power for power in range(-3, 9) for digit in (1, 2, 5))
    return next((step for step in steps if step >= value), value)


def frozen(story: ReportData) -> Markup | None:
    """Return what had to stay, by reason."""
    if not story.record.frozen:
        return None
    reasons: dict[str, list[str]] = defaultdict(list)
    for layer, channels, reason in story.record.frozen:
        reasons[reason].append(f"{layer} ({channels})")
    return table(
        "Channels that had to stay, and why",
        ["because", "layers (channels)"],
        [[reason, ", ".join(layers)] for reason, layers in reasons.items()],
        class_="wrap",
    )
