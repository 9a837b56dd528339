"""Refuse a built site that would load anything from another host while it is read.

    python docs/site/offline.py build/site

Links to follow may lead anywhere; scripts, styles, fonts and pictures must lie in the folder.
"""

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

LOADING = {"src", "srcset", "data", "poster", "background"}
_LINKS = {"stylesheet", "preload", "modulepreload", "prefetch", "preconnect", "icon", "manifest"}
_OUTSIDE = re.compile(r"(?:[a-z]+:)?//", re.IGNORECASE)
_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""", re.IGNORECASE)
_SCRIPT = re.compile(
    r"""(?:\.(?:src|href)\s*=|\b(?:fetch|import|importScripts|Worker)\()\s*["'`]((?:https?:)?//[^"'`]+)"""
)


class Page(HTMLParser):
    """What a page loads from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Look at what this tag would load."""
        given = {name: value or "" for name, value in attrs}
        loads = [value for name, value in given.items() if name in LOADING]
        if tag == "link" and _LINKS & set(given.get("rel", "").split()):
            loads.append(given.get("href", ""))
        self.found += [value for value in loads if _OUTSIDE.match(value.strip())]
        self.found += _STYLE.findall(given.get("style", ""))


def loaded_by(file: Path) -> list[str]:
    """Return the addresses on other hosts that `file` loads."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".css":
        return _STYLE.findall(text)
    if file.suffix == ".js":
        return _SCRIPT.findall(text)
    page = Page()
    page.feed(text)
    inside = re.findall(r"<(?:style|script)\b[^>]*>(.*?)</(?:style|script)>", text, re.DOTALL)
    return page.found + [
        url for part in inside for url in _STYLE.findall(part) + _SCRIPT.findall(part)
    ]


def outside(folder: Path) -> Iterator[str]:
    """Yield every file of the site with what it loads from elsewhere."""
    for file in sorted(folder.rglob("*")):
        if file.suffix in {".html", ".css", ".js", ".svg"}:
            for address in loaded_by(file):
                yield f"{file.relative_to(folder)} loads {address}"


if __name__ == "__main__":
    site = Path(sys.argv[1])
    if not (site / "index.html").is_file():
        sys.exit(f"{site} holds no site: build it with make docs")
    wrong = list(outside(site))
    print("\n".join(wrong) or f"{site} loads nothing from outside", file=sys.stderr)
    sys.exit(bool(wrong))
