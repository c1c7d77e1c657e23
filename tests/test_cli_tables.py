"""Tables on terminals of any width: words are whole or shortened, numbers are whole."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from intact.cli.printing import escape
from intact.cli.tables import Table, shortened

NODE = "/backbone/features/stage3/layer17/block2/conv_depthwise/Conv"


def drawn(table: Table, width: int) -> str:
    file = io.StringIO()
    Console(width=width, file=file).print(table)
    return file.getvalue()


def inspection() -> Table:
    table = Table("on onnxruntime", ("node", "op", "computes", "why"))
    table.add_row(NODE, "Conv", "int8, 8-bit weight", "fused into the node that follows it")
    table.add_row("relu", "Relu", "float", "no rule", style="yellow")
    return table


def verification() -> Table:
    numbers = ("compared", "values", "differ", "most", "agree %", "top-1 %")
    table = Table("deployed", ("target", "runtime"), numbers)
    table.add_row("onnxruntime", "ORT 1.23.2, CPU", "53 of 53", "1,234,567", "0", "0", "100", "82")
    return table


def batch_norms() -> Table:
    numbers = ("scale", "bias", "largest at", "gamma", "variance", "mean", "dead", "noise")
    cells = ("0.01..1.23e+04", "-1.23..3.45", "12 of 64", "1.23e+04", "0.000123", "0.1", "3", "x1")
    table = Table("batch norms", ("node",), numbers)
    table.add_row(NODE, *cells)
    return table


@pytest.mark.parametrize("width", [30, 60, 80, 120, 1000])
@pytest.mark.parametrize("table", [inspection(), verification(), batch_norms()])
def test_no_word_is_broken_and_no_line_is_too_long(table: Table, width: int) -> None:
    text = drawn(table, width)
    whole = set(drawn(table, 1000).split())
    assert all(cell_len(line) <= width for line in text.splitlines())
    for word in text.replace("=", " ").replace(",\n", "\n").split():
        known = word in whole or word.rstrip(",") in whole or set(word) == {"─"}
        first, cut, last = word.partition("…")
        assert known or (cut and NODE.startswith(first) and NODE.endswith(last)), word


def test_numbers_are_whole_where_names_are_not() -> None:
    text = drawn(batch_norms(), 80)
    assert all(each in text for each in ("0.01..1.23e+04", "-1.23..3.45", "0.000123", "x1"))
    assert "largest at=12 of 64" in text  # there is no room for a table


def test_all_the_width_is_used_before_names_are_shortened() -> None:
    assert "…" in drawn(inspection(), 80)
    assert NODE in drawn(inspection(), 140)
    lines = drawn(inspection(), 80).splitlines()
    assert max(len(line.rstrip()) for line in lines) >= 78


@pytest.mark.parametrize("width", range(3, 12))
@pytest.mark.parametrize("word", ["abcdefghijkl", "层层层层层层层层", "a层b层c层d层e层"])
def test_a_shortened_word_keeps_both_ends(word: str, width: int) -> None:
    found = shortened(word, width)
    assert cell_len(found) <= width
    first, _, last = found.partition("…")
    assert word.startswith(first)
    assert word.endswith(last)
    assert shortened(word, cell_len(word)) == word


def test_markup_of_names_is_text_and_an_empty_table_is_drawn() -> None:
    table = Table(None, ("node",), ("n",))
    assert drawn(table, 20).split()[:2] == ["node", "n"]
    table.add_row(escape("[bold]x[/]"), "1")
    assert "[bold]x[/]" in drawn(table, 80)
    assert "[bold]x[/]" in drawn(table, 10)
