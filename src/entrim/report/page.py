"""The page: a self-contained HTML file from the template of the report."""

import os
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from entrim.errors import SaveError
from entrim.report import charts, ribbon, sections
from entrim.report.markup import bar
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
    filters = (percent, power_of_ten, seconds, bar, command, sections.sentence)
    environment.filters |= {function.__name__: function for function in filters}
    names = {"charts": charts, "ribbon": ribbon, "sections": sections, "calls": calls}
    environment.globals |= names
    return environment


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
    template = _environment().get_template("report.html.jinja")
    return template.render(data=data, record=data.record, title=f"{data.record.model}{_TITLE}")


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
