"""The documentation builds as a site without a warning, loads nothing, and its links are right."""

from __future__ import annotations

import html
import importlib.util
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

import intact
from intact.targets import target_names
from tests.documentation.snippets import DOCS, REPOSITORY

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LOADED = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src"}
"""Attributes whose addresses a browser loads without being asked."""
SECONDS = 300


class Loads(HTMLParser):
    """Collects what a page loads from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.remote: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get(LOADED.get(tag, "")) or ""
        if re.match(r"(https?:)?//", address):
            self.remote.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages as `make docs` builds them."""
    if importlib.util.find_spec("furo") is None:
        pytest.skip('needs the extra docs: pip install "intact-quantizer[docs]"')
    folder = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--fail-on-warning", "--keep-going", "-d", str(folder / "trees")]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(DOCS), str(folder / "html")],
        text=True,
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_every_page_is_built_and_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        built = site / page.relative_to(DOCS).with_suffix(".html")
        title = page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        assert re.sub(r"\W+", " ", title) in re.sub(r"\W+", " ", shown(built))
        loads = Loads()
        loads.feed(built.read_text(encoding="utf-8"))
        assert not loads.remote, built.name
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.search(r"@import|url\(['\"]?(https?:)?//", styles)


def shown(page: Path) -> str:
    """The text of a page."""
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))


def test_pages_of_targets_have_what_their_files_say(site: Path) -> None:
    for name in target_names():
        text = shown(site / "targets" / f"{name}.html")
        assert f"intact targets show {name}" in text
        assert "Sources" in text
    text = shown(site / "targets" / "tflite.html")
    assert "int32 multiplier and shift, rounded twice" in text
    assert "output scale 0.00390625, zero point -128" in text
    assert "SUM is wrong for negative sums" in text
    for page in ("arithmetic", "targets"):
        text = (site / f"{page}.html").read_text(encoding="utf-8")
        assert all(f"targets/{name}.html" in text for name in target_names())


def test_the_reference_has_every_public_name_once() -> None:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    named = re.findall(r"^\.\. auto\w+:: intact\.(\w+)$", text, re.MULTILINE)
    assert sorted(named) == sorted(intact.__all__)
    listed = {name for name in dir(intact) if not name.startswith("__")}
    assert listed == {*intact.__all__, "hago"}


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors that GitHub gives the headings of a page."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return frozenset(re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in plain)


@pytest.mark.parametrize(
    "page", [*REPOSITORY.glob("*.md"), *sorted(DOCS.rglob("*.md"))], ids=lambda page: page.stem
)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        aim = (page.parent / path).resolve() if path else page
        assert aim.exists(), link
        generated = {"all-targets", "every-target"}
        assert not anchor or anchor in anchors(aim) | generated, link
