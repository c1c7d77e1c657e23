"""Tables that stay readable on narrow terminals: no word is broken, and no number is cut.

Text wraps at spaces. A word that is longer than its column, such as the name of a node, is
shortened from the middle: both of its ends tell nodes apart. Where that leaves texts no room, each
row is printed as a line of its texts and lines of its numbers with their headings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.padding import Padding
from rich.table import Table as Drawn
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

_LEAST = 12
"""Columns of the terminal that a text has at least."""
_BETWEEN, _EDGES = 2, 2
"""Spaces between columns, and around all of them."""
_WORD = re.compile(r"\S+")


class Table:
    """A table whose texts come first and whose numbers follow.

    Args:
        title: Above it, in markup; None for no title.
        texts: Headings of the columns of text.
        numbers: Headings of the columns of numbers, which are never cut.
    """

    def __init__(
        self, title: str | None, texts: Sequence[str], numbers: Sequence[str] = ()
    ) -> None:
        self._title = title
        self._headings = (*texts, *numbers)
        self._texts = len(texts)
        self._rows: list[tuple[tuple[Text, ...], str]] = []

    def add_row(self, *cells: str, style: str = "") -> None:
        """Add a row: its cells, in markup, and the style of all of them."""
        self._rows.append((tuple(map(Text.from_markup, cells)), style))

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Draw what fits: the table, or its rows one below the other."""
        if self._title is not None:  # of its own: it may be wider than the table
            yield Text.from_markup(self._title, style="italic")
        widths = self._widths(options.max_width)
        if widths is None:
            yield from self._stacked(options.max_width)
            return
        drawn = Drawn(box=box.SIMPLE_HEAD, padding=(0, _BETWEEN - 1, 0, 0), pad_edge=False)
        for at, (heading, width) in enumerate(zip(self._headings, widths, strict=True)):
            drawn.add_column(
                _fitted(Text.from_markup(heading), width),
                justify="left" if at < self._texts else "right",
                width=width,
            )
        for cells, style in self._rows:
            drawn.add_row(*map(_fitted, cells, widths), style=style)
        yield drawn

    def _widths(self, available: int) -> list[int] | None:
        """Return the columns' widths; None where the texts have no room."""
        cells = [
            [Text.from_markup(heading), *(row[at] for row, _ in self._rows)]
            for at, heading in enumerate(self._headings)
        ]
        widths = [max(map(_width, column)) for column in cells]
        room = available - _BETWEEN * (len(widths) - 1) - _EDGES
        if sum(widths) <= room:
            return widths
        for at in range(self._texts, len(widths)):  # headings of numbers may wrap
            heading, *numbers = cells[at]
            widths[at] = max([_longest_word(heading), *map(_width, numbers)])
        texts = _levelled(widths[: self._texts], room - sum(widths[self._texts :]))
        return None if texts is None else [*texts, *widths[self._texts :]]

    def _stacked(self, width: int) -> Iterator[RenderableType]:
        """Yield each row as a line of its texts, and lines of its numbers below."""
        headings = [Text.from_markup(each).plain.replace("\n", "/") for each in self._headings]
        for cells, style in self._rows:
            plain = [each.plain.replace("\n", "/") for each in cells]
            named = zip(headings[self._texts :], plain[self._texts :], strict=True)
            yield _fitted(Text("  ".join(plain[: self._texts]), style=style), width)
            if self._texts < len(plain):
                yield Padding(Text(", ".join(map("=".join, named)), style=style), (0, 0, 0, 2))


def _levelled(widths: Sequence[int], room: int) -> list[int] | None:
    """Narrow the widest columns to one width, so that all have room; None where they have none."""
    for level in range(max(widths, default=0), _LEAST - 1, -1):
        found = [min(width, level) for width in widths]
        if sum(found) <= room:
            return found
    return None


def _fitted(text: Text, width: int) -> Text:
    """Shorten the words that are longer than their column."""
    if _longest_word(text) <= width:
        return text
    return Text(_WORD.sub(lambda found: shortened(found[0], width), text.plain), style=text.style)


def shortened(word: str, width: int) -> str:
    """Shorten a word from the middle to some columns of a terminal, of which it keeps both ends.

    >>> shortened("/backbone/layer1/Conv", 12)
    '/backb…/Conv'
    """
    if cell_len(word) <= width:
        return word
    tail = (width - 1) // 2
    first = set_cell_size(word, width - 1 - tail)
    last = set_cell_size(word[::-1], tail)[::-1]
    return f"{first.rstrip()}…{last.lstrip()}"


def _width(text: Text) -> int:
    return max(map(cell_len, text.plain.splitlines()), default=0)


def _longest_word(text: Text) -> int:
    return max(map(cell_len, _WORD.findall(text.plain)), default=0)
