"""The page: a self-contained HTML file from the template of the report."""

import base64
import hashlib
import os
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from entrim.errors import SaveError
from entrim.report import charts, ribbon, sections, tradeoff
from entrim.report.assessment import assess, next_steps
from entrim.report.markup import bar, words
from entrim.report.numbers import percent, power_of_ten, seconds
from entrim.report.repeat import calls, command
from entrim.report.report_data import ReportData, read
from entrim.storage import atomic

FILE = "report.html"
_TITLE = ", pruned by entrim"
_BEGINNING = 4096
"""The first bytes of a page; they contain its title."""


@cache
def _environment() -> Environment:
    """Return the environment of the templates; text is escaped unless it is Markup."""
    environment = Environment(
        loader=PackageLoader("entrim.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (percent, power_of_ten, seconds, bar, words, command, sections.sentence)
    environment.filters |= {function.__name__: function for function in filters}
    names = {"charts": charts, "ribbon": ribbon, "sections": sections, "calls": calls}
    script = files("entrim.report").joinpath("templates", "script.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    names |= {"trade": tradeoff, "script": Markup(script), "script_digest": digest}
    environment.globals |= names
    return environment


def html(data: ReportData) -> str:
    """Return the report as one HTML page without external resources.

    The page contains one script, pinned by its checksum; everything is readable without it.

    >>> import tempfile, torch, entrim
    >>> from entrim.report import html, read
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> folder = tempfile.mkdtemp()
    >>> entrim.sparsify(net, torch.randn(99, 4), entrim.Widths({"0": 4})).save(folder)
    >>> html(read(folder))[:15]
    '<!doctype html>'
    """
    return template("report.html.jinja").render(
        data=data,
        record=data.record,
        title=f"{data.record.model}{_TITLE}",
        assessment=assess(data.record),
        steps=next_steps(data),
    )


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
    return write_page(read(folder), Path(folder) / FILE if file is None else Path(file))


def write_page(data: ReportData, target: Path) -> Path:
    """Write the report of a run to a file."""
    return save_page(html(data), target)


def template(name: str) -> Template:
    """Return one of the templates."""
    return _environment().get_template(name)


def save_page(page: str, target: Path) -> Path:
    """Write a page to a file in one step."""
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
