"""Sphinx extension: what the TOML files of targets say is appended to the pages about them."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from target_facts import every_arithmetic, every_target, facts

from intact.targets import target_names

FOLDER = "targets/"
APPENDED = {"arithmetic": every_arithmetic, "targets": every_target}


def append(_app: Sphinx, page: str, source: list[str]) -> None:
    """Append the generated part of a page, if it has one."""
    if page.startswith(FOLDER):
        source[0] += f"\n{facts(page.removeprefix(FOLDER))}"
    elif page in APPENDED:
        source[0] += f"\n{APPENDED[page]()}"


def check(app: Sphinx) -> None:
    """Refuse to build without a page for each target that ships."""
    written = {path.stem for path in (app.srcdir / "targets").glob("*.md")}
    if missing := sorted(set(target_names()) - written):
        raise ExtensionError(f"targets without a page in docs/targets: {', '.join(missing)}")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("builder-inited", check)
    app.connect("source-read", append)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
