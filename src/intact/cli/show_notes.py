"""Prints the notes of a plan; those that say the same of several nodes become one line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from intact._text import first_names
from intact.cli.markup import escape
from intact.cli.printing import say

if TYPE_CHECKING:
    from intact.plan import Note

_ALIKE = 3
"""From how many nodes on notes are joined."""
_NUMBER = re.compile(r"(?<![\w.'-])-?\d+(?:\.\d+(?:e[+-]?\d+)?)?(?![\w.'-])")
"""A number that stands alone: in notes, a count or what was measured."""
_LONGEST = 100
"""From which number on decimals are left out."""


def notes(found: Sequence[Note], *, all_in: str) -> None:
    """Print notes; those of several nodes that differ in numbers at most are joined.

    Args:
        found: The notes.
        all_in: Where each of them is, a phrase.
    """
    alike: dict[object, list[Note]] = {}
    for note in found:
        # Notes without a node are about the model: only equal ones are joined.
        key = (note.kind, _NUMBER.sub("#", note.message), note.remedy) if note.node else note
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
    """Write messages that differ in their numbers as one.

    >>> _joined(["2 of 8 differ", "5 of 8 differ"])
    '2 to 5 of 8 differ'
    >>> _joined(["loses 0.456 dB", "loses 0.123 dB"])
    'loses 0.12 to 0.46 dB'
    """
    # The messages are equal but for their numbers, so that each has as many.
    columns = zip(*(_NUMBER.findall(text) for text in messages), strict=True)
    texts = iter([_range(column) for column in columns])
    return _NUMBER.sub(lambda _: next(texts), messages[0])


def _range(numbers: Sequence[str]) -> str:
    """Write the least and the largest of some numbers; counts stay whole, others are rounded."""
    if len(set(numbers)) == 1:
        return numbers[0]
    write = str if all(map(_is_whole, numbers)) else _rounded
    read = int if write is str else float
    values = [read(each) for each in numbers]
    low, high = write(min(values)), write(max(values))
    return low if low == high else f"{low} to {high}"


def _is_whole(number: str) -> bool:
    return "." not in number


def _rounded(number: float) -> str:
    return f"{number:.2g}" if abs(number) < _LONGEST else f"{number:.0f}"


def _say(text: str) -> None:
    say(f"[yellow]note[/] {escape(text)}")
