"""The page of a report, clicked through in a browser."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import intact
from intact.analyze.report import figures, network_figures
from intact.analyze.report.layout import layered
from intact.analyze.report.page import page_of
from tests.browser import complaints, opened_browser, requests, resize
from tests.reports import EVIL, samples, searched, trained, write_result

BELOW = "return document.documentElement.scrollWidth <= window.innerWidth"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window."""
    with opened_browser() as found:
        yield found


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> figures.Report:
    """Of a small result with a fault, with a search and a training that did not happen."""
    folder = write_result(tmp_path_factory.mktemp("page"))
    found = intact.report(folder, samples())
    return msgspec.structs.replace(found, search=searched(), training=trained())


@pytest.fixture(scope="module")
def path(report: figures.Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its page."""
    path = tmp_path_factory.mktemp("html") / "report.html"
    path.write_bytes(page_of(report))
    return path


@pytest.fixture
def page(browser: Any, path: Path) -> Any:
    """The page, freshly opened at 1,280 pixels."""
    resize(browser, 1280)
    browser.get(path.as_uri())
    settled(browser)
    return browser


def settled(browser: Any) -> None:
    """Wait until the charts are drawn."""
    browser.execute_async_script(
        "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))"
    )


def all_of(browser: Any, selector: str) -> list[Any]:
    found: list[Any] = browser.find_elements("css selector", selector)
    return found


def text_of(browser: Any, selector: str) -> str:
    return str(browser.find_element("css selector", selector).text)


def node(browser: Any, report: figures.Report, op: str) -> tuple[network_figures.Node, Any]:
    """Find the first node of an operator, and its box."""
    index = next(i for i, each in enumerate(report.network.nodes) if each.op == op)
    box = browser.find_element("css selector", f".node[data-index='{index}']")
    return report.network.nodes[index], box


def test_it_opens_from_disk_without_a_request_or_a_complaint(page: Any, path: Path) -> None:
    assert complaints(page) == []
    asked = {each for each in requests(page) if not each.startswith("data:")}  # is in the page
    assert asked == {path.as_uri()}
    assert page.title == "test for onnxruntime"  # the script in a node's name did not run
    sections = [each.text for each in all_of(page, "h2")]
    assert sections == [
        "Summary", "Diagnosis", "Samples", "Network", "Layers", "Search", "Training",
        "Provenance and recipe",
    ]  # fmt: skip


def test_pictures_are_drawn_and_class_names_are_text(
    browser: Any, report: figures.Report, tmp_path: Path
) -> None:
    assert report.pictures is not None
    first = report.pictures.sheets[0].pictures[0]
    example = msgspec.structs.replace(first, label=EVIL, before=EVIL, after=EVIL, is_lost=True)
    classes = (figures.ClassChange(EVIL, 9, 8, 3),)
    pictures = msgspec.structs.replace(
        report.pictures, changed=1, examples=(example,), classes=classes, is_labelled=True
    )
    path = tmp_path / "report.html"
    path.write_bytes(page_of(msgspec.structs.replace(report, pictures=pictures)))
    resize(browser, 1280)
    browser.get(path.as_uri())
    settled(browser)
    assert complaints(browser) == []
    loaded = "return [...document.querySelectorAll('#data img')].map((e) => e.naturalWidth)"
    assert browser.execute_script(loaded) == [8] * (1 + len(samples()))
    assert text_of(browser, ".answers .lost dd").split() == EVIL.split()
    assert text_of(browser, "#data .bars tbody th").split() == EVIL.split()


def test_layers_are_ranked_and_coloured_by_what_they_cost(
    page: Any, report: figures.Report
) -> None:
    costs = {
        each.errors.alone: each
        for each in report.network.nodes
        if each.errors is not None and isinstance(each.errors.alone, float)
    }
    costly = costs[min(costs)]
    assert text_of(page, "#layers .bars .link").split() == costly.name.split()
    index = report.network.nodes.index(costly)
    box = page.find_element("css selector", f".node[data-index='{index}']")
    assert box.get_attribute("data-colour") == "e6"  # a fifth of the cost or more
    assert "of the cost" in text_of(page, "#network .legend")


@pytest.mark.parametrize("width", [400, 1280])
def test_the_map_covers_no_node(browser: Any, path: Path, width: int) -> None:
    resize(browser, width)
    browser.get(path.as_uri())
    settled(browser)
    apart = """
      const box = (selector) => document.querySelector(selector).getBoundingClientRect();
      return box(".canvas").right <= box(".map").left
    """
    assert browser.execute_script(apart)


def test_a_name_that_is_a_script_is_shown_as_it_is(page: Any, report: figures.Report) -> None:
    _, box = node(page, report, "Relu")
    box.click()
    assert text_of(page, ".panel h3").split() == EVIL.split()
    assert complaints(page) == []


def test_what_a_node_has_taken_in_is_shown(page: Any, report: figures.Report) -> None:
    flatten, box = node(page, report, "Flatten")
    assert flatten.given == (f"{EVIL} gone (Identity)",)
    box.click()
    said = f"In the given model: {EVIL} gone (Identity)."
    assert text_of(page, ".panel .given").split() == said.split()
    assert complaints(page) == []


def test_a_click_shows_a_node(page: Any, report: figures.Report) -> None:
    conv, box = node(page, report, "Conv")
    box.click()
    settled(page)
    assert text_of(page, ".panel h3") == conv.name
    assert box.get_attribute("class") == "node integer selected"
    headings = [each.text for each in all_of(page, ".panel h4")]
    assert any(text.startswith("Error") for text in headings)
    assert any(text.startswith("Weights by channel") for text in headings)
    assert headings[-1] == "Configurations"
    assert conv.errors is not None
    assert f"{conv.errors.own:.1f} dB" in text_of(page, ".panel .errors")
    assert conv.weight is not None
    assert len(all_of(page, ".panel .quantized")) == conv.weight.count
    rows = [each.text for each in all_of(page, ".panel .ends tbody th")]
    assert rows == [end.slot for end in conv.ends]


def test_a_histogram_shows_what_is_clipped(page: Any, report: figures.Report) -> None:
    _, box = node(page, report, "Relu")
    box.click()
    settled(page)
    chart = page.find_element("css selector", ".panel .chart svg")
    assert "codes from" in str(chart.get_attribute("aria-label"))
    assert len(chart.find_elements("css selector", ".threshold")) == 2
    assert chart.find_elements("css selector", ".bar.clipped")
    assert "% clipped" in text_of(page, ".panel .caption")


def test_the_finding_of_a_node_is_shown_with_its_remedy(page: Any, report: figures.Report) -> None:
    assert report.findings
    finding = report.findings[0]
    link = page.find_element("css selector", "#diagnosis .link")
    link.click()
    assert text_of(page, ".panel h3").split() == finding.node.split()
    assert "clipping" in text_of(page, ".panel .finding")


def test_colours_follow_what_is_chosen(page: Any, report: figures.Report) -> None:
    _, box = node(page, report, "GlobalAveragePool")
    choice = page.find_element("id", "colour")
    seen = {}
    for option in choice.find_elements("tag name", "option"):
        option.click()
        seen[option.get_attribute("value")] = box.get_attribute("data-colour")
    assert seen["precision"] == "float"
    assert seen["activations"] == "b32"
    assert seen["own"] == "none"
    assert len(all_of(page, "#network .legend li")) == 4


def test_keys_go_through_the_network(page: Any, report: figures.Report) -> None:
    from selenium.webdriver.common.keys import Keys

    conv, box = node(page, report, "Conv")
    box.click()
    page.execute_script("arguments[0].focus()", box)
    page.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    assert text_of(page, ".panel h3").split() == EVIL.split()  # the Relu behind it
    page.switch_to.active_element.send_keys(Keys.ARROW_UP)
    assert text_of(page, ".panel h3") == conv.name
    page.switch_to.active_element.send_keys(Keys.HOME)
    assert text_of(page, ".panel h3") == "image"
    before = page.find_element("css selector", ".canvas > g").get_attribute("transform")
    page.switch_to.active_element.send_keys("+")
    assert page.find_element("css selector", ".canvas > g").get_attribute("transform") != before


def test_buttons_and_map_move_what_is_seen(page: Any) -> None:
    from selenium.webdriver import ActionChains

    def view() -> str:
        return str(page.find_element("css selector", ".canvas > g").get_attribute("transform"))

    seen = {view()}
    for button in all_of(page, ".tools button")[:2] + all_of(page, ".tools button")[:1] * 3:
        button.click()
        seen.add(view())
    ActionChains(page).move_to_element_with_offset(
        page.find_element("css selector", ".map"), 0, 200
    ).click().perform()
    seen.add(view())
    assert len(seen) >= 5


def test_the_table_is_sorted_and_filtered(page: Any, report: figures.Report) -> None:
    rows = len(all_of(page, ".layers tbody tr"))
    heads = all_of(page, ".layers thead th")
    heads[3].find_element("tag name", "button").click()  # by itself
    assert heads[3].get_attribute("aria-sort") == "ascending"
    shown = [each.text for each in all_of(page, ".layers tbody td:nth-child(4)")]
    known = [float(each.split()[0]) for each in shown if each.endswith("dB")]
    assert known == sorted(known)
    assert len(known) >= 2
    heads[3].find_element("tag name", "button").click()
    assert heads[3].get_attribute("aria-sort") == "descending"
    page.find_element("id", "layers-filter").send_keys("conv")
    assert len(all_of(page, ".layers tbody tr")) == 2 < rows
    page.find_element("css selector", "#kind option[value='float']").click()
    assert not all_of(page, ".layers tbody tr")
    assert text_of(page, "#layers [role=status]").startswith("0 of")


def test_search_and_training_are_drawn(page: Any) -> None:
    assert len(all_of(page, "#search svg .trial.best")) == 3  # the front and two walks
    assert all_of(page, "#search svg .trial.stopped")
    assert len(all_of(page, "#training svg")) == 2
    assert len(all_of(page, "#training .curve.own circle")) == 3  # none before training


def test_what_is_counted_has_whole_ticks(page: Any) -> None:
    for chart in ("layers", "training"):
        axis = all_of(page, f"#{chart} svg .axis:last-of-type")[0]
        ticks = [each.text for each in axis.find_elements("css selector", "text")]
        assert len(ticks) >= 2
        assert all(each.isdecimal() for each in ticks)


def test_search_without_a_best_trial_names_none(
    browser: Any, report: figures.Report, tmp_path: Path
) -> None:
    search = msgspec.structs.replace(searched(), best=None)
    path = tmp_path / "report.html"
    path.write_bytes(page_of(msgspec.structs.replace(report, search=search)))
    browser.get(path.as_uri())
    legend = text_of(browser, "#search .legend")
    assert "no trial is better and cheaper" in legend
    assert "taken" not in legend


@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_wider_than_the_page(browser: Any, path: Path, width: int) -> None:
    resize(browser, width)
    browser.get(path.as_uri())
    settled(browser)
    assert browser.execute_script(BELOW)


def test_dark_mode_and_print_have_their_own_colours(browser: Any, path: Path) -> None:
    colours = []
    for dark in (False, True):
        resize(browser, 1280, dark=dark)
        browser.get(path.as_uri())
        colours.append(
            browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        )
    assert colours[0] == "rgb(255, 255, 255)"
    assert colours[1] != colours[0]
    resize(browser, 1280, media="print")
    hidden = "return getComputedStyle(document.querySelector('nav')).display"
    assert browser.execute_script(hidden) == "none"


def test_everything_that_can_be_used_has_a_name(page: Any) -> None:
    nameless = """
      const named = (e) => (e.getAttribute("aria-label") || e.textContent || "").trim()
        || (e.id && document.querySelector(`label[for="${e.id}"]`));
      return [...document.querySelectorAll("button, a, select, input, [role=button], [role=img]")]
        .filter((e) => !named(e)).map((e) => e.outerHTML)
    """
    assert page.execute_script(nameless) == []


def test_a_thousand_nodes_are_small_and_quick(
    browser: Any, report: figures.Report, tmp_path: Path
) -> None:
    count = 1000
    edges = sorted({(max(0, n - 1 - n % 7 * (n % 3)), n) for n in range(1, count)})
    layout = layered(count, edges)
    example = next(node for node in report.network.nodes if node.weight is not None)
    tensor = next(each for each in report.network.tensors if each.histogram is not None)
    nodes = tuple(
        msgspec.structs.replace(example, name=f"stage/block/{i}", x=x, y=y, layer=i, findings=())
        for i, (x, y) in enumerate(layout.nodes)
    )
    tensors = tuple(msgspec.structs.replace(tensor, name=f"tensor/{i}") for i in range(count))
    network = network_figures.Network(
        layout.width, layout.height, nodes,
        tuple(
            network_figures.Edge(*edge, bends)
            for edge, bends in zip(edges, layout.bends, strict=True)
        ),
        tensors,
    )  # fmt: skip
    found = msgspec.structs.replace(report, network=network, findings=(), floats=())
    path = tmp_path / "large.html"
    path.write_bytes(page_of(found))
    assert path.stat().st_size < 5_000_000
    resize(browser, 1280)
    start = time.perf_counter()
    browser.get(path.as_uri())
    assert len(all_of(browser, ".node")) == count
    assert complaints(browser) == []
    assert time.perf_counter() - start < 10  # 1 s on two idle cores
