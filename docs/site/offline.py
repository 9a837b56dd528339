"""Check that a built site loads nothing from other hosts and has no dead links.

    python docs/site/offline.py build/site

Scripts, styles, fonts and pictures must be in the folder. Links may lead to other hosts; those
inside the site must lead to an existing file and anchor.
"""

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADING = {"src", "srcset", "data", "poster", "background"}
_LINKS = {"stylesheet", "preload", "modulepreload", "prefetch", "preconnect", "icon", "manifest"}
_OUTSIDE = re.compile(r"(?:[a-z]+:)?//", re.IGNORECASE)
_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""", re.IGNORECASE)
_SCRIPT = re.compile(
    r"""(?:\.(?:src|href)\s*=|\b(?:fetch|import|importScripts|Worker)\()\s*["'`]((?:https?:)?//[^"'`]+)"""
)


class Page(HTMLParser):
    """What a page loads from other hosts, its links, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.links: list[str] = []
        self.anchors = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record what this tag loads, and its link."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
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
    inside = re.findall(r"<(?:style|script)\b[^>]*>(.*?)</(?:style|script)>", text, re.DOTALL)
    return Page(text).found + [
        url for part in inside for url in _STYLE.findall(part) + _SCRIPT.findall(part)
    ]


def outside(folder: Path) -> Iterator[str]:
    """Yield every file of the site with what it loads from other hosts."""
    for file in sorted(folder.rglob("*")):
        if file.suffix in {".html", ".css", ".js", ".svg"}:
            for address in loaded_by(file):
                yield f"{file.relative_to(folder)} loads {address}"


def dead(folder: Path) -> Iterator[str]:
    """Yield every page of the site with its dead links."""
    files = sorted(folder.resolve().rglob("*.html"))
    pages = {file: Page(file.read_text(encoding="utf-8")) for file in files}
    for file, page in pages.items():
        for link in page.links:
            there = urlsplit(link)
            if there.scheme or there.netloc:
                continue
            target = (file.parent / unquote(there.path)).resolve() if there.path else file
            held = pages[target].anchors if target in pages else {unquote(there.fragment)}
            if not target.exists() or unquote(there.fragment) not in held:
                yield f"{file.relative_to(folder.resolve())} links to {link}, which does not exist"


if __name__ == "__main__":
    site = Path(sys.argv[1])
    if not (site / "index.html").is_file():
        sys.exit(f"{site} contains no site: build it with make docs")
    wrong = [*outside(site), *dead(site)]
    good = f"{site} loads nothing from other hosts and has no dead links"
    print("\n".join(wrong) or good, file=sys.stderr)
    sys.exit(bool(wrong))
