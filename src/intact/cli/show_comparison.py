"""Prints the comparison of several results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from intact._text import Figures
from intact.analyze import comparison_text
from intact.analyze.comparison import Comparison
from intact.cli.markup import escape
from intact.cli.phases import with_phases
from intact.cli.printing import new_table, print_json, say, show_table

_MOST_ROWS = 20
"""Rows of a table, where not all are asked for."""


def comparison(found: Comparison, *, page: str | Path | None, every: bool, as_json: bool) -> None:
    """Print the figures of the results, then the decisions and layers that differ.

    Args:
        found: What was found.
        page: Where it was written to as a page, if it was.
        every: Print all rows, not those that matter most.
        as_json: Print all that was found, for a script.
    """
    if as_json:
        written = {} if page is None else {"page": str(page)}
        print_json(with_phases({**written, **found.to_json()}))
        return
    figures = comparison_text.figures(found)
    _table(figures, texts=1, every=True)
    for remark in figures.lines:
        say(f"[yellow]note[/] {escape(remark)}")
    decisions = comparison_text.decisions(found)
    _said(decisions.lines)
    _table(decisions, texts=len(decisions.headings), every=every)
    scales = comparison_text.scales(found)
    _table(scales, texts=len(scales.headings), every=every)
    layers = comparison_text.layers(found)
    _table(layers, texts=2, every=every)
    _said(layers.lines)
    if page is not None:
        say(f"[bold]{escape(str(page))}[/]")


def _said(lines: Sequence[str]) -> None:
    for line in lines:
        say(escape(line))


def _table(found: Figures, *, texts: int, every: bool) -> None:
    """Print a table, if it has rows; the first of many.

    Args:
        found: The table.
        texts: How many of its columns are texts; the others are numbers.
        every: Print all rows.
    """
    shown = found.rows if every else found.rows[:_MOST_ROWS]
    if not shown:
        return
    headings = list(map(escape, found.headings))
    table = new_table(escape(found.title), headings[:texts], numbers=headings[texts:])
    for row in shown:
        table.add_row(*map(escape, row))
    show_table(table)
    left = len(found.rows) - len(shown)
    if left:
        say(f"[dim]{left} more rows: --all shows them, --json has everything[/]")
