"""Formulas as MathML, generated with the site: a browser renders them without scripts."""

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def mathml(formula: str, display: str) -> str:
    """Return a formula as a tag, with the space around function names that MathML omits."""
    space = '<mspace width="0.17em"/>'
    return convert(formula, display=display).replace("<mi>log</mi>", f"{space}<mi>log</mi>{space}")


def inline(translator: HTML5Translator, node: nodes.math) -> None:
    """Write a formula inside a sentence."""
    translator.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def block(translator: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula on its own line, in a box that can be scrolled on a phone."""
    formula = mathml(node.astext(), "block")
    translator.body.append(f'<div class="formula" tabindex="0">{formula}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True}
