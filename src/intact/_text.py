"""Formats tables of figures as text, for `print`, for the command line and for notebooks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class Figures(msgspec.Struct, frozen=True):
    """A table of texts with lines below it.

    Attributes:
        title: Above the table.
        headings: What stands above the columns; the first names the rows.
        rows: As many texts each as there are headings.
        lines: Below the table.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    lines: Sequence[str]

    def __str__(self) -> str:
        """Align the columns: names at the left, figures at the right."""
        table = [self.headings, *self.rows]
        widths = [max(len(row[column]) for row in table) for column in range(len(self.headings))]
        aligned = [
            "  ".join(
                text.rjust(width) if column else text.ljust(width)
                for column, (text, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in table
        ]
        return "\n".join([self.title, *aligned, *self.lines])

    def to_html(self) -> str:
        """Write a table for a notebook; nothing in it is read as HTML."""
        import html  # with its 2,231 names of characters, which only notebooks need

        def cell(text: str, tag: str = "td") -> str:
            return f'<{tag} style="text-align: left">{html.escape(text)}</{tag}>'

        head = "".join(cell(text, "th") for text in self.headings)
        rows = "".join(
            f"<tr>{cell(name, 'th')}{''.join(map(cell, cells))}</tr>" for name, *cells in self.rows
        )
        lines = "".join(f"<div>{html.escape(line)}</div>" for line in self.lines)
        return (
            f"<div><b>{html.escape(self.title)}</b><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{rows}</tbody></table>{lines}</div>"
        )


def first_names(names: Sequence[str], most: int = 3) -> str:
    """Return the first of some names, and how many more there are.

    >>> first_names(["a", "b", "c", "d"])
    'a, b, c and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def finite(found: Any) -> Any:
    """Replace numbers that are not finite by None, in what JSON can hold."""
    if isinstance(found, Mapping):
        return {name: finite(each) for name, each in found.items()}
    if isinstance(found, list | tuple):
        return [finite(each) for each in found]
    # JSON has no NaN and no infinity; what writes them is refused by other readers.
    return None if isinstance(found, float) and not math.isfinite(found) else found


def kilobytes(size: float) -> str:
    """Write a size."""
    return f"{size / 1e6:.2f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def size_row(before: int, after: int) -> tuple[str, str, str, str]:
    """Write the sizes of a float and a deployed model, and their ratio, as a row of a table."""
    return "size", kilobytes(before), kilobytes(after), times(before / after, "smaller", "larger")


def times(ratio: float, better: str, worse: str) -> str:
    """Write a ratio with a word for its direction."""
    return f"{ratio:.2f} x {better}" if ratio >= 1 else f"{1 / ratio:.2f} x {worse}"


def level(decibels: float) -> str:
    """Write a signal to noise ratio as a figure; NaN is where there is none."""
    if math.isnan(decibels):
        return "-"
    return "identical" if decibels == math.inf else f"{decibels:.1f} dB"


def decibels(decibels: float) -> str:
    """Write a signal to noise ratio in a line."""
    return "identical" if decibels == math.inf else f"SQNR {decibels:.1f} dB"


def widths(counts: Mapping[int, int]) -> str:
    """Write how many tensors have which width.

    >>> widths({8: 5})
    '8 bits'
    >>> widths({16: 1, 8: 4})
    '1 of 16 bits, 4 of 8 bits'
    """
    if len(counts) == 1:
        return f"{next(iter(counts))} bits"
    return ", ".join(f"{count} of {bits} bits" for bits, count in counts.items())
