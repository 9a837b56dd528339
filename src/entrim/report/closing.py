"""The last sections of a report: verification, time, and how to reproduce the run."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from entrim.records import Record
from entrim.report import charts, repeat
from entrim.report.markup import Markup, Part, details, join, table, tag
from entrim.report.numbers import moment, power_of_ten, seconds, size
from entrim.report.report_data import ReportData


def proof(data: ReportData) -> Markup:
    """Return the verification of the pruned network."""
    values = data.record.proof
    return join(
        tag(
            "p",
            "The pruned network was compared, at its outputs and inside, with the original network "
            "in which removed channels are zero. Largest relative difference: ",
            tag("strong", power_of_ten(values["sliced"])),
            " after slicing, ",
            tag("strong", power_of_ten(values["final"])),
            f" with the new weights; the tolerance is {power_of_ten(values['tolerance'])}.",
        ),
        tag("figure", *(charts.proof(values, screen) for screen in charts.WIDTHS)),
    )


def distillation(data: ReportData) -> Markup | None:
    """Return the result of the distillation."""
    done = data.record.distilled
    return None if done is None else tag("p", f"{str(done)[:1].upper()}{str(done)[1:]}.")


def time_taken(data: ReportData) -> Markup | None:
    """Return the seconds by stage."""
    stages = {name: value for name, value in data.record.seconds.items() if value > 0}
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
        tag("p", f"{seconds(total)} in total."),
        tag("div", *parts, class_="stages", aria_hidden="true"),
        tag("ul", *names, class_="keys"),
    )


def repeat_section(data: ReportData) -> Markup:
    """Return commands, calls, environment and settings of the run."""
    record = data.record
    shown = []
    if data.commands:
        shown.append(_code("On the command line", map(repeat.command, data.commands)))
    shown.append(_code("In Python", repeat.calls(record)))
    settings: list[list[Part]] = [
        [name, describe(name, value)] for name, value in _flatten(record.settings)
    ]
    return join(
        *shown,
        table("Environment", ["what", "value"], _circumstances(record), class_="wrap"),
        details(
            "All settings",
            table("Settings of the run", ["setting", "value"], settings, class_="wrap"),
        ),
    )


def _circumstances(record: Record) -> list[list[Part]]:
    """Return what else the result depends on, as far as the record contains it."""
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    rows: list[tuple[str, str | int | None]] = [
        ("finished", moment(record.date)),
        ("versions", versions),
        ("threads", record.threads),
        ("seed", _seed(record)),
    ]
    for done in (*record.earlier, record.distilled):
        if done is not None:
            rows.append(("distillation finished", moment(done.date)))
            rows.append(("seed of the distillation", done.settings.get("seed")))
    rows.append(("checksum of the original network", record.original))
    rows.append(("checksum of the images", record.images_checksum))
    return [[name, value] for name, value in rows if value is not None]


def _seed(record: Record) -> str:
    return "no random numbers used" if record.seed is None else str(record.seed)


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
    """Return lines of code, each in its own element, so that wrapped lines are indented."""
    code = (tag("code", line) for line in lines)
    return join(
        tag("h3", title),
        tag("pre", *code, tabindex=0, role="region", aria_label=title),
    )
