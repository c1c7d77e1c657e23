"""How the site is built: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS / "_extensions"), str(DOCS.parent / "src")]

import intact  # noqa: E402

project = "intact"
author = "The intact authors"
version = release = intact.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "target_pages"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["_extensions"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4  # links as on GitHub: page.md#heading
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # docstrings name types of other packages, and rooms
autodoc_typehints = "none"  # the first sentence of an argument says what it takes
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
napoleon_google_docstring = True
highlight_language = "none"

html_theme = "furo"
html_title = "intact"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_last_updated_fmt = None  # the same sources give the same pages
html_static_path: list[str] = []


def _plain_stars(*given: Any) -> None:
    """Keep stars of patterns (``stage1/*``) from being read as markup."""
    lines: list[str] = given[-1]
    lines[:] = [line.replace("*", r"\*") if "/*" in line else line for line in lines]


def setup(app: Any) -> None:
    """Connect what changes docstrings before they are read."""
    app.connect("autodoc-process-docstring", _plain_stars, priority=0)
