"""How the site is built: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS / "_extensions"), str(DOCS.parent / "src")]

import intact  # noqa: E402

project = "intact"
author = "The intact authors"
version = release = intact.__version__

extensions = ["myst_parser", "target_pages"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["_extensions"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4  # links as on GitHub: page.md#heading
nitpicky = True
highlight_language = "none"

html_theme = "furo"
html_title = "intact"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_last_updated_fmt = None  # the same sources give the same pages
html_static_path: list[str] = []
