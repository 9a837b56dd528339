"""What a report says first: the network, the figures before and after, warnings."""

from collections.abc import Callable

from entrim.records import Record, Score
from entrim.report.markup import Markup, Part, bar, join, tag
from entrim.report.numbers import percent, seconds, short, size, times
from entrim.report.report_data import ReportData


def head(story: ReportData) -> Markup:
    """Return the title, the sentence that says it all, and the figures before and after."""
    record = story.record
    ended = record.date if record.distilled is None else record.distilled.date
    before, after = record.before, record.after
    sentence = join(
        "keeps ",
        tag("strong", percent(after.params / max(before.params, 1))),
        " of its parameters and ",
        tag("strong", percent(after.macs / max(before.macs, 1))),
        f" of its multiply-accumulates (MACs), chosen with {record.images:,} unlabelled images.",
        None if record.error is None else _apart(record.error),
    )
    return tag(
        "header",
        tag("p", "entrim report", f" · {ended[:10]}" if ended else None, class_="brand"),
        tag("h1", record.model),
        tag("p", sentence, class_="lead"),
        tag(
            "ul",
            None if record.score is None else _score(record.score),
            _figure("parameters", before.params, after.params, short),
            _figure("MACs an image", before.macs, after.macs, short),
            _figure("bytes in memory", before.bytes, after.bytes, size),
            _latency(record),
            class_="figures",
        ),
    )


def _apart(error: float) -> Markup:
    return join(
        " On these its outputs are ",
        tag("strong", percent(error)),
        " of their variance away from the original's.",
    )


def _score(score: Score) -> Markup:
    """Return the card of the metric; its bar is the share that is left, where that means one."""
    fall = f"{score.before:.4g} → {score.after:.4g}" + (f", on {score.on}" if score.on else "")
    share = score.after / score.before if score.before > 0 and score.after >= 0 else None
    return _card(f"{score.after:.4g}", score.name, fall, share, class_="score")


def _figure(word: str, before: int, after: int, write: Callable[[int | float], str]) -> Markup:
    fall = f"{write(before)} → {write(after)}"
    return _card(times(before, after), f"fewer {word}", fall, after / max(before, 1))


def _latency(record: Record) -> Markup:
    """Return the card of the time, which says so where the passes differ more than the networks."""
    before, after = record.before, record.after
    fall = f"{seconds(before.latency)} → {seconds(after.latency)}, give or take "
    fall += f"{seconds(after.deviation / 2)}, for {after.batch} image{'s' * (after.batch != 1)}"
    share = after.latency / before.latency if before.latency else 1.0
    sure = abs(before.latency - after.latency) > (before.deviation + after.deviation) / 2
    doubt = "here" if sure else "here, within the noise"
    if after.latency <= before.latency:
        return _card(times(before.latency, after.latency), f"faster {doubt}", fall, share)
    slower = times(after.latency, before.latency)
    return _card(slower, f"slower {doubt}", fall, share, class_="slower" if sure else None)


def _card(big: str, word: str, change: str, share: float | None, **attributes: Part) -> Markup:
    return tag(
        "li",
        tag("span", big, class_="big"),
        tag("span", word, class_="what"),
        None if share is None else bar(share),
        tag("span", change, class_="fall"),
        **attributes,
    )


def warnings(story: ReportData) -> Markup | None:
    """Return what the user was warned about."""
    if not story.record.notes:
        return None
    return tag("ul", *(tag("li", note) for note in story.record.notes), class_="notes")
