"""How messages show what a file contains: short, and with control characters made visible."""

from __future__ import annotations

_LONGEST = 60


def quoted(text: object) -> str:
    """Return at most 60 characters of a text, in quotes.

    >>> quoted("Covn")
    "'Covn'"
    """
    return repr(_shortened(str(text)))


def plain(text: object) -> str:
    """Return what :func:`quoted` does, without quotes."""
    return quoted(text)[1:-1]


def rule_label(ops: object) -> str:
    """Return how messages call an ``[[op]]`` entry: by its operators.

    >>> rule_label(["Conv", "Gemm"])
    '[[op]] for Conv, Gemm'
    """
    names = [plain(name) for name in ops[:4]] if isinstance(ops, list | tuple) else []
    rest = ", ..." if isinstance(ops, list | tuple) and len(ops) > 4 else ""
    return f"[[op]] for {', '.join(names)}{rest}" if names else "[[op]] without ops"


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
