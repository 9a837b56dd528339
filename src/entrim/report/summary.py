"""What a report says first: the network, four figures, warnings."""

from collections.abc import Callable

from entrim.records import Record
from entrim.report.markup import Markup, Part, bar, joined, tag
from entrim.report.numbers import percent, seconds, short, size, times
from entrim.report.story import Story


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
    """Return the card of the time, which says so where the passes differ more than the networks."""
    before, after = record.before, record.after
    fall = f"{seconds(before.latency)} → {seconds(after.latency)}, give or take "
    fall += seconds(after.spread / 2)
    share = after.latency / before.latency if before.latency else 1.0
    sure = abs(before.latency - after.latency) > (before.spread + after.spread) / 2
    doubt = "here" if sure else "here, within the noise"
    if after.latency <= before.latency:
        return _card(times(before.latency, after.latency), f"faster {doubt}", fall, share)
    slower = times(after.latency, before.latency)
    return _card(slower, f"slower {doubt}", fall, share, class_="slower" if sure else None)


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
