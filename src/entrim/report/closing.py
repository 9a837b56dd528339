"""What a report says last: the proof, the time, and how to repeat the run."""

from entrim.records import Record
from entrim.report import charts, repeat
from entrim.report.markup import Markup, folded, joined, table, tag
from entrim.report.numbers import power_of_ten, seconds
from entrim.report.story import Story


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
    calls = f"small = {repeat.call(record.settings)}"
    if record.distilled is not None:
        calls += f"\nbetter = {repeat.training(record.distilled.settings)}"
    shown.append(_code("In Python", calls))
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    chance = (
        " Nothing in this run was random."
        if _settled(record)
        else " This run drew random numbers: hand over the same generator to repeat it."
    )
    return joined(
        *shown,
        tag("p", f"With {versions}.{chance if not story.command else ''}"),
        folded(
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
