"""Tables on terminals of any width: words are whole or shortened, numbers are whole."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from intact.cli.markup import escape
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


PARTS = [*"ab :]/\\…層é\n\x1b", "[b]", "[/]", ":heart:", "[red]"]
CELL = st.lists(st.sampled_from(PARTS), max_size=6).map("".join).map(escape)


@given(st.data(), st.integers(0, 2), st.integers(1, 2), st.integers(0, 4))
def test_plain_lines_are_those_of_rich(
    data: st.DataObject, texts: int, numbers: int, rows: int
) -> None:
    headings = [data.draw(st.sampled_from(["op", "", "of\nall", "a"])) for _ in range(4)]
    title = data.draw(st.none() | st.just("") | CELL)
    table = Table(title, headings[:texts], headings[2 : 2 + numbers])
    for _ in range(rows):
        table.add_row(*(data.draw(CELL) for _ in range(texts + numbers)), style="yellow")
    lines = table.plain(1000)
    assert lines is None or "".join(f"{line}\n" for line in lines) == drawn(table, 1000)


def test_very_long_tables_are_whole_for_programs_and_cut_for_people() -> None:
    table = Table("long", ("node",), ("place",))
    for at in range(20_000):
        table.add_row(f"n{at}", str(at))
    lines = table.plain(1000)
    assert lines is not None
    assert [line.split() for line in lines][4:-1] == [[f"n{k}", str(k)] for k in range(20_000)]
    shown = drawn(table, 80)
    assert len(shown.splitlines()) < 2100
    assert all(f" n{k} " in shown for k in (0, 19_999))
    assert "18000 rows in the middle are left out" in shown


def test_names_that_no_line_can_hold_are_left_to_rich() -> None:
    table = Table(None, ("node",))
    table.add_row(escape("a\nb"))
    assert table.plain(1000) is None
