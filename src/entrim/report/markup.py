"""SVG built from tags; text is escaped."""

from markupsafe import Markup, escape

Part = str | int | float | None
"""A child or the value of an attribute; None is omitted."""


def tag(name: str, /, *children: Part, **attributes: Part) -> Markup:
    """Return an element; `class_` is class, `stroke_width` is stroke-width, strings are escaped.

    >>> tag("text", "a < b", class_="name")
    Markup('<text class="name">a &lt; b</text>')
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: Part) -> Markup:
    """Return the children in sequence."""
    return Markup("").join(_text(child) for child in children if child is not None)


def words(line: str) -> Markup:
    """Return a line of code that is wrapped between its words, not at a hyphen of an option.

    >>> words("entrim export --onnx <")
    Markup('entrim export <span>--onnx</span> &lt;')
    """
    return Markup(" ").join(tag("span", word) if "-" in word else word for word in line.split(" "))


def bar(share: int | float) -> Markup:
    """Return a bar next to a number with the same meaning."""
    fill = tag("span", class_="fill", style=f"width:{100 * min(share, 1):.1f}%")
    return tag("span", fill, class_="bar", aria_hidden="true")


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


def _text(value: str | int | float) -> str:
    """Return the text of a value, and Markup unchanged."""
    if isinstance(value, str):
        return value
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
