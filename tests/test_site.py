"""The extensions of the documentation site."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="the group docs is not installed")
sys.path.insert(0, str(Path(__file__).parent.parent / "docs" / "site"))

from docutils import nodes
from parameters import replace_lists


def section(title: str, *entries: nodes.paragraph) -> nodes.document:
    """Return a page with one section of a docstring, as Sphinx renders it."""
    page = nodes.document(None, None)  # type: ignore[arg-type]
    items = [nodes.list_item("", entry) for entry in entries]
    body = entries[0] if len(entries) == 1 else nodes.bullet_list("", *items)
    page += nodes.field("", nodes.field_name("", title), nodes.field_body("", body))
    return page


def parameter(name: str, type_name: str, text: str) -> nodes.paragraph:
    parts = [nodes.strong(name, name), nodes.Text(" ("), nodes.emphasis(type_name, type_name)]
    return nodes.paragraph("", "", *parts, nodes.Text(")"), nodes.Text(" -- "), nodes.Text(text))


def cells(page: nodes.document) -> list[list[str]]:
    return [[cell.astext() for cell in row.children] for row in page.findall(nodes.row)]


def test_parameters_become_a_table_with_one_row_each():
    page = section(
        "Parameters", parameter("seed", "int", "A number."), parameter("model", "Module", "Yours.")
    )
    replace_lists(None, page)  # type: ignore[arg-type]
    assert cells(page)[1:] == [["seed", "int", "A number."], ["model", "Module", "Yours."]]


def test_a_single_parameter_becomes_a_table_too():
    page = section("Parameters", parameter("seed", "int", "A number."))
    replace_lists(None, page)  # type: ignore[arg-type]
    assert cells(page) == [["Parameter", "Type", "Description"], ["seed", "int", "A number."]]


def test_other_sections_keep_their_form():
    page = section("Returns", nodes.paragraph("", "A network."))
    replace_lists(None, page)  # type: ignore[arg-type]
    assert not cells(page)
    assert "A network." in page.astext()
