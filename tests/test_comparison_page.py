"""The page of a comparison in a browser: its graphs select and move together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import intact
from tests.browser import complaints, opened_browser, requests, resize
from tests.reports import EVIL, evil_model, samples


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of two models that share all nodes but one, which moves the others."""
    path = tmp_path_factory.mktemp("comparison") / "page.html"
    one = intact.quantize(evil_model(), samples(), preset="fast")
    other = intact.quantize(
        evil_model(), samples(), weight_bits=4, keep_float=["GlobalAveragePool"], preset="fast"
    )
    intact.compare({"one": one, EVIL: other}, output=path)
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened_browser() as found:
        yield found


@pytest.fixture
def opened(browser: Any, page: Path) -> Any:
    resize(browser, 1280)
    complaints(browser)
    requests(browser)
    browser.get(page.as_uri())
    return browser


def selected(browser: Any) -> list[str]:
    """The labels of what is selected, in each graph."""
    script = """return [...document.querySelectorAll('.graph')].map((graph) => {
      const node = graph.querySelector('.node.selected');
      return node ? node.getAttribute('aria-label').split(', ')[0] : '';
    })"""
    found: list[str] = browser.execute_script(script)
    return found


def views(browser: Any) -> list[str]:
    script = """return [...document.querySelectorAll('.canvas > g')]
      .map((scene) => scene.getAttribute('transform'))"""
    found: list[str] = browser.execute_script(script)
    return found


def click_node(browser: Any, graph: int, name: str) -> None:
    browser.execute_script(
        """const graph = document.querySelectorAll('.graph')[arguments[0]];
        const node = [...graph.querySelectorAll('.node')].find(
          (each) => each.getAttribute('aria-label').startsWith(arguments[1] + ','));
        node.dispatchEvent(new MouseEvent('click', {bubbles: true}));""",
        graph,
        name,
    )


def test_the_page_opens_without_complaint_or_request(opened: Any, page: Path) -> None:
    assert opened.title.startswith("Comparison of one, ")
    assert opened.execute_script("return document.querySelectorAll('.graph').length") == 2
    assert complaints(opened) == []
    assert requests(opened) == [page.as_uri()]
    bars = opened.find_elements("css selector", ".bar-chart .kept")
    widths = [float(each.get_attribute("width")) for each in bars]
    assert len(widths) == 2  # of sizes: nothing else was measured
    assert 0 < widths[1] < widths[0] <= 100  # 4 bits are smaller than 8
    text = opened.find_element("tag name", "body").text
    assert EVIL[:30] in text


def test_what_is_selected_in_one_graph_is_selected_in_all(opened: Any) -> None:
    for graph in (0, 1):
        for name in ("pool", "block/2/relu"):
            click_node(opened, graph, name)
            assert selected(opened) == [name, name]
    panel = opened.find_element("css selector", "[aria-label='The selected node in each result']")
    assert panel.find_element("tag name", "h3").text == "block/2/relu"
    click_node(opened, 0, "pool")
    assert "float: kept float as asked" in panel.text


def test_graphs_move_and_zoom_together(opened: Any) -> None:
    before = views(opened)
    opened.find_elements("css selector", ".tools button")[0].click()
    after = views(opened)
    assert all(one != other for one, other in zip(before, after, strict=True))
    assert after[0] == after[1]


def test_colours_have_their_legend(opened: Any) -> None:
    script = """const choice = document.getElementById('colour');
      return [...choice.options].map((option) => {
        choice.value = option.value;
        choice.dispatchEvent(new Event('change'));
        const used = new Set([...document.querySelectorAll('.node:not(.input):not(.output)')]
          .map((node) => node.dataset.colour));
        const known = new Set([...document.querySelectorAll('.legend i')]
          .map((mark) => mark.dataset.colour));
        return [option.value, [...used].every((colour) => known.has(colour)), used.size];
      })"""
    found = opened.execute_script(script)
    assert len(found) == 8
    assert all(known for _, known, _ in found)
    assert {name for name, _, size in found if size > 1} >= {"differs", "weights", "own"}


def test_tables_are_filtered_and_sorted(opened: Any) -> None:
    script = """const field = document.getElementById('decisions-filter');
      field.value = arguments[0];
      field.dispatchEvent(new Event('input'));
      return document.querySelectorAll('#decisions .sorted')[0].tBodies[0].rows.length"""
    every = opened.execute_script(script, "")
    few = opened.execute_script(script, "bits")
    assert 0 < few < every
    assert opened.execute_script(script, "nothing like that") == 0
    opened.execute_script(script, "")
    head = opened.find_elements("css selector", "#decisions thead button")[1]
    head.click()
    column = "#decisions .sorted:first-of-type tbody tr td:nth-child(2)"
    cells = [cell.text for cell in opened.find_elements("css selector", column)][:every]
    assert cells == sorted(cells)


def test_a_link_in_a_table_selects_its_node(opened: Any) -> None:
    link = opened.find_element("css selector", "#layers .link")
    name = link.get_attribute("title")
    opened.execute_script("arguments[0].click()", link)
    assert selected(opened) == [name, name]


@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_wider_than_the_page(opened: Any, width: int) -> None:
    resize(opened, width, dark=width == 400)
    assert opened.execute_script("return document.documentElement.scrollWidth") <= width
    assert complaints(opened) == []
