"""Correct the links from the pages of source code to the documentation of a name.

Sphinx uses one prefix for all names of a source file, that of the first documented one. If some
names of a file are documented as `entrim.Record` and others as `entrim.records.Size`, it would link
to `entrim.Size`, which does not exist.
"""

import re
from collections.abc import Collection
from typing import Any

from sphinx.application import Sphinx

_BACK = re.compile(r'(<a class="viewcode-back" href="[^"#]*#)([^"]+)"')


def documented(name: str, known: Collection[str]) -> str:
    """Return the name under which `name`, possibly with a wrong prefix, is documented.

    >>> documented("entrim.Size.params", {"entrim.Record", "entrim.records.Size.params"})
    'entrim.records.Size.params'
    """
    parts = name.split(".")
    ends = [f".{'.'.join(parts[k:])}" for k in range(1, len(parts))]
    found = [one for end in ends for one in known if one.endswith(end)]
    return name if name in known or not found else found[0]


def correct_links(
    app: Sphinx, page: str, template: str, context: dict[str, Any], tree: object
) -> None:
    """Rewrite the links of one page of source code."""
    if page.startswith("_modules/") and "body" in context:
        known = app.env.domains.python_domain.objects
        context["body"] = _BACK.sub(
            lambda link: f'{link[1]}{documented(link[2], known)}"', context["body"]
        )


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("html-page-context", correct_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
