"""Sections about widths, kept channels, refitted layers and frozen channels; None if empty."""

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
    "latency": "per pass",
    "max_error": "error",
}


def network(data: ReportData) -> Markup | None:
    """Return the layers as a ribbon and as a table."""
    layers = data.layers
    if not layers:
        return None
    note = " Heights are square roots of widths." if ribbon.uses_square_roots(layers) else ""
    return join(
        tag(
            "p",
            "Each step is a layer, in the order of the network's modules. The pale ribbon is the "
            f"original width, the strong one the width after pruning.{note}",
        ),
        tag("figure", ribbon.across(layers), ribbon.down(layers), _legend()),
        details(
            "Every layer as a table",
            table(
                "Channels of every layer before and after",
                ["layer", "before", "after", "kept", "note"],
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
        "removed ",
        tag("span", class_="key whole"),
        "all channels kept",
        class_="legend",
    )


def _layer_row(layer: Layer) -> list[Part]:
    note = "; ".join(layer.reasons) or ("" if layer.included else "excluded")
    kept = percent(layer.after / max(layer.before, 1))
    return [layer.name, layer.before, layer.after, kept, note]


def tradeoff(data: ReportData) -> Markup | None:
    """Return the trade-off curve with the selected point."""
    points = data.record.tradeoff
    if not points:
        return None
    budget = data.record.settings.get("budget") or {}
    kind = next((name for name in ("params", "macs", "bytes") if budget.get(name)), "params")
    limits = ", ".join(
        f"{_limit_text(key, v)} {WORDS[key]}"
        for key, v in budget.items()
        if key in WORDS and v is not None
    )
    text = tag(
        "p",
        "Every group was pruned alone to measure the divergence of the outputs; the curve shows "
        "the sum of these divergences, from the original network on the right to the narrowest. "
        + (f"Budget: {limits}." if limits else "Without a budget, the knee of the curve is used."),
    )
    return join(
        tag("div", text, tag("figure", *_both(points, kind)), class_="beside"),
        details(
            "The points as a table",
            table(
                "Sizes and predicted divergence",
                ["parameters", "MACs", "bytes", "divergence", "selected"],
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


def _limit_text(resource: str, value: int | float) -> str:
    if resource == "latency":
        return f"at most {seconds(value)}"
    share = resource == "max_error" or isinstance(value, float)
    return f"at most {percent(value) if share else f'{value:,}'}"


def _tick(selected: bool) -> str:
    return "selected" if selected else ""


def choices(data: ReportData) -> Markup | None:
    """Return a card for every group: kept channels, importances, and the descent of the solver."""
    groups = data.record.groups
    if not groups:
        return None
    lines = "Every mark is a channel; strong marks are kept."
    if any(group.w for group in groups):
        lines += (
            " Below: the importance w of every channel, sorted, and the objective F after each "
            "step. An optimality residual of 0 is an exact minimum."
        )
    usual, count = Counter(group.reason for group in groups).most_common(1)[0]
    if count > 1:
        every = count == len(groups)
        text = "All were selected in the same way" if every else "Unless a card states otherwise"
        lines += f" {text}: {usual}."
    cards = (_choice(group, usual if count > 1 else None) for group in groups)
    return join(tag("p", lines), tag("div", *cards, class_="cards"))


def _choice(group: GroupRecord, usual: str | None) -> Markup:
    """Return the card of one group, with the reason of its selection if it is not the `usual`."""
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


def refits(data: ReportData) -> Markup | None:
    """Return the error of every refitted layer."""
    layers = data.record.layers
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
            "Each layer was fitted again on the kept channels. The bar is the squared error of its "
            "outputs relative to their variance: 0 % is exact, 100 % is no better than the mean.",
        ),
        table(
            f"Error of every refitted layer, in order; the bars end at {scale}",
            ["layer", f"0 to {scale}", "error", "inputs", "equations"],
            rows,
            class_="bars",
        ),
    )


def _round_up(value: int | float) -> float:
    """Return the next of 0.001, 0.002, 0.005, 0.01, ..., the end of the bars."""
    steps = (digit * 10.0**power for power in range(-3, 9) for digit in (1, 2, 5))
    return next((step for step in steps if step >= value), value)


def frozen_channels(data: ReportData) -> Markup | None:
    """Return the frozen channels by reason."""
    if not data.record.frozen:
        return None
    reasons: dict[str, list[str]] = defaultdict(list)
    for layer, channels, reason in data.record.frozen:
        reasons[reason].append(f"{layer} ({channels})")
    return table(
        "Channels that cannot be pruned, and why",
        ["reason", "layers (channels)"],
        [[reason, ", ".join(layers)] for reason, layers in reasons.items()],
        class_="wrap",
    )
