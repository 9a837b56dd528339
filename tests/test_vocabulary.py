"""Definitions and parameters use the terms of the field, not the names of an earlier version."""

import ast
import re
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
PHRASES = ("hand over", "handed over", "handed out", "so many", "told", "unlabelled", "normalis")
CHECKED = ("src/entrim", "experiments", "examples")


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


def phrases_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and phrase of every phrase to avoid in string literals and docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = " ".join(node.value.lower().split())
            yield from ((node.lineno, p) for p in PHRASES if re.search(rf"\b{p}", text))


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
    path = ROOT / place
    found = [
        f"{file.relative_to(ROOT)}:{line}: {phrase}"
        for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])
        for line, phrase in phrases_in(ast.parse(file.read_text()))
    ]
    assert not found, "\n".join(found)


def test_the_check_finds_phrases_across_lines() -> None:
    code = (
        'def f():\n    """Return what was handed\n    over."""\n    raise ValueError("So many")\n'
    )
    assert sorted(phrase for _, phrase in phrases_in(ast.parse(code))) == ["handed over", "so many"]
