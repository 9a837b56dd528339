"""The page: sections in order and one style sheet, self-contained."""

import os
from importlib.resources import files
from pathlib import Path

from entrim.errors import SaveError
from entrim.report import closing, sections, summary
from entrim.report.markup import Markup, join, tag
from entrim.report.report_data import ReportData, read
from entrim.storage import atomic

FILE = "report.html"
_TITLE = ", pruned by entrim"
_BEGINNING = 4096
"""The first bytes of a page; they contain its title."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""The browser loads and executes nothing, whatever the names of layers contain."""
_SECTIONS = {
    "warnings": ("Warnings", summary.warnings),
    "network": ("The network", sections.network),
    "tradeoff": ("The trade-off", sections.tradeoff),
    "choices": ("Kept channels", sections.choices),
    "refits": ("Reconstruction of the layers", sections.refits),
    "distilled": ("Distillation", closing.distillation),
    "frozen": ("Frozen channels", sections.frozen_channels),
    "proof": ("Verification", closing.proof),
    "time": ("Time", closing.time_taken),
    "again": ("Reproduce", closing.repeat_section),
}


def html(data: ReportData) -> str:
    """Return the report as one HTML page without external resources.

    >>> import tempfile, torch, entrim
    >>> from entrim.report import html, read
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> folder = tempfile.mkdtemp()
    >>> entrim.sparsify(net, torch.randn(99, 4), entrim.Widths({"0": 4})).save(folder)
    >>> html(read(folder))[:15]
    '<!doctype html>'
    """
    sections_of = {key: (title, draw(data)) for key, (title, draw) in _SECTIONS.items()}
    shown = {key: pair for key, pair in sections_of.items() if pair[1] is not None}
    body = tag(
        "body",
        tag("a", "Skip to the network", href="#network", class_="skip"),
        summary.head(data),
        tag(
            "nav",
            *(tag("a", title, href=f"#{key}") for key, (title, _) in shown.items()),
            aria_label="Sections",
        ),
        tag("main", *(_section(key, *what) for key, what in shown.items())),
        tag("footer", tag("p", f"Created by entrim from {data.folder}")),
    )
    return "<!doctype html>\n" + tag("html", _head(data), body, lang="en") + "\n"


def write(folder: str | os.PathLike[str], file: str | os.PathLike[str] | None = None) -> Path:
    """Write the report of the run saved in `folder`, and return the file.

    The default of `file` is report.html in the folder.

    >>> import tempfile, torch, entrim
    >>> from entrim.report import write
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> folder = tempfile.mkdtemp()
    >>> entrim.sparsify(net, torch.randn(99, 4), entrim.Widths({"0": 4})).save(folder)
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
    """Whether `file` was written by `write`."""
    try:
        with file.open("rb") as stream:
            return _TITLE.encode() in stream.read(_BEGINNING)
    except OSError:
        return False


def _head(data: ReportData) -> Markup:
    style = files("entrim.report").joinpath("style.css").read_text(encoding="utf-8")
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{data.record.model}{_TITLE}"),
        tag("style", Markup(style)),
    )


def _section(key: str, title: str, content: Markup) -> Markup:
    return tag("section", join(tag("h2", title), content), id=key)
