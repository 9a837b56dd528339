"""Docstrings as Sphinx reads them: the headed lists of scikit-learn's style become plain lists."""

import re
from typing import Any

from sphinx.application import Sphinx

HEADED = {"Parameters", "Attributes"}


def in_lists(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Rewrite `lines` in place: under a heading every `name : words` becomes a point."""
    headed, found = False, []
    for number, line in enumerate(lines):
        below = lines[number + 1] if number + 1 < len(lines) else ""
        if line in HEADED and set(below) == {"-"}:
            headed = True
            found += [f".. rubric:: {line}", ""]
        elif headed and set(line) == {"-"}:
            continue
        elif headed and (entry := re.match(r"(\S.*?) : (.*)", line)):
            found.append(f"- ``{entry[1]}``: {entry[2]}")
        else:
            headed = headed and bool(line)
            found.append(line)
    lines[:] = found


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx what to call."""
    app.connect("autodoc-process-docstring", in_lists)
    return {"parallel_read_safe": True}
