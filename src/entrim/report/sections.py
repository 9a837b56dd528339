"""The sections of a report, each from the story alone; one without content is None."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from entrim.records import GroupRecord, Record
from entrim.report import charts, repeat, ribbon
from entrim.report.markup import Markup, Part, joined, table, tag
from entrim.report.numbers import percent, power_of_ten, seconds, short, size, times
from entrim.report.story import Layer, Story

WORDS = {
    "params": "parameters",
    "macs": "MACs",
    "bytes": "bytes",
    "latency": "a pass",
    "max_error": "error",
}
_NOISE = 1.05
"""Times that differ by less are called the same."""


def head(story: Story) -> Markup:
    """Return the title, the sentence that says it all, and four figures."""
    record = story.record
    before, after = record.before, record.after
    sentence = joined(
        "keeps ",
        tag("strong", percent(after.params / max(before.params, 1))),
        " of its parameters and ",
        tag("strong", percent(after.macs / max(before.macs, 1))),
        f" of its multiplications, chosen with {record.images:,} unlabelled images.",
    )
    return tag(
        "header",
        tag("p", "entrim report", class_="brand"),
        tag("h1", record.model),
        tag("p", sentence, class_="lead"),
        tag(
            "ul",
            _figure("parameters", before.params, after.params, short),
            _figure("MACs an image", before.macs, after.macs, short),
            _figure("bytes in memory", before.bytes, after.bytes, size),
            _latency(record),
            class_="figures",
        ),
    )


def _figure(word: str, before: int, after: int, write: Callable[[int | float], str]) -> Markup:
    fall = f"{write(before)} → {write(after)}"
    return _card(times(before, after), f"fewer {word}", fall, after / max(before, 1))


def _latency(record: Record) -> Markup:
    before, after = record.before.latency, record.after.latency
    fall = f"{seconds(before)} → {seconds(after)}, give or take {seconds(record.after.spread / 2)}"
    share = after / before if before else 1.0
    if max(before, after) < _NOISE * min(before, after):
        return _card("1×", "as fast here", fall, share)
    if after < before:
        return _card(times(before, after), "faster here", fall, share)
    return _card(times(after, before), "slower here", fall, share, class_="slower")


def _card(big: str, word: str, fall: str, share: int | float, **attributes: Part) -> Markup:
    return tag(
        "li",
        tag("span", big, class_="big"),
        tag("span", word, class_="what"),
        _bar(share),
        tag("span", fall, class_="fall"),
        **attributes,
    )


def _bar(share: int | float) -> Markup:
    """Return a bar beside a figure that says the same."""
    fill = tag("span", class_="fill", style=f"width:{100 * min(share, 1):.1f}%")
    return tag("span", fill, class_="bar", aria_hidden="true")


def warnings(story: Story) -> Markup | None:
    """Return what the user was warned about."""
    if not story.record.notes:
        return None
    return tag("ul", *(tag("li", note) for note in story.record.notes), class_="notes")


def network(story: Story) -> Markup | None:
    """Return the ribbon, and the same as a table."""
    layers = story.layers
    if not layers:
        return None
    rooted = " Its height is the square root of the width." if ribbon.rooted(layers) else ""
    return joined(
        tag(
            "p",
            "Each step is a layer, in the order in which the network holds them. The pale ribbon is "
            f"what it was, the strong one what is left.{rooted}",
        ),
        tag("figure", ribbon.across(layers), ribbon.down(layers), _legend()),
        _folded(
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


def tradeoff(story: Story) -> Markup | None:
    """Return the curve of the budget with the point that was taken."""
    points = story.record.tradeoff
    if not points:
        return None
    budget = story.record.settings.get("budget") or {}
    kind = next((name for name in ("params", "macs", "bytes") if budget.get(name)), "params")
    asked = ", ".join(
        f"{_asked(key, v)} {WORDS[key]}" for key, v in budget.items() if v is not None
    )
    text = tag(
        "p",
        "Every group was cut on its own to see what that does to the outputs; the curve adds this "
        "damage up on the way from the whole network, at the right, to the narrowest. "
        + (f"Asked for: {asked}." if asked else "No budget was named, so the damage decided."),
    )
    return joined(
        tag(
            "div", text, tag("figure", charts.tradeoff(points, kind, WORDS[kind])), class_="beside"
        ),
        _folded(
            "The points as a table",
            table(
                "Sizes and foreseen damage",
                ["parameters", "MACs", "bytes", "damage", "taken"],
                [
                    [
                        f"{p.params:,}",
                        f"{p.macs:,}",
                        f"{p.bytes:,}",
                        f"{p.damage:.3g}",
                        _tick(p.taken),
                    ]
                    for p in points
                ],
            ),
        ),
    )


def _asked(kind: str, value: int | float) -> str:
    if kind == "latency":
        return f"at most {seconds(value)}"
    share = kind == "max_error" or isinstance(value, float)
    return f"at most {percent(value) if share else f'{value:,}'}"


def _tick(taken: bool) -> str:
    return "taken" if taken else ""


def choices(story: Story) -> Markup | None:
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
    return joined(tag("p", lines), tag("div", *map(_choice, groups), class_="cards"))


def _choice(group: GroupRecord) -> Markup:
    shown = [charts.barcode(group.kept, group.channels)]
    if group.w:
        shown.append(charts.importance(group.w, set(group.kept)))
    if len(group.trace) > 1:
        shown.append(charts.descent(group.trace, group.certificate))
    more = "" if len(group.layers) == 1 else f" Shared by {_some(group.layers)}."
    steady = "" if group.stability is None else f" Stability {group.stability:.2f}."
    return tag(
        "article",
        tag("h3", group.name),
        tag("p", tag("strong", len(group.kept)), f" of {group.channels} channels", class_="of"),
        *shown,
        tag("p", f"{group.how[:1].upper()}{group.how[1:]}.{more}{steady}", class_="small"),
        class_="card",
    )


def _some(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more layers" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def refits(story: Story) -> Markup | None:
    """Return how well every layer does its work with fewer inputs."""
    layers = story.record.layers
    if not layers:
        return None
    most = _round_up(max(layer.error for layer in layers))
    rows: list[list[Part]] = [
        [
            layer.layer,
            _bar(layer.error / most),
            percent(layer.error),
            f"{layer.columns:,}",
            f"{layer.rows:,}",
        ]
        for layer in layers
    ]
    return joined(
        tag(
            "p",
            "Each layer was solved again on the channels that stay. The bar is the squared error of "
            "its outputs relative to their variance: 0 is perfect, 100 % is no better than the mean.",
        ),
        table(
            "Error of every refitted layer, in the order of the rebuild",
            ["layer", f"0 to {percent(most)}", "error", "inputs", "equations"],
            rows,
            class_="bars",
        ),
    )


def _round_up(value: int | float) -> float:
    """Return the next of 1, 2, 5, 10, 20, 50, ... per mille, so that bars have a scale."""
    steps = (digit * 10.0**power for power in range(-3, 9) for digit in (1, 2, 5))
    return next((step for step in steps if step >= value), value)


def frozen(story: Story) -> Markup | None:
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


def proof(story: Story) -> Markup:
    """Return the surgery's proof."""
    values = story.record.proof
    return joined(
        tag(
            "p",
            "Before the smaller network was handed out it was compared, at the outputs and inside, "
            "with the original computing with zeros in place of the channels that went: ",
            tag("strong", power_of_ten(values["sliced"])),
            " apart after slicing, ",
            tag("strong", power_of_ten(values["final"])),
            f" with the new weights; {power_of_ten(values['tolerance'])} is allowed.",
        ),
        tag("figure", charts.proof(values)),
    )


