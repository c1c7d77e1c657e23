"""Formats file contents in messages: shortened, with control characters escaped."""

from __future__ import annotations

_LONGEST = 60


def quoted(text: object) -> str:
    """Quote and escape a text, shortened to 60 characters.

    >>> quoted("Covn")
    "'Covn'"
    """
    string = str(text)
    return repr(string if len(string) <= _LONGEST else f"{string[: _LONGEST - 3]}...")


def plain(text: object) -> str:
    """Shorten and escape like :func:`quoted`, without quotes."""
    return quoted(text)[1:-1]


def rule_label(ops: object) -> str:
    """Format the name of an ``[[op]]`` entry: its operators.

    >>> rule_label(["Conv", "Gemm"])
    '[[op]] for Conv, Gemm'
    """
    names = [plain(name) for name in ops[:4]] if isinstance(ops, list | tuple) else []
    rest = ", ..." if isinstance(ops, list | tuple) and len(ops) > 4 else ""
    return f"[[op]] for {', '.join(names)}{rest}" if names else "[[op]] without ops"


def printable(text: str) -> str:
    """Escape control characters of a path or message, at full length."""
    return text if text.isprintable() else repr(text)[1:-1]
