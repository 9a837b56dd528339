"""The whole page: sections in order, one style sheet, nothing from outside."""

import os
from importlib.resources import files
from pathlib import Path

from entrim.errors import SaveError
from entrim.report import closing, sections, summary
from entrim.report.markup import Markup, join, tag
from entrim.report.report_data import ReportData, read
from entrim.storage import atomic

FILE = "report.html"
_TITLE = ", made smaller by entrim"
_BEGINNING = 4096
"""The bytes in which the title of a page is."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""A browser loads nothing and runs nothing, whatever a layer is called."""
_SECTIONS = {
    "warnings": ("Warnings", summary.warnings),
    "network": ("The network", sections.network),
    "tradeoff": ("The trade-off", sections.tradeoff),
    "choices": ("Which channels stay", sections.choices),
    "refits": ("How well layers were refitted", sections.refits),
    "distilled": ("Distillation", closing.distilled),
    "frozen": ("What had to stay", sections.frozen),
    "proof": ("The proof", closing.proof),
    "time": ("Where the time went", closing.time_taken),
    "again": ("To repeat it", closing.repeat_section),
}


def html(story: ReportData) -> str:
    """Return the report as one page that works offline.

    >>> import tempfile, torch, entrim
    >>> from entrim.report import html, read
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> folder = tempfile.mkdtemp()
    >>> entrim.sparsify(net, torch.randn(99, 4), widths={"0": 4}).save(folder)
    >>> html(read(folder))[:15]
    '<!doctype html>'
    """
    made = {key: (title, draw(story)) for key, (title, draw) in _SECTIONS.items()}
    shown = {key: (title, content) for key, (title, content) in made.items() if content is not None}
    body = tag(
        "body",
        tag("a", "Skip to the network", href="#network", class_="skip"),
        summary.head(story),
        tag(
            "nav",
            *(tag("a", title, href=f"#{key}") for key, (title, _) in shown.items()),
            aria_label="Sections",
        ),
        tag("main", *(_section(key, *what) for key, what in shown.items())),
        tag("footer", tag("p", f"Made by entrim from {story.folder}")),
    )
    return "<!doctype html>\n" + tag("html", _head(story), body, lang="en") + "\n"


def write(folder: str | os.PathLike[str], file: str | os.PathLike[str] | None = None) -> Path:
    """Write the report of the run saved in `folder`, and return the file.

    `file` is by default report.html in the folder.

    >>> import tempfile, torch, entrim
    >>> from entrim.report import write
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> folder = tempfile.mkdtemp()
    >>> entrim.sparsify(net, torch.randn(99, 4), widths={"0": 4}).save(folder)
    >>> write(folder).name
    'report.html'
    """
    target = Path(folder) / FILE if file is None else Path(file)
    page = html(read(folder))
    try:
        atomic.write(target, page.encode())
    except OSError as error:
        raise SaveError(
            f"{target} cannot be written ({error.strerror}): name another file"
        ) from error
    return target


def is_report(file: Path) -> bool:
    """Whether `file` is a page that `write` wrote."""
    try:
        with file.open("rb") as stream:
            return _TITLE.encode() in stream.read(_BEGINNING)
    except OSError:
        return False


def _head(story: ReportData) -> Markup:
    style = files("entrim.report").joinpath("style.css").read_text(encoding="utf-8")
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{story.record.model}{_TITLE}"),
        tag("style", Markup(style)),
    )


def _section(key: str, title: str, content: Markup) -> Markup:
    return tag("section", join(tag("h2", title), content), id=key)
