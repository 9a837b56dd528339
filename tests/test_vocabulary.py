"""Definitions and parameters use the terms of the field, not the names of an earlier version."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REPLACED = """
room Scene Ground _Tried Bench tell Step on_step Ask asks Chosen how Ladder climb least Sensor look
sense Moved Damage damage Market Stop way way_down filled demand floor whole pick Picked why silence
Site Reader places feeds bias_home Walk Call Value follow obey fresh root unite along spread stays
gone drops Stream forget dies drifted Shelf Repair Need lack wanted refit_alone put_in put_back
touched drift_behind Cut cut attempt stuck_groups Window Familiarity Tally Origin Form kind
order_of_loss Remainder rises certificate fall alternation pull likeness solve_for Hunt Wanted
Notebook Searched verdict between Recipe Task Trained hand_out halve_every heat Judge Journal Unit
facts once taken at_hand Story told said again beside Subject lesson watched taught turns
percent_right layers skip example positions correct journal held_out Sparsified
"""
NAMES = frozenset(REPLACED.split())
PREFIXES = ("refuse_", "demand_")
PHRASES = (
    *(
        "hands? over",
        "handed over",
        "handed out",
        "so many",
        "told",
        "tells",
        "said",
        "says",
        "gone",
    ),
    *("beside", "unites?", "mends?", "cuts?", "likeness", "certificates?", "ladders?"),
    *("recipes?", "journals?", "shel(f|ves)", "verdicts?", "damages?", "obeys?", "walks?"),
    *("unlabelled", "labelled", r"\w*normalis\w*", r"optimis(e|ed|er|ation)s?", "behaviours?"),
    *("colours?", "favours?", "centred"),
)
PATTERN = re.compile(rf"\b({'|'.join(PHRASES)})\b")
CHECKED = ("src/entrim", "experiments", "examples")
PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "docs/**/*.rst", "src/**/*.jinja")
    for page in ROOT.glob(pattern)
)


def definitions(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield line, name and kind of every function, class, parameter, field and global variable."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            if not isinstance(node, ast.Lambda):
                yield node.lineno, node.name, "function"
            given = node.args
            extra = [one for one in (given.vararg, given.kwarg) if one is not None]
            for one in (*given.posonlyargs, *given.args, *given.kwonlyargs, *extra):
                yield one.lineno, one.arg, "parameter"
        if isinstance(node, ast.ClassDef):
            yield node.lineno, node.name, "class"
        if isinstance(node, ast.ClassDef | ast.Module):
            for entry in node.body:
                targets = entry.targets if isinstance(entry, ast.Assign) else []
                targets = [entry.target] if isinstance(entry, ast.AnnAssign) else targets
                for target in targets:
                    if isinstance(target, ast.Name):
                        yield entry.lineno, target.id, "variable"


def texts_in(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every string literal, docstring and comment."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def phrases_in(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and phrase of every phrase to avoid in the texts of a module."""
    for line, text in texts_in(source):
        yield from ((line, found) for found in phrases_of(text))


def phrases_of(text: str) -> list[str]:
    """Return the phrases to avoid in a text; code between backticks is not text."""
    prose = re.sub(r"(`+).*?\1", "", text, flags=re.DOTALL)
    return [found.group() for found in PATTERN.finditer(" ".join(prose.lower().split()))]


def is_replaced(name: str, role: str) -> bool:
    plain = name.strip("_")
    if plain == "layers":
        return False
    if plain == "on_step":
        return role != "function"
    return name in NAMES or plain in NAMES or plain.startswith(PREFIXES)


@pytest.mark.parametrize("folder", ["src", "experiments", "examples", "tests"])
def test_no_definition_or_parameter_has_a_replaced_name(folder: str) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {kind} {name}"
        for file in sorted((ROOT / folder).rglob("*.py"))
        for line, name, kind in definitions(ast.parse(file.read_text()))
        if is_replaced(name, kind)
    ]
    assert not found, "\n".join(found)


def test_sparsify_does_not_take_layers() -> None:
    tree = ast.parse((ROOT / "src/entrim/pipeline.py").read_text())
    parameters = {name for _, name, kind in definitions(tree) if kind == "parameter"}
    assert "layers" not in parameters


def test_the_check_finds_replaced_names() -> None:
    code = "class Market:\n    damage: float\n    def f(self, wanted, *, on_step=None): ...\n"
    found = [name for _, name, kind in definitions(ast.parse(code)) if is_replaced(name, kind)]
    assert sorted(found) == ["Market", "damage", "on_step", "wanted"]


@pytest.mark.parametrize("place", CHECKED)
def test_texts_avoid_archaic_phrases_and_british_spelling(place: str) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {phrase}"
        for file in sorted((ROOT / place).rglob("*.py"))
        for line, phrase in phrases_in(file.read_text())
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", PAGES)
def test_documents_avoid_archaic_phrases_and_british_spelling(page: str) -> None:
    assert phrases_of((ROOT / page).read_text()) == []


def test_the_check_finds_phrases_across_lines_and_in_comments() -> None:
    code = (
        'def f():\n    """Return what was handed\n    over, not `told`."""\n'
        '    raise ValueError("So many")  # the cut\n'
    )
    assert sorted(phrase for _, phrase in phrases_in(code)) == ["cut", "handed over", "so many"]