def distilled(story: Story) -> Markup | None:
    """Return what the training towards the original has done."""
    done = story.record.distilled
    return None if done is None else tag("p", f"{str(done)[:1].upper()}{str(done)[1:]}.")


def time_taken(story: Story) -> Markup | None:
    """Return the seconds by stage."""
    stages = {name: value for name, value in story.record.seconds.items() if value > 0}
    total = sum(stages.values())
    if not total:
        return None
    parts = (
        tag("span", class_=f"part p{k % 7}", style=f"width:{100 * value / total:.2f}%")
        for k, value in enumerate(stages.values())
    )
    names = (
        tag("li", tag("span", class_=f"key p{k % 7}"), f"{name} {seconds(value)}")
        for k, (name, value) in enumerate(stages.items())
    )
    return joined(
        tag("p", f"{seconds(total)} altogether."),
        tag("div", *parts, class_="stages", aria_hidden="true"),
        tag("ul", *names, class_="keys"),
    )


def again(story: Story) -> Markup:
    """Return what repeats the run: command, call, versions, settings."""
    record = story.record
    shown = []
    if story.command:
        shown.append(_code("On the command line", repeat.command(story.command)))
    shown.append(_code("In Python", f"small = {repeat.call(record.settings)}"))
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    chance = (
        " Nothing in this run was random."
        if _settled(record)
        else " This run drew random numbers: hand over the same generator to repeat it."
    )
    return joined(
        *shown,
        tag("p", f"With {versions}.{chance if not story.command else ''}"),
        _folded(
            "Every setting",
            table(
                "Settings as they were decided",
                ["setting", "value"],
                [[name, repr(value)] for name, value in record.settings.items()],
                class_="wrap",
            ),
        ),
    )


def _settled(record: Record) -> bool:
    settings = record.settings
    drawn = settings.get("positions"), settings.get("resamples")
    return not any(drawn) and settings.get("selector") != "random"


def _code(title: str, text: str) -> Markup:
    return joined(
        tag("h3", title),
        tag("pre", tag("code", text), tabindex=0, role="region", aria_label=title),
    )


def _folded(title: str, content: Markup) -> Markup:
    return tag("details", tag("summary", title), content)
