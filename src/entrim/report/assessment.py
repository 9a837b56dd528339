"""What a result means: an assessment from the hold-out images, and the next steps."""

from collections.abc import Sequence
from dataclasses import dataclass

from entrim.records import Estimate, Record
from entrim.report.numbers import percent
from entrim.report.repeat import command, resize
from entrim.report.report_data import ReportData

LEVELS = (
    ("same", 0.98, 0.01, "behaves almost like the original"),
    ("close", 0.93, 0.05, "is close to the original"),
    ("changed", 0.80, 0.20, "differs noticeably from the original"),
    ("broken", 0.00, float("inf"), "has lost much of what the original computes"),
)
"""Name of the level, its minimum agreement, its maximum error, and its description."""
WIDE = 0.15
"""Length of a confidence interval above which more images are recommended."""
SMALLER = 0.7
"""Fraction of the size that is proposed if the network is still like the original."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """The assessment of a result in one sentence."""

    level: str
    """"same", "close", "changed", "broken", or "unknown" without hold-out images."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """A recommended next step, with the text to copy, if there is any."""

    title: str
    code: str | None = None


def assess(record: Record) -> Assessment:
    """Return the assessment of a result, from its agreement or error on unseen images."""
    holdout = record.holdout
    found = None if holdout is None else holdout.agreement or holdout.error
    if holdout is None or found is None:
        return Assessment(
            level="unknown",
            text="Whether the network still behaves like the original is unknown: nothing was "
            "measured on unseen images.",
        )
    level, description = _level(found, is_agreement=holdout.agreement is not None)
    interval = f"95 % interval {percent(found.low)} to {percent(found.high)}"
    on = f"{holdout.images:,} unseen images"
    if holdout.agreement is not None:
        figure = f"it predicts the same class on {percent(found.value)} of {on} ({interval})"
    else:
        figure = f"the error of its outputs is {percent(found.value)} on {on} ({interval})"
    return Assessment(level=level, text=f"The pruned network {description}: {figure}.")


def _level(found: Estimate, *, is_agreement: bool) -> tuple[str, str]:
    for name, agreement, error, description in LEVELS:
        if found.value >= agreement if is_agreement else found.value <= error:
            return name, description
    return LEVELS[-1][0], LEVELS[-1][3]


def rank(data: ReportData) -> tuple[int, int]:
    """Return a key by which the best of several networks is the first.

    It is the smallest one that is at least close to the original, otherwise the largest of the best
    level.
    """
    order = ("close", "changed", "broken", "unknown")
    level = assess(data.record).level
    if level in ("same", "close"):
        return 0, data.record.after.macs
    return order.index(level), -data.record.after.macs


def next_steps(data: ReportData) -> list[Recommendation]:
    """Return what to do next, the most important step first."""
    record, level = data.record, assess(data.record).level
    steps = []
    if level in ("changed", "broken") and record.distilled is None:
        steps.append(Recommendation(title="Recover without labels", code=_distill(data)))
    if level == "broken":
        steps.append(Recommendation(title="Or prune less", code=_resize(data, 1 / SMALLER)))
    if level == "same":
        steps.append(Recommendation(title="Try a smaller network", code=_resize(data, SMALLER)))
    if level == "unknown" and not data.commands:
        code = "result = result.refresh(images)"
        steps.append(Recommendation(title="Measure it on unseen images", code=code))
    elif level == "unknown" or _is_uncertain(record):
        steps.append(Recommendation(title="Pass more images, so that the figures are more precise"))
    return [*steps, _load(data), _export(data)]


def _is_uncertain(record: Record) -> bool:
    holdout = record.holdout
    found = None if holdout is None else holdout.agreement or holdout.error
    return found is not None and found.high - found.low > WIDE


def _resize(data: ReportData, factor: float) -> str:
    """Return the command or call for another number of MACs, relative to the present one."""
    before, after = data.record.before, data.record.after
    share = round(min(0.95, factor * after.macs / max(before.macs, 1)), 3)
    out = f"{data.folder or 'small'}-{100 * share:.0f}"
    return resize(data.commands, data.record, "macs", share, out)


def _distill(data: ReportData) -> str:
    if not data.commands:
        return "better = entrim.distill(result)"
    return command(["entrim", "distill", data.folder, "--out", f"{data.folder}-recovered"])


def _export(data: ReportData) -> Recommendation:
    title = "Export to ONNX"
    if data.commands:
        words = ["entrim", "export", data.folder, "--onnx", f"{data.folder}.onnx"]
        return Recommendation(title=title, code=command(words))
    return Recommendation(
        title=title,
        code="from entrim.export.formats import to_onnx\n"
        'to_onnx(result.model, images).write("small.onnx")',
    )


def _load(data: ReportData) -> Recommendation:
    if not data.folder:
        return Recommendation(title="Save network, plan and record", code='result.save("small")')
    return Recommendation(
        title="Load the network in Python", code=f"entrim.load(model, {data.folder!r})"
    )


def plain_lines(steps: Sequence[Recommendation]) -> list[str]:
    """Return the steps as lines of text."""
    return [
        line
        for step in steps
        for line in (f"- {step.title}", *(f"    {code}" for code in (step.code or "").splitlines()))
    ]
