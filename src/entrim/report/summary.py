"""The first part of a report: the network, its sizes before and after, and warnings."""

from collections.abc import Callable

from entrim.records import Record, Score
from entrim.report.markup import Markup, Part, bar, join, tag
from entrim.report.numbers import percent, seconds, short, size, times
from entrim.report.report_data import ReportData


def head(data: ReportData) -> Markup:
    """Return the title, a summary sentence, and the sizes before and after."""
    record = data.record
    ended = record.date if record.distilled is None else record.distilled.date
    before, after = record.before, record.after
    sentence = join(
        "keeps ",
        tag("strong", percent(after.params / max(before.params, 1))),
        " of its parameters and ",
        tag("strong", percent(after.macs / max(before.macs, 1))),
        f" of its multiply-accumulates (MACs), selected with {record.images:,} unlabeled images.",
        None if record.error is None else _error_sentence(record.error),
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
            _figure("MACs per image", before.macs, after.macs, short),
            _figure("bytes in memory", before.bytes, after.bytes, size),
            _latency(record),
            class_="figures",
        ),
    )


def _error_sentence(error: float) -> Markup:
    return join(
        " On these images, the squared error of its outputs is ",
        tag("strong", percent(error)),
        " of their variance.",
    )


def _score(score: Score) -> Markup:
    """Return the card of the metric, with a bar if the ratio of the scores is meaningful."""
    change = f"{score.before:.4g} → {score.after:.4g}" + (f", on {score.on}" if score.on else "")
    share = score.after / score.before if score.before > 0 and score.after >= 0 else None
    return _card(f"{score.after:.4g}", score.name, change, share, class_="score")


def _figure(word: str, before: int, after: int, write: Callable[[int | float], str]) -> Markup:
    change = f"{write(before)} → {write(after)}"
    return _card(times(before, after), f"fewer {word}", change, after / max(before, 1))


def _latency(record: Record) -> Markup:
    """Return the card of the latency, and whether the difference is within the noise."""
    before, after = record.before, record.after
    change = f"{seconds(before.latency)} → {seconds(after.latency)} ± "
    change += f"{seconds(after.deviation / 2)}, for {after.batch} image{'s' * (after.batch != 1)}"
    share = after.latency / before.latency if before.latency else 1.0
    significant = abs(before.latency - after.latency) > (before.deviation + after.deviation) / 2
    where = "here" if significant else "here, within the noise"
    if after.latency <= before.latency:
        return _card(times(before.latency, after.latency), f"faster {where}", change, share)
    slower = times(after.latency, before.latency)
    return _card(slower, f"slower {where}", change, share, class_="slower" if significant else None)


def _card(big: str, word: str, change: str, share: float | None, **attributes: Part) -> Markup:
    return tag(
        "li",
        tag("span", big, class_="big"),
        tag("span", word, class_="what"),
        None if share is None else bar(share),
        tag("span", change, class_="fall"),
        **attributes,
    )


def warnings(data: ReportData) -> Markup | None:
    """Return the warnings of the run."""
    if not data.record.notes:
        return None
    return tag("ul", *(tag("li", note) for note in data.record.notes), class_="notes")
