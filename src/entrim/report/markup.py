"""HTML and SVG built from tags; anything else is text and is escaped."""

from html import escape


class Markup(str):
    """Text that is already HTML."""

    __slots__ = ()


Part = str | int | float | None
"""A child or the value of an attribute; None is omitted."""


def tag(name: str, /, *children: Part, **attributes: Part) -> Markup:
    """Return an element; `class_` is class, `stroke_width` is stroke-width, strings are escaped.

    >>> tag("p", "a < b", class_="note")
    '<p class="note">a &lt; b</p>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in ("meta", "br"):
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: Part) -> Markup:
    """Return the children in sequence."""
    return Markup(
        "".join(
            child if isinstance(child, Markup) else escape(_text(child), quote=False)
            for child in children
            if child is not None
        )
    )


def table(caption: str, head: list[str], rows: list[list[Part]], **attributes: Part) -> Markup:
    """Return a table that can be scrolled with the keyboard; the first cell of a row heads it."""
    cells = (
        tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:]))
        for row in rows
    )
    whole = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *(tag("th", name, scope="col") for name in head))),
        tag("tbody", *cells),
        **attributes,
    )
    return tag("div", whole, class_="scroll", tabindex=0, role="region", aria_label=caption)


def bar(share: int | float) -> Markup:
    """Return a bar next to a number with the same meaning."""
    fill = tag("span", class_="fill", style=f"width:{100 * min(share, 1):.1f}%")
    return tag("span", fill, class_="bar", aria_hidden="true")


def details(title: str, content: Markup) -> Markup:
    """Return content that can be unfolded."""
    return tag("details", tag("summary", title), content)


def picture(
    title: str, width: int | float, height: int | float, *children: Part, **attributes: Part
) -> Markup:
    """Return an SVG that screen readers present as `title`."""
    return tag(
        "svg",
        *children,
        viewBox=f"0 0 {_text(width)} {_text(height)}",
        role="img",
        aria_label=title,
        **attributes,
    )


def _text(value: Part) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
