"""Escapes text for the markup of rich, which is not loaded for it."""

from __future__ import annotations

import re

_TAG = re.compile(r"(\\*)(\[[a-z#/@][^[]*?])")
"""A tag of rich's markup, and the backslashes in front of it."""


def escape(text: str) -> str:
    """Write text so that none of it is read as markup; as `rich.markup.escape` does."""
    escaped = _TAG.sub(lambda found: f"{found[1] * 2}\\{found[2]}", text)
    # A single backslash at the end would escape a tag that the caller appends.
    is_open = escaped.endswith("\\") and not escaped.endswith("\\\\")
    return f"{escaped}\\" if is_open else escaped


def without_tags(markup: str) -> str:
    """Drop the tags of markup; those that are escaped become text."""

    def text(found: re.Match[str]) -> str:
        literal, is_escaped = divmod(len(found[1]), 2)
        return "\\" * literal + (found[2] if is_escaped else "")

    return _TAG.sub(text, markup)
