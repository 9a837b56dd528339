"""What a report says first: the network, four figures, warnings."""

from collections.abc import Callable

from entrim.records import Record
from entrim.report.markup import Markup, Part, bar, joined, tag
from entrim.report.numbers import percent, seconds, short, size, times
from entrim.report.story import Story

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
        bar(share),
        tag("span", fall, class_="fall"),
        **attributes,
    )


def warnings(story: Story) -> Markup | None:
    """Return what the user was warned about."""
    if not story.record.notes:
        return None
    return tag("ul", *(tag("li", note) for note in story.record.notes), class_="notes")
