"""Draws tables that stay readable on narrow terminals: no word or number is cut.

Text wraps at spaces. A word that is longer than its column, such as the name of a node, is
shortened from the middle: both of its ends tell nodes apart. Where that leaves texts no room, each
row is printed as a line of its texts and lines of its numbers with their headings.

Rich draws a few thousand rows a second, and takes 0.05 s to load: it draws what needs it, on
terminals, and of very long tables the first and the last rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from intact.cli.markup import without_tags

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.text import Text

    _Row = tuple[tuple[Text, ...], str]

_LEAST = 12
"""Columns of the terminal that a text has at least."""
_BETWEEN, _EDGES = 2, 2
"""Spaces between columns, and around all of them."""
_WORD = re.compile(r"\S+")
_MOST_ROWS = 2000
"""Rows that are drawn of a table: some screens at its begin and its end."""


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
        self._rows: list[tuple[tuple[str, ...], str]] = []

    def add_row(self, *cells: str, style: str = "") -> None:
        """Add a row: its cells, in markup, and the style of all of them."""
        self._rows.append((cells, style))

    def plain(self, available: int) -> Iterator[str] | None:
        """Write all rows as lines without styles, as rich would in so many columns.

        Args:
            available: Columns.

        Returns:
            None where only rich can: a row has no room in a line, or is more than printable text.
        """
        title = "" if self._title is None else without_tags(self._title)
        headings = [without_tags(each).split("\n") for each in self._headings]
        rows = [tuple(map(without_tags, cells)) for cells, _ in self._rows]
        # Line breaks and control characters are left to rich.
        if not all("".join(cells).isprintable() for cells in (*headings, *rows, (title,))):
            return None
        columns = zip(*rows, strict=True) if rows else ((),) * len(headings)
        widths = [
            max(map(_cells, (*heading, *column)))
            for heading, column in zip(headings, columns, strict=True)
        ]
        whole = sum(widths) + _BETWEEN * (len(widths) - 1) + _EDGES
        if not all(widths) or max(whole, _cells(title)) > available:
            return None
        return self._plain_lines(title, headings, rows, widths, whole)

    def _plain_lines(
        self,
        title: str,
        headings: Sequence[Sequence[str]],
        rows: Sequence[Sequence[str]],
        widths: Sequence[int],
        whole: int,
    ) -> Iterator[str]:
        if self._title is not None:
            yield title
        yield " " * whole
        height = max(map(len, headings))
        lines = [[""] * (height - len(heading)) + [*heading] for heading in headings]
        for cells in zip(*lines, strict=True):
            yield self._plain_row(cells, widths)
        yield f" {'─' * (whole - _EDGES)} "
        for row in rows:
            yield self._plain_row(row, widths)
        yield " " * whole

    def _plain_row(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        padded = []
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True)):
            text = cell.rstrip()
            pad = " " * (width - _cells(text))
            padded.append(f"{text}{pad}" if at < self._texts else f"{pad}{text}")
        return f" {(' ' * _BETWEEN).join(padded)} "

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Draw what fits: the table, or its rows one below the other."""
        from rich import box
        from rich.table import Table as Drawn

        if self._title is not None:  # of its own: it may be wider than the table
            yield _text(self._title, style="italic")
        rows = self._drawn_rows()
        widths = self._widths(rows, options.max_width)
        if widths is None:
            yield from self._stacked(rows, options.max_width)
        else:
            drawn = Drawn(box=box.SIMPLE_HEAD, padding=(0, _BETWEEN - 1, 0, 0), pad_edge=False)
            for at, (heading, width) in enumerate(zip(self._headings, widths, strict=True)):
                drawn.add_column(
                    _fitted(_text(heading), width),
                    justify="left" if at < self._texts else "right",
                    width=width,
                )
            for cells, style in rows:
                drawn.add_row(*map(_fitted, cells, widths), style=style)
            yield drawn
        left_out = len(self._rows) - _MOST_ROWS
        if left_out > 0:
            yield f"{left_out} rows in the middle are left out; `| less` or `> FILE` shows all"

    def _drawn_rows(self) -> list[_Row]:
        """Return the rows to draw: the first and the last ones of very many."""
        shown = self._rows
        if len(shown) > _MOST_ROWS:
            gap = ("…", *("" for _ in self._headings[1:]))
            shown = [*shown[: _MOST_ROWS // 2], (gap, ""), *shown[-(_MOST_ROWS // 2) :]]
        return [(tuple(map(_text, cells)), style) for cells, style in shown]

    def _widths(self, rows: Sequence[_Row], available: int) -> list[int] | None:
        """Return the columns' widths; None where the texts have no room."""
        cells = [
            [_text(heading), *(row[at] for row, _ in rows)]
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

    def _stacked(self, rows: Sequence[_Row], width: int) -> Iterator[RenderableType]:
        """Yield each row as a line of its texts, and lines of its numbers below."""
        from rich.padding import Padding
        from rich.text import Text

        headings = [_text(each).plain.replace("\n", "/") for each in self._headings]
        for cells, style in rows:
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


def _text(markup: str, style: str = "") -> Text:
    """Read markup; what looks like the code of an emoji is part of a name."""
    from rich.text import Text

    return Text.from_markup(markup, style=style, emoji=False)


def _fitted(text: Text, width: int) -> Text:
    """Shorten the words that are longer than their column."""
    from rich.text import Text

    if _longest_word(text) <= width:
        return text
    return Text(_WORD.sub(lambda found: shortened(found[0], width), text.plain), style=text.style)


def shortened(word: str, width: int) -> str:
    """Shorten a word from the middle to some columns of a terminal, of which it keeps both ends.

    >>> shortened("/backbone/layer1/Conv", 12)
    '/backb…/Conv'
    """
    from rich.cells import set_cell_size

    if _cells(word) <= width:
        return word
    tail = (width - 1) // 2
    # A character of two columns that is cut in half becomes a space, which is stripped below.
    first = set_cell_size(word, width - 1 - tail)
    last = set_cell_size(word[::-1], tail)[::-1]
    return f"{first.rstrip()}…{last.lstrip()}"


def _width(text: Text) -> int:
    return max(map(_cells, text.plain.splitlines()), default=0)


def _longest_word(text: Text) -> int:
    return max(map(_cells, _WORD.findall(text.plain)), default=0)


def _cells(text: str) -> int:
    """Return the columns of the terminal that a text takes."""
    # Most texts are: rich is loaded for the others.
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
