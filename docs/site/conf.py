"""The configuration of Sphinx.

The repository itself is the source folder, so that a link between two documents is the same here,
on a code host and in an editor. The order of the pages is here too: documents contain text only.
"""

import sys
from importlib.metadata import version as installed
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

PAGES = {
    "Start": ["quick-start"],
    "How to": [
        "how-to/size",
        "how-to/images",
        "how-to/device",
        "how-to/trust",
        "how-to/federated",
        "how-to/distributed",
        "how-to/layers",
        "how-to/paper",
        "how-to/recover",
        "how-to/labels",
        "how-to/report",
        "how-to/export",
        "how-to/deploy",
        "how-to/onnx",
        "command-line",
        "how-to/solver",
        "how-to/extend",
        "how-to/troubleshoot",
    ],
    "Tutorials": [
        "tutorials/ultralytics",
        "tutorials/timm",
        "tutorials/torchvision",
        "tutorials/transformers",
    ],
    "The method": [
        "method",
        "notation",
        "SPARTAn, for tables <spartan>",
        "decisions",
        "../ARCHITECTURE",
    ],
    "Reference": [
        "reference/pruning",
        "reference/configuration",
        "reference/extending",
        "reference/results",
        "reference/solver",
        "reference/spartan",
        "reference/report",
        "reference/export",
        "reference/onnx",
        "reference/integrations",
        "reference/errors",
    ],
    "Experiments": [
        "gallery",
        "Reconstruction <sparsify>",
        "Budgets <budgets>",
        "Distillation <distill>",
        "Search <search>",
        "The tables of the paper <reproduce>",
        "Speed, solver, other libraries <benchmarks>",
    ],
    "Project": ["../CONTRIBUTING", "../CHANGELOG", "../SECURITY"],
    "Records": ["../experiments/results/*"],
}

project = "entrim"
author = "The entrim developers"
version = release = installed("entrim")
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "experiments/results/**"]
exclude_patterns = ["README.md", "docs/site", ".*", "build", "dist", "src", "tests"]
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "backlinks",
    "mathml",
    "parameters",
]

html_theme = "furo"
html_title = f"entrim {version}"
html_static_path = ["static"]
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#3730a3",
        "color-brand-content": "#3730a3",
        "color-brand-visited": "#3730a3",
    },
    "dark_css_variables": {
        "color-brand-primary": "#a5b4fc",
        "color-brand-content": "#a5b4fc",
        "color-brand-visited": "#a5b4fc",
    },
}
html_css_files = ["site.css"]
html_extra_path = ["extra"]
html_copy_source = False
html_show_search_summary = False  # it fetches pages, which a browser forbids for files
html_show_copyright = False
html_math_renderer = "mathml"

myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 3

default_role = "code"
smartquotes = False  # z' is a transpose
highlight_language = "none"
maximum_signature_line_length = 90
napoleon_google_docstring = False
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"


def contents(caption: str, pages: list[str]) -> str:
    """Return a table of contents as a directive."""
    options = [":hidden:", ":glob:", ":titlesonly:", ":maxdepth: 1", f":caption: {caption}"]
    return "\n".join(["", "```{toctree}", *options, "", *pages, "```", ""])


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Append the tables of contents to the first page; code hosts do not show them."""
    if page == app.config.root_doc:
        source[0] += "".join(contents(caption, pages) for caption, pages in PAGES.items())


def setup(app: Sphinx) -> None:
    """Register the extension."""
    app.connect("source-read", add_contents)


suppress_warnings = ["ref.python"]  # a type such as `bytes` is also the name of several attributes
