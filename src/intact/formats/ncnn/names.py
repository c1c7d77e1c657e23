"""Names of a model as ncnn reads them: words of printable ASCII that end at a space."""

from __future__ import annotations

import re

_LONGEST = 200
"""ncnn reads at most 255 bytes of a name; what is added to make names unique must fit too."""


def word(name: str) -> str:
    """Return a name as one word; what is no printable ASCII becomes an underscore.

    A leading ``#`` goes too: in a calibration table it starts a comment.

    >>> word("conv 1/é"), word("#1"), word("")
    ('conv_1/_', '_1', '_')
    """
    text = re.sub(r"[^!-~]", "_", name)[:_LONGEST]
    return "_" + text[1:] if not text or text[0] == "#" else text


class Words:
    """Gives out words, each once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def unique(self, name: str) -> str:
        """Return a word made of a name that was not given out before.

        >>> given = Words()
        >>> given.unique("a b"), given.unique("a_b"), given.unique("a_b")
        ('a_b', 'a_b_2', 'a_b_3')
        """
        stem = word(name)
        result, number = stem, 1
        while result in self._taken:
            number += 1
            result = f"{stem}_{number}"
        self._taken.add(result)
        return result
