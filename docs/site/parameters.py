"""Show the parameters and exceptions of a signature as a table.

Sphinx renders the sections of a numpydoc docstring as lists of the form "name (type) -- text". A
table with one row for each name is easier to scan.
"""

from docutils import nodes
from sphinx.application import Sphinx

COLUMNS = {
    "Parameters": (("Parameter", 20), ("Type", 25), ("Description", 55)),
    "Raises": (("Exception", 30), ("Description", 70)),
}
DASH = " -- "


def items(body: nodes.field_body) -> list[nodes.Element]:
    """Return the entries of a section: those of its list, or the only one."""
    lists = [child for child in body.children if isinstance(child, nodes.bullet_list)]
    found = lists[0].children if lists else [body]
    return [entry for entry in found if isinstance(entry, nodes.Element)]


def split(entry: nodes.Element, has_type: bool) -> list[list[nodes.Node]]:
    """Return the cells of one entry: its name, its type if there is one, and its description."""
    first, *rest = entry.children
    assert isinstance(first, nodes.paragraph)
    texts = [child.astext() if isinstance(child, nodes.Text) else None for child in first.children]
    end = texts.index(DASH) if DASH in texts else len(texts)
    head, tail = list(first.children[:end]), list(first.children[end + 1 :])
    cells = [head[:1], head[2:-1]] if has_type else [head]
    return [*cells, [nodes.paragraph("", "", *tail), *rest]]


def row(cells: list[list[nodes.Node]]) -> nodes.row:
    """Return a row of a table; inline nodes are wrapped in a paragraph."""
    built = nodes.row()
    for cell in cells:
        is_block = any(isinstance(node, nodes.paragraph) for node in cell)
        built += nodes.entry("", *(cell if is_block else [nodes.paragraph("", "", *cell)]))
    return built


def table(title: str, entries: list[nodes.Element]) -> nodes.table:
    """Return the entries of a section as a table."""
    columns = COLUMNS[title]
    group = nodes.tgroup(cols=len(columns))
    group.extend(nodes.colspec(colwidth=width) for _, width in columns)
    header = row([[nodes.Text(name)] for name, _ in columns])
    rows = [row(split(entry, has_type=len(columns) == 3)) for entry in entries]
    group += [nodes.thead("", header), nodes.tbody("", *rows)]
    return nodes.table("", group, classes=["parameters"])


def replace_lists(app: Sphinx, page: nodes.document) -> None:
    """Replace the lists of parameters and exceptions on one page."""
    for field in list(page.findall(nodes.field)):
        name, body = field.children
        assert isinstance(name, nodes.field_name)
        assert isinstance(body, nodes.field_body)
        title = name.astext()
        if title in COLUMNS and body.children:
            replaced = table(title, items(body))
            body.clear()
            body += replaced


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("doctree-read", replace_lists)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
