"""The notes of a plan: those that say the same of several nodes are one line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from intact.cli.printing import escape, first_names, say

if TYPE_CHECKING:
    from intact.plan import Note

_ALIKE = 3
"""From how many nodes on notes are joined."""
_COUNT = re.compile(r"(?<![\w.'-])\d+(?![\w.'-])")
"""A whole number that stands alone: in notes, a count."""


def notes(found: Sequence[Note], *, all_in: str) -> None:
    """Print notes; those of several nodes that differ in a count at most are joined.

    Args:
        found: The notes.
        all_in: Where each of them is, a phrase.
    """
    alike: dict[object, list[Note]] = {}
    for note in found:
        key = (note.kind, _COUNT.sub("", note.message), note.remedy) if note.node else note
        alike.setdefault(key, []).append(note)
    for group in alike.values():
        if len(group) < _ALIKE:
            for note in group:
                _say(str(note))
            continue
        nodes = f"{len(group)} nodes ({first_names([note.node for note in group])})"
        remedy = f"; {group[0].remedy}" if group[0].remedy else ""
        _say(f"{nodes}: {_joined([note.message for note in group])}{remedy}; each: {all_in}")


def _joined(messages: Sequence[str]) -> str:
    """Write messages that differ in their counts as one.

    >>> _joined(["2 of 8 differ", "5 of 8 differ"])
    '2 to 5 of 8 differ'
    """
    columns = zip(*([int(each) for each in _COUNT.findall(text)] for text in messages), strict=True)
    ranges = [(min(column), max(column)) for column in columns]
    texts = iter([str(low) if low == high else f"{low} to {high}" for low, high in ranges])
    return _COUNT.sub(lambda _: next(texts), messages[0])


def _say(text: str) -> None:
    say(f"[yellow]note[/] {escape(text)}")
