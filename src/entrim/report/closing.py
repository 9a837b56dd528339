"""What a report says last: the proof, the time, and how to repeat the run."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from entrim.records import Record
from entrim.report import charts, repeat
from entrim.report.markup import Markup, Part, details, join, table, tag
from entrim.report.numbers import moment, power_of_ten, seconds, size
from entrim.report.report_data import ReportData


def proof(story: ReportData) -> Markup:
    """Return the surgery's proof."""
    values = story.record.proof
    return join(
        tag(
            "p",
            "Before the smaller network was handed out it was compared, at the outputs and inside, "
            "with the original computing with zeros in place of the channels that went: ",
            tag("strong", power_of_ten(values["sliced"])),
            " apart after slicing, ",
            tag("strong", power_of_ten(values["final"])),
            f" with the new weights; {power_of_ten(values['tolerance'])} is allowed.",
        ),
        tag("figure", *(charts.proof(values, screen) for screen in charts.WIDTHS)),
    )


def distilled(story: ReportData) -> Markup | None:
    """Return what the training towards the original has done."""
    done = story.record.distilled
    return None if done is None else tag("p", f"{str(done)[:1].upper()}{str(done)[1:]}.")


def time_taken(story: ReportData) -> Markup | None:
    """Return the seconds by stage."""
    stages = {name: value for name, value in story.record.seconds.items() if value > 0}
    total = sum(stages.values())
    if not total:
        return None
    parts = (
        tag("span", class_=f"part p{k % 8}", style=f"width:{100 * value / total:.2f}%")
        for k, value in enumerate(stages.values())
    )
    names = (
        tag("li", tag("span", class_=f"key p{k % 8}"), f"{name} {seconds(value)}")
        for k, (name, value) in enumerate(stages.items())
    )
    return join(
        tag("p", f"{seconds(total)} altogether."),
        tag("div", *parts, class_="stages", aria_hidden="true"),
        tag("ul", *names, class_="keys"),
    )


def repeat_section(story: ReportData) -> Markup:
    """Return what repeats the run: commands, calls, circumstances, settings."""
    record = story.record
    shown = []
    if story.commands:
        shown.append(_code("On the command line", map(repeat.command, story.commands)))
    shown.append(_code("In Python", repeat.calls(record)))
    settings: list[list[Part]] = [
        [name, describe(name, value)] for name, value in _flatten(record.settings)
    ]
    return join(
        *shown,
        table("What it ran with", ["what", "value"], _circumstances(record), class_="wrap"),
        details(
            "Every setting",
            table("Settings as they were decided", ["setting", "value"], settings, class_="wrap"),
        ),
    )


def _circumstances(record: Record) -> list[list[Part]]:
    """Return what else the result depends on, as far as the record knows it."""
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    rows: list[tuple[str, str | int | None]] = [
        ("ended", moment(record.date)),
        ("versions", versions),
        ("threads", record.threads),
        ("random numbers", _chance(record)),
    ]
    for done in (*record.earlier, record.distilled):
        if done is not None:
            rows.append(("distillation ended", moment(done.date)))
            rows.append(("its random numbers", f"from seed {done.settings.get('seed')}"))
    rows.append(("checksum of the network before", record.original))
    rows.append(("checksum of the images", record.images_checksum))
    return [[name, value] for name, value in rows if value is not None]


def _chance(record: Record) -> str:
    return "none were drawn" if record.seed is None else f"from seed {record.seed}"


def _flatten(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield every setting; a configuration value as its type, then its fields."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and "type" in value:
            yield name, value["type"]
            yield from ((key, entry) for key, entry in value.items() if key != "type")
        else:
            yield name, value


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


def _code(title: str, lines: Iterable[str]) -> Markup:
    """Return lines of code, each an element of its own: a long one is indented where it breaks."""
    code = (tag("code", line) for line in lines)
    return join(
        tag("h3", title),
        tag("pre", *code, tabindex=0, role="region", aria_label=title),
    )
