"""How messages show what a file contains: short, and with control characters made visible."""

from __future__ import annotations

_LONGEST = 60


def quoted(text: object) -> str:
    """Return at most 60 characters of a text, in quotes.

    >>> quoted("Covn")
    "'Covn'"
    """
    string = str(text)
    return repr(string if len(string) <= _LONGEST else f"{string[: _LONGEST - 3]}...")


def plain(text: object) -> str:
    """Shorten and escape like :func:`quoted`, without quotes."""
    return quoted(text)[1:-1]


def rule_label(ops: object) -> str:
    """Name an ``[[op]]`` entry in messages: by its operators.

    >>> rule_label(["Conv", "Gemm"])
    '[[op]] for Conv, Gemm'
    """
    names = [plain(name) for name in ops[:4]] if isinstance(ops, list | tuple) else []
    rest = ", ..." if isinstance(ops, list | tuple) and len(ops) > 4 else ""
    return f"[[op]] for {', '.join(names)}{rest}" if names else "[[op]] without ops"


def printable(text: str) -> str:
    """Return a path or a message with control characters made visible, at full length."""
    return text if text.isprintable() else repr(text)[1:-1]
